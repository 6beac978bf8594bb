"""How Keras takes batches: as passes over a loader, in the tensors of its backend.

With the torch backend Keras would copy every array before it makes a tensor of it, so it is given
tensors that share the memory of the arrays. JAX and TensorFlow use the memory of arrays without a
copy, JAX faster than arrays of its own, so their batches stay NumPy arrays. TensorFlow takes them
from the same kind of iterator as those of ``ndfeed.tf.dataset``.
"""

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any, TypeAlias

import keras
import numpy as np
from numpy.typing import NDArray

from ndfeed.dataset.column import Field
from ndfeed.loading.buffer_pool import Pool
from ndfeed.loading.consumed import Consumed
from ndfeed.loading.loader import Loader
from ndfeed.loading.options import Options, known_fields
from ndfeed.loading.ragged import PLAIN, collate_ragged, padded_field, uneven_field

Batch: TypeAlias = Any  # arrays or tensors in any nest of tuples, lists and dicts

# Dtypes that Keras passes to torch as they are; it converts the others.
_SAME = frozenset(
    np.dtype(name)
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8"),
        *("float16", "float32", "float64"),
    )
)
# Fixed when Keras is imported. Keras needs no torch for its other backends, and neither do we.
_torch: Any = import_module("torch") if keras.backend.backend() == "torch" else None
_is_tensorflow = keras.backend.backend() == "tensorflow"
_tf: Any = import_module("ndfeed.tf.fast_iterator") if _is_tensorflow else None


def as_backend_tensors(batch: Batch) -> Batch:
    """Make tensors of a batch's arrays where Keras would make the same of them, by a copy."""
    return batch if _torch is None else keras.tree.map_structure(_as_tensor, batch)


def _as_tensor(values: object) -> object:
    if not isinstance(values, np.ndarray) or values.dtype not in _SAME:
        return values
    # torch takes only memory that it may write to, and no negative strides.
    usable = values.flags.writeable and values.flags.c_contiguous
    return _torch.from_numpy(values) if usable else values


class Passes:
    """Passes over a loader: those of training, which ``counter`` counts, and others."""

    def __init__(self, counter: Consumed, options: Options, ahead: int) -> None:
        self._ahead = ahead  # batches that TensorFlow prefetches
        self._functions: dict[bool, Any] = {}  # of TensorFlow, for batches without and with weights
        self._counter = counter
        self._options = options
        self._told = False  # does Keras take as many batches as each epoch has?
        self._first = 0  # if not, how many it takes from each epoch of this fit

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_functions": {}}  # which TensorFlow cannot pickle

    def begin_fit(self, epoch: int, steps: int | None, *, told: bool) -> None:
        """Start where a call of ``fit`` starts: at its epoch, which may have ``steps`` steps.

        If that is not epoch 0, a run was restored: move the data to the same place, unless it is
        in the middle of that epoch already and resumes there. If Keras is not ``told`` how many
        batches each epoch has, it takes as many from each as from the first.
        """
        if steps and not told:
            raise ValueError(
                "ndfeed does not know this version of Keras well enough for steps_per_epoch; leave "
                "it out"
            )
        counter = self._counter
        counter.epochs = None if steps else 1  # with steps, epochs of the data do not end fit's
        self._told, self._first = told, 0
        cuts = counter.loaders.newest.cuts
        if not epoch:
            return
        begun, batches = (0, epoch * steps) if steps else (epoch, 0)
        while batches >= (count := cuts(begun).batches()) > 0:
            begun, batches = begun + 1, batches - count
        if not (counter.epoch == begun and not counter.batches):
            counter.go_to(begun, cuts(begun).consumed(batches))

    def count_coming(self, steps: int | None) -> int | None:
        """Return how many batches the epoch of ``fit`` that starts now takes from a pass.

        ``None`` with ``steps_per_epoch``: then one pass goes on from epoch to epoch.
        """
        counter = self._counter
        newest = counter.loaders.newest
        whole = newest.cuts(counter.epoch).batches()
        self._first = self._first or whole
        if not self._told and whole != self._first:
            raise ValueError(
                f"epochs of {newest.order} differ in their number of batches, and Keras "
                "takes as many from each epoch of fit as from the first; call fit once for each"
            )
        if steps:
            return None
        epoch, start = counter.begin()
        return counter.loaders.begin(epoch, start, epoch).cuts(epoch).batches(start)

    def train(self) -> Iterator[Batch]:
        """Yield the batches of the next epoch of the data, or the rest of one.

        With ``steps_per_epoch``, Keras takes its steps from one pass, which never ends.
        """
        counter = self._counter
        epoch, start = counter.begin()
        endless = counter.epochs is None
        while True:
            loader = counter.loaders.begin(epoch, start, counter.epoch)
            for batch in _read(loader, epoch, start):
                if not counter.in_fit:  # without Resume: count what Keras is given
                    counter.count(1)
                yield batch
            if not endless or not loader.cuts(epoch).batches(start):
                return
            epoch, start = epoch + 1, 0

    def look(self) -> Iterator[Batch]:
        """Return the batches of the epoch in progress, from its start; they do not count."""
        epoch = self._counter.epoch
        return _read(self._counter.loaders.of(epoch), epoch)

    def make_tf_dataset(
        self, generator: Callable[[], Iterator[Batch]], weighted: bool, spec: object = None
    ) -> object:
        """Make a ``tf.data.Dataset`` of what ``generator`` yields, which only loops can use.

        ``None`` if no ``spec`` of such batches, with the weights of classes or without, was given
        so far. Keras makes such a dataset for every call of ``fit`` and the like. Its own takes
        longer to make, and much longer for each batch.
        """
        if spec is not None:
            self._functions[weighted] = _tf.GeneratorFunctions(spec)
        functions = self._functions.get(weighted)
        if functions is None:
            return None
        return _tf.prefetch_directly(_tf.Generated(generator, functions), self._ahead)

    @property
    def examples(self) -> "Examples | None":
        """Two batches that differ in shape wherever batches may; ``None`` if shapes are unknown."""
        loader = self._counter.loaders.newest
        fields = known_fields(loader.dataset) if len(loader) else None
        return None if fields is None else Examples(fields, self._options)


def _read(loader: Loader, epoch: int, start: int = 0) -> Iterator[Batch]:
    """Yield the batches of an epoch after its first samples."""
    batches = loader.at(epoch, start)
    for left in range(loader.cuts(epoch).batches(start), 0, -1):
        batch = next(batches)
        if left == 1:
            next(batches, None)  # the epoch is over: threads may start the next one
        yield batch


class Examples:
    """Batches of one sample of zeros, from which Keras derives the dtypes and shapes of all."""

    num_batches = 2

    def __init__(self, fields: Mapping[str, Field], options: Options) -> None:
        self._fields = fields
        self._options = options

    def __getitem__(self, index: int) -> Batch:
        pool, pads = Pool(0), self._options.pads
        made: dict[str, Any] = {}
        for name, stored in self._fields.items():
            field = uneven_field(stored, pads)
            if not field.ragged:
                made[name] = _with_known_dtype(np.zeros((1, *field.lengths), field.dtype))
                continue
            shape = [index + 1 if length is None else length for length in field.shape or ()]
            fixed = padded_field(field, pads).shape or ()
            shape = [n if to is None else to for n, to in zip(shape, fixed, strict=True)]
            sample = np.zeros(shape, field.dtype)
            padded = collate_ragged(field, [sample], "pad", pool, pads.get(name, PLAIN))
            made |= {part: _with_known_dtype(values) for part, values in padded.items()}
        example = self._options.structure.build(made)
        return (example,) if keras.ops.is_tensor(example) else example  # as Keras does with arrays


def _with_known_dtype(example: NDArray[Any]) -> object:
    """Make a tensor of text, since Keras knows no dtype for arrays of it."""
    return keras.ops.convert_to_tensor(example) if example.dtype.kind in "SU" else example
