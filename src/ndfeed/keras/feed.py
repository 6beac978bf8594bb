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

    def __init__(self, loader: Loader, counter: Consumed, options: Options, ahead: int) -> None:
        self._loader = loader
        self._ahead = ahead  # batches that TensorFlow prefetches
        self._functions: dict[bool, Any] = {}  # of TensorFlow, for batches without and with weights
        self._counter = counter
        self._options = options
        self._after: tuple[int, int] | None = None  # where the next pass of this fit starts

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_functions": {}}  # which TensorFlow cannot pickle

    def begin_fit(self, epoch: int, steps: int | None, epochs: int | None = None) -> None:
        """Start where a call of ``fit`` starts: at its epoch, which may have ``steps`` steps.

        If that is not epoch 0, a run was restored: move the data to the same place, unless it is
        in the middle of that epoch already and resumes there. Keras takes as many batches from
        each of the ``epochs`` as from the first, so orders whose epochs differ need calls of one.
        """
        counter = self._counter
        counter.epochs = None if steps else 1  # with steps, epochs of the data do not end fit's
        self._after = None
        cuts = self._loader.cuts
        coming = range(epoch, epoch if steps or epochs is None else epochs)
        if not self._loader.order.traits.steady and len({cuts(e).batches() for e in coming}) > 1:
            raise ValueError(
                f"epochs of {self._loader.order} differ in their number of batches; Keras takes "
                "as many from each epoch of fit as from the first; call fit once for each epoch"
            )
        whole = len(self._loader)
        if not epoch or not whole:
            return
        begun, batches = divmod(epoch * steps, whole) if steps else (epoch, 0)
        if not (counter.epoch == begun and not counter.batches):
            counter.go_to(begun, self._loader.cuts(begun).consumed(batches))

    def train(self) -> Iterator[Batch]:
        """Yield the batches of the next epoch of the data, or the rest of one.

        With ``steps_per_epoch``, Keras takes as many batches from each pass as an epoch has,
        whatever its own epochs are, so a pass continues past the end of an epoch.
        """
        counter, cuts = self._counter, self._loader.cuts
        steps = counter.epochs is None
        if self._after is None:
            epoch, start = counter.begin()
        else:
            epoch, start = self._after
            if not counter.in_fit:
                counter.go_to(epoch, start)
        self._after = (epoch + 1, start) if steps else None
        left = cuts(epoch).batches(0 if steps else start)
        while left:
            some = min(left, cuts(epoch).batches(start))
            for batch in self._batches(epoch, start, some):
                if not counter.in_fit:  # without Resume: count what Keras is given
                    counter.count(1)
                yield batch
            left -= some
            epoch, start = epoch + 1, 0

    def look(self) -> Iterator[Batch]:
        """Return the batches of the epoch in progress, from its start; they do not count."""
        epoch = self._counter.epoch
        return self._batches(epoch, 0, self._loader.cuts(epoch).batches())

    def _batches(self, epoch: int, start: int, count: int) -> Iterator[Batch]:
        batches = self._loader.at(epoch, start)
        whole = count == self._loader.cuts(epoch).batches(start)
        for left in range(count, 0, -1):
            batch = next(batches)
            if left == 1 and whole:
                next(batches, None)  # the epoch is over: threads may start the next one
            yield batch

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
        fields = known_fields(self._loader.dataset) if len(self._loader) else None
        return None if fields is None else Examples(fields, self._options)


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
