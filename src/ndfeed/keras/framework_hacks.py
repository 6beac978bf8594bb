"""What ``ndfeed.keras`` does beyond Keras's documented API, and what happens where it cannot.

Tried with Keras 3.15 and its TensorFlow, PyTorch and JAX backends. ``tests/keras`` has a test for
each in ``test_framework_hacks.py``, which fails if Keras changes underneath, and one for what
happens then.

``adopt_adapter``
    Keras wraps a ``PyDataset`` in a ``PyDatasetAdapter``, one for each ``fit``, ``evaluate`` and
    ``predict``, which asks for batches by number and does not say for whom. A ``PyDataset`` has no
    other way to supply them, so nothing could be prefetched, and ``fit`` and ``evaluate`` would
    move each other's epochs. While an adapter is constructed, it reads ``PyDataset.workers``. There
    it is found in the frame of its constructor and given a class derived from its own, whose
    iterators are passes over our loader. It still weighs classes and converts batches as before.
    Where Keras has no class of this name, or one without ``_get_iterator``, the adapter is left as
    it is: Keras asks for the batches of the epoch by number, in an order of its own unless
    ``fit(shuffle=False)`` says otherwise, and each is made when it is asked for.

``_find_caller``
    An adapter is not told whether it feeds ``fit``, ``evaluate`` or ``predict``, or only the
    building of a model, and not with which epoch ``fit`` starts. Both are found in the frames that
    called ``on_epoch_begin``. Where none of these is known, the data is taken to be trained on.

``_note_caller``
    Keras asks for the number of batches before ``fit`` starts, and takes as many from every epoch.
    Epochs differ in length where data grows, with some orders, and where the first is the rest of
    one that was interrupted. So at the start of each epoch the number is written into Keras's
    iterator, and told to the callbacks. With ``steps_per_epoch`` there is none, since one pass goes
    on from epoch to epoch. The iterator is found in the frame that called ``on_epoch_begin``. Where
    it has no such number, ``steps_per_epoch`` and epochs that differ in length are errors.

``_is_distributed``
    An adapter that is asked for a ``tf.data.Dataset`` is not told whether a ``tf.distribute``
    strategy will divide it, which needs one that can be serialized. The strategy is found in the
    iterator of Keras that asks, and the one of TensorFlow that does nothing is known by the name
    of its class. Where it is not found, Keras's own pipeline is used: the same batches, more
    slowly.
"""

import sys
import weakref
from collections.abc import Iterator
from functools import cache, partial
from types import FrameType
from typing import Any, TypeAlias

from ndfeed.keras.feed import Batch, as_backend_tensors

KerasAdapter: TypeAlias = Any  # a PyDatasetAdapter of Keras, which is no public class
AdapterClass: TypeAlias = Any
KerasIterator: TypeAlias = Any  # an EpochIterator
KerasCallbacks: TypeAlias = Any  # a CallbackList
TfDataset: TypeAlias = Any


def adopt_adapter() -> None:
    """Let the adapter whose constructor reads the property that calls this use our passes."""
    frame = sys._getframe(2)
    adapter: KerasAdapter = frame.f_locals.get("self")
    kind: AdapterClass = type(adapter)
    known = kind.__name__ == "PyDatasetAdapter" and kind.__module__.startswith("keras.")
    if known and frame.f_code.co_name == "__init__" and hasattr(kind, "_get_iterator"):
        adapter.__class__ = _adapter_class(kind)
        adapter.trains = True  # does ``fit`` use it, or does something else look at the data?
        adapter.started = False


@cache
def _adapter_class(kind: AdapterClass) -> AdapterClass:
    class PassAdapter(kind):  # type: ignore[misc]
        """An adapter of Keras whose iterators are passes over a loader."""

        def _get_iterator(self) -> Iterator[Batch]:
            return _iterate(self)

        def get_tf_dataset(self) -> TfDataset:
            """Return a dataset over our passes: a fast one, unless a strategy is to divide it."""
            me: KerasAdapter = self
            passes, weighted = me.py_dataset.passes, me.class_weight is not None
            # TensorFlow never releases a function, so what it is given must keep nothing alive.
            me._get_iterator = partial(_iterate_weakly, weakref.ref(me))
            alone = not _is_distributed(sys._getframe(1))
            made = passes.make_tf_dataset(me._get_iterator, weighted) if alone else None
            if made is not None:
                return made
            made = self._get_own_tf_dataset()
            if not alone:
                return made
            return passes.make_tf_dataset(me._get_iterator, weighted, made.element_spec)

        def _get_own_tf_dataset(self) -> TfDataset:
            """Let Keras derive shapes that hold for all batches, not those of the first two."""
            me: KerasAdapter = self
            data = me.py_dataset
            me.py_dataset = data.passes.examples or data  # it takes only examples from it
            try:
                return super().get_tf_dataset()
            finally:
                me.py_dataset = data

        def on_epoch_begin(self) -> None:
            """Find out what the data is for, and tell Keras how many batches there are."""
            frame = sys._getframe(1)
            _note_caller(self, _find_caller(frame), frame.f_locals.get("self"))

        def on_epoch_end(self) -> None:
            """Do nothing: passes know where they end."""

    PassAdapter.__name__ = PassAdapter.__qualname__ = kind.__name__
    return PassAdapter


def _iterate(adapter: KerasAdapter) -> Iterator[Batch]:
    passes = adapter.py_dataset.passes
    for batch in passes.train() if adapter.trains else passes.look():
        yield as_backend_tensors(adapter._standardize_batch(batch))


def _iterate_weakly(adapter: "weakref.ref[KerasAdapter]") -> Iterator[Batch]:
    found = adapter()
    if found is None:
        raise RuntimeError("Keras no longer uses this dataset; call fit again")
    return _iterate(found)


def _is_distributed(frame: FrameType) -> bool:
    """Return whether a strategy divides the dataset among devices, or nobody knows."""
    iterator = frame.f_locals.get("self")
    strategy = getattr(iterator, "_distribute_strategy", None)
    return type(strategy).__name__ != "_DefaultDistributionStrategy"


def _note_caller(adapter: KerasAdapter, caller: FrameType | None, iterator: KerasIterator) -> None:
    adapter.trains = caller is None or caller.f_code.co_name == "fit"
    if caller is None or not adapter.trains:
        return
    epoch = caller.f_locals.get("epoch")
    if not isinstance(epoch, int):
        return
    passes, steps = adapter.py_dataset.passes, caller.f_locals.get("steps_per_epoch")
    told = hasattr(iterator, "_num_batches")
    if not adapter.started:
        adapter.started = True
        passes.begin_fit(epoch, steps, told=told)
    count = passes.count_coming(steps)
    if told:
        iterator._num_batches = count
        _tell_callbacks(caller.f_locals.get("callbacks"), count)


def _tell_callbacks(callbacks: KerasCallbacks, count: int | None) -> None:
    params = getattr(callbacks, "params", None)
    if count is not None and isinstance(params, dict) and params.get("steps") != count:
        callbacks.set_params(params | {"steps": count})


def _find_caller(frame: FrameType | None) -> FrameType | None:
    """Find the frame of ``fit``, ``evaluate`` or ``predict``, or of what builds a model."""
    while frame is not None:
        name, module = frame.f_code.co_name, f"{frame.f_globals.get('__name__')}"
        asks = name in ("fit", "evaluate", "predict") or name.endswith("_symbolic_build")
        if asks and module.startswith("keras."):
            return frame
        frame = frame.f_back
    return None
