"""How Keras takes batches: as passes over a loader, in the tensors of its backend.

With its torch backend Keras would copy every array before it makes a tensor of it, so batches are
given to it as tensors that share the arrays' memory. JAX and TensorFlow take the memory of arrays
as it is, JAX faster than arrays of its own, so there batches stay what they are.

Keras wraps a ``PyDataset`` in an adapter of its own, one for each ``fit``, ``evaluate`` and
``predict``, and asks it for an iterator whenever it begins with the data anew. An adapter that
wraps one of ours becomes a ``Feed``: its iterators are passes over our loader, so that batches
are made ahead of use, in our order, and those of different adapters do not get into each other's
way. It stays an instance of Keras's own class, which weighs classes and converts batches.
"""

import sys
import weakref
from collections.abc import Iterator, Mapping
from functools import cache, partial
from types import FrameType
from typing import Any

import keras
import numpy as np
import torch

from ndfeed.dataset.column import Field
from ndfeed.loading.buffer_pool import Pool
from ndfeed.loading.consumed import Consumed
from ndfeed.loading.loader import Loader
from ndfeed.loading.options import Options, known_fields
from ndfeed.loading.ragged import PLAIN, collate_ragged, padded_field, uneven_field

# Types that Keras hands to torch as they are; of the others it makes something else.
_SAME = frozenset(
    np.dtype(name)
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8"),
        *("float16", "float32", "float64"),
    )
)


def as_tensors(batch: Any) -> Any:  # noqa: ANN401 - any nest of arrays
    """The same batch, its arrays as tensors wherever Keras would make the same of them."""
    return keras.tree.map_structure(_as_tensor, batch)


def _as_tensor(values: Any) -> Any:  # noqa: ANN401
    if not isinstance(values, np.ndarray) or values.dtype not in _SAME:
        return values
    # torch can take only memory that it may write to, in steps forward.
    usable = values.flags.writeable and values.flags.c_contiguous
    return torch.from_numpy(values) if usable else values


_ON_TORCH = keras.backend.backend() == "torch"  # settled when Keras is imported
if _ON_TORCH:
    pass


class Passes:
    """Passes over a loader: those of the training, which ``counter`` counts, and others."""

    def __init__(self, loader: Loader, counter: Consumed, options: Options) -> None:
        self._loader = loader
        self._counter = counter
        self._options = options
        self._after: tuple[int, int] | None = None  # where the next one of this fit begins

    def begin_fit(self, epoch: int, steps: int | None) -> None:
        """``fit`` begins with an epoch of its own, and with so many steps in each if that is said.

        One that is not its first is the data's as well: a run was restored. Unless the data
        stands in it, to go on with what is left of it.
        """
        counter, share = self._counter, self._loader.share
        counter.epochs = None if steps else 1  # what is left of an epoch ends none of fit then
        self._after = None
        whole = share.batches()
        if not epoch or not whole:
            return
        begun, batches = divmod(epoch * (steps or whole), whole)
        if not (counter.epoch == begun and not counter.batches):
            counter.go_to(begun, share.consumed(batches))

    def train(self) -> Iterator[Any]:
        """The batches of the next epoch of the data, or what is left of it.

        Where steps are said, Keras takes as many from each pass as an epoch has, whatever its own
        epochs are: there it goes on behind the end of one.
        """
        counter, share = self._counter, self._loader.share
        steps = counter.epochs is None
        if self._after is None:
            epoch, start = counter.begin()
        else:
            epoch, start = self._after
            if not counter.in_fit:
                counter.go_to(epoch, start)
        self._after = (epoch + 1, start) if steps else None
        left = share.batches() if steps else share.batches(start)
        while left:
            some = min(left, share.batches(start))
            for batch in self._batches(epoch, start, some):
                if not counter.in_fit:  # nobody says what was used: count what is given
                    counter.count(1)
                yield batch
            left -= some
            epoch, start = epoch + 1, 0

    def look(self) -> Iterator[Any]:
        """The batches of the epoch in progress, from its beginning; they do not count."""
        return self._batches(self._counter.epoch, 0, len(self._loader))

    def _batches(self, epoch: int, start: int, count: int) -> Iterator[Any]:
        batches = self._loader.at(epoch, start)
        whole = count == self._loader.share.batches(start)
        for left in range(count, 0, -1):
            batch = next(batches)
            if left == 1 and whole:
                next(batches, None)  # the epoch is over: threads may go on with the next
            yield batch

    @property
    def examples(self) -> "Examples | None":
        """Two batches that differ in shape wherever batches may; nothing where none are known."""
        fields = known_fields(self._loader.dataset) if len(self._loader) else None
        return None if fields is None else Examples(fields, self._options)


class Examples:
    """Batches of one sample, of zeros, by which Keras tells the types and shapes of all."""

    num_batches = 2

    def __init__(self, fields: Mapping[str, Field], options: Options) -> None:
        self._fields = fields
        self._options = options

    def __getitem__(self, index: int) -> Any:  # noqa: ANN401
        pool, pads = Pool(0), self._options.pads
        made: dict[str, Any] = {}
        for name, stored in self._fields.items():
            field = uneven_field(stored, pads)
            if not field.ragged:
                made[name] = _known(np.zeros((1, *field.lengths), field.dtype))
                continue
            shape = [index + 1 if length is None else length for length in field.shape or ()]
            fixed = padded_field(field, pads).shape or ()
            shape = [n if to is None else to for n, to in zip(shape, fixed, strict=True)]
            sample = np.zeros(shape, field.dtype)
            padded = collate_ragged(field, [sample], "pad", pool, pads.get(name, PLAIN))
            made |= {part: _known(values) for part, values in padded.items()}
        example = self._options.structure.build(made)
        return (example,) if keras.ops.is_tensor(example) else example  # as Keras does with arrays


def _known(example: Any) -> Any:  # noqa: ANN401
    """An example whose type Keras knows: it has none for arrays of text, but for its tensors."""
    return keras.ops.convert_to_tensor(example) if example.dtype.kind in "SU" else example


def adopt(frame: FrameType) -> None:
    """Make a ``Feed`` of the adapter of Keras's that is just being made, if this is its frame."""
    adapter: Any = frame.f_locals.get("self")
    kind: Any = type(adapter)
    known = kind.__name__ == "PyDatasetAdapter" and kind.__module__.startswith("keras.")
    if known and frame.f_code.co_name == "__init__" and hasattr(kind, "_get_iterator"):
        adapter.__class__ = _feed(kind)
        adapter.counts = True  # does it train, or only look at the data?
        adapter.begun = False


@cache
def _feed(kind: Any) -> Any:  # noqa: ANN401
    class Feed(kind):  # type: ignore[misc]
        """An adapter of Keras's, fed by passes over a loader."""

        def _get_iterator(self) -> Iterator[Any]:
            return _batches(self)

        def get_tf_dataset(self) -> Any:  # noqa: ANN401
            """With shapes that hold for all batches, not for the first two."""
            me: Any = self
            data = me.py_dataset
            # TensorFlow never lets go of a function; what it has of us must keep nothing alive.
            me._get_iterator = partial(_batches_of, weakref.ref(me))
            me.py_dataset = data.passes.examples or data  # which it only looks at
            try:
                return super().get_tf_dataset()
            finally:
                me.py_dataset = data

        def on_epoch_begin(self) -> None:
            """Find out what the data is for; only the stack of Keras tells."""
            _find_out(self, _caller(sys._getframe(1)))

        def on_epoch_end(self) -> None:
            """Nothing: passes know themselves where they end."""

    Feed.__name__ = Feed.__qualname__ = kind.__name__
    return Feed


def _batches(feed: Any) -> Iterator[Any]:  # noqa: ANN401
    passes = feed.py_dataset.passes
    for batch in passes.train() if feed.counts else passes.look():
        made = feed._standardize_batch(batch)
        yield as_tensors(made) if _ON_TORCH else made


def _batches_of(feed: "weakref.ref[Any]") -> Iterator[Any]:
    found = feed()
    if found is None:
        raise RuntimeError("Keras is done with this dataset; give it to fit again")
    return _batches(found)


def _find_out(feed: Any, caller: FrameType | None) -> None:  # noqa: ANN401
    feed.counts = caller is None or caller.f_code.co_name == "fit"
    if caller is None or feed.begun or not feed.counts:
        return
    feed.begun = True
    epoch = caller.f_locals.get("epoch")
    if isinstance(epoch, int):
        feed.py_dataset.passes.begin_fit(epoch, caller.f_locals.get("steps_per_epoch"))


def _caller(frame: FrameType | None) -> FrameType | None:
    """Who wants data: ``fit``, ``evaluate`` or ``predict``, or who builds a model with a batch."""
    while frame is not None:
        name, module = frame.f_code.co_name, f"{frame.f_globals.get('__name__')}"
        asks = name in ("fit", "evaluate", "predict") or name.endswith("_symbolic_build")
        if asks and module.startswith("keras."):
            return frame
        frame = frame.f_back
    return None
