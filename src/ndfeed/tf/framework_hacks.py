"""What ``ndfeed.tf`` does beyond TensorFlow's documented API, and what happens where it cannot.

Tried with TensorFlow 2.21. ``tests/tf/test_framework_hacks.py`` has a test for each, which fails if
TensorFlow changes underneath, and one for what happens then.

``make_fast``
    Gives an iterator of TensorFlow another class, whose ``next()`` runs the operation that
    delivers an element and little else. TensorFlow's own runs several times as much Python around
    that operation, whatever is in the element: with small batches that is most of the time.
    An iterator of our own is no way: ``tf.function``, ``tf.data.IteratorSpec`` and checkpoints take
    only TensorFlow's class. Where an iterator refuses another class, or consists of more than one
    resource, it is left as it is: the same batches, more slowly.

``tensor_that_keeps``
    Makes a tensor in the memory of a NumPy array that refers to a Python object, so that the
    object lives as long as the tensor. TensorFlow never releases a Python function that it was
    given, so the function must not refer to the loader; and a graph that outlives the dataset has
    no other place for a reference. Where there are no eager tensors, or the tensor would be a
    copy, there is none: the loader then lives as long as the dataset that the user holds, and a
    pass over one that is gone says so.
"""

import weakref
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from ndfeed.loading.options import builder

Element: TypeAlias = Any  # tensors in any nest of tuples and dicts
Spec: TypeAlias = Any  # the same nest of tf.TensorSpec
TfIterator: TypeAlias = Any  # a tf.data.Iterator, which has no types for mypy


def make_fast(iterator: TfIterator) -> TfIterator:
    """Let an iterator of TensorFlow deliver its elements with less Python, where it can."""
    specs = tf.nest.flatten(iterator.element_spec)
    resources = tf.nest.flatten(iterator, expand_composites=True)
    if len(resources) != 1 or any(type(spec) is not tf.TensorSpec for spec in specs):
        return iterator  # ragged tensors consist of several
    kind: TfIterator = type(iterator)
    try:
        iterator.__class__ = _fast_class(kind)
    except TypeError:
        return iterator
    iterator.prepare(resources[0], specs)
    return iterator


@cache
def _fast_class(kind: TfIterator) -> TfIterator:
    """Derive from the class of an iterator.

    When there is an iterator, not at import: that would fix which devices TensorFlow sees.
    """

    class FastIterator(kind):  # type: ignore[misc]
        def prepare(self, resource: tf.Tensor, specs: list[tf.TensorSpec]) -> None:
            self._arguments = {
                "iterator": resource,
                "output_types": [spec.dtype for spec in specs],
                "output_shapes": [spec.shape for spec in specs],
            }
            # Tensors come flat, those of a dict sorted by name, and are put back in their nest.
            nest = tf.nest.pack_sequence_as(self.element_spec, range(len(specs)))
            self._build = builder(nest)

        def get_next(self) -> Element:
            if not (tf.executing_eagerly() and tf.config.experimental.get_synchronous_execution()):
                return super().get_next()
            return self._build(tf.raw_ops.IteratorGetNext(**self._arguments))

        def __next__(self) -> Element:
            try:
                return self.get_next()
            except tf.errors.OutOfRangeError:
                raise StopIteration from None

    FastIterator.__name__ = FastIterator.__qualname__ = kind.__name__
    return FastIterator


class _Memory(np.ndarray[Any, np.dtype[np.uint8]]):
    """Memory of a tensor, and an object that lives as long."""

    kept: object


def tensor_that_keeps(kept: object, content: bytes) -> tuple[tf.Tensor, ...]:
    """Make a tensor of ``content`` that keeps an object alive; none where that is not possible."""
    memory = np.frombuffer(bytearray(content), np.uint8).view(_Memory)
    memory.kept = kept
    alive = weakref.ref(memory)
    with tf.init_scope():
        if not tf.executing_eagerly():
            return ()
        tensor = tf.experimental.dlpack.from_dlpack(memory.__dlpack__())
    del memory
    return () if alive() is None else (tensor,)
