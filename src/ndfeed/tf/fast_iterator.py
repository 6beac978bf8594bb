"""The dataset that users hold: eager loops over it start sooner and run less Python per batch.

TensorFlow's iterator runs much Python around each element, which ``framework_hacks`` leaves out.

Starting a pass takes TensorFlow some 20 ms as well: ``from_generator`` wraps its generator in
another dataset, which is built and optimized anew for every iterator. Graphs need that, since they
are sent to other places. Eager loops get the generator itself, as ``Generated``.
"""

import itertools
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ndfeed.loading.report import Report
from ndfeed.order.orders import Order
from ndfeed.tf.framework_hacks import Element, Spec, TfIterator, make_fast
from ndfeed.tf.generator import Generator


class Batches(tf.data.Dataset):  # type: ignore[misc]
    """A dataset of batches, with a faster iterator for eager loops; see ``ndfeed.tf.dataset``.

    ``report()``, ``order``, ``epoch`` and ``skipped`` are those of ``ndfeed.loader``. They belong
    to this object: datasets made of it by ``map`` and the like do not have them.

    Whatever is made of it refers to it, and so does every iterator. ``passes`` is told when all
    of them are gone.
    """

    def __init__(
        self,
        made: tf.data.Dataset,
        passes: Generator | None = None,
        direct: Callable[[], tf.data.Dataset] | None = None,
    ) -> None:
        self._made = made
        self.passes = passes
        self._make_direct = direct  # makes a dataset of the same batches, for iterators only
        self._direct: tf.data.Dataset | None = None
        if passes is not None:
            weakref.finalize(self, passes.leave).atexit = False
        super().__init__(tf.data.experimental.to_variant(made))

    def _inputs(self) -> list[tf.data.Dataset]:
        return [self._made]

    @property
    def element_spec(self) -> Spec:
        """Types and shapes of a batch."""
        return self._made.element_spec

    @property
    def epoch(self) -> int:
        """The epoch that TensorFlow prefetches, or the next one if no pass is in progress.

        ``ndfeed.tf.State`` knows what was used. Set it to choose the epoch of the next pass.
        """
        return self._source().epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self._source().epoch = epoch

    @property
    def order(self) -> Order:
        """How samples are ordered within an epoch."""
        return self._source().loader.order

    def report(self) -> Report:
        """Report how fast the last pass is, where its time goes, and the bottleneck."""
        return self._source().loader.report()

    @property
    def skipped(self) -> Sequence[tuple[int, str]]:
        """Samples skipped by ``on_error="skip"``: row and error of the first 1,000."""
        return self._source().loader.skipped

    def _source(self) -> Generator:
        if self.passes is None:
            raise AttributeError("this dataset has no loader")
        return self.passes

    def __iter__(self) -> TfIterator:
        if not tf.executing_eagerly():
            return super().__iter__()
        if self._make_direct is None:
            return make_fast(super().__iter__())
        if self._direct is None:
            self._direct = self._make_direct()
        iterator = iter(self._direct)
        iterator.batches = self  # keeps the passes for as long as the iterator is used
        return make_fast(iterator)


class Generated(tf.data.Dataset):  # type: ignore[misc]
    """A dataset over a generator, a new one for every iterator: a faster ``from_generator``.

    It can only be iterated over: other processes and ``tf.distribute`` need a dataset that can
    be serialized.
    """

    def __init__(self, generator: Callable[[], Iterator[Element]], spec: Spec) -> None:
        self._spec = spec
        begun: dict[int, Iterator[Element]] = {}
        numbers = itertools.count()
        specs = tf.nest.flatten(spec)

        def begin() -> np.int64:
            number = next(numbers)
            begun[number] = generator()
            return np.int64(number)

        def proceed(number: np.int64) -> list[Any]:
            arrays: list[Any] = tf.nest.flatten(next(begun[int(number)]))
            return arrays

        def end(number: np.int64) -> np.int64:
            begun.pop(int(number), None)
            return number

        def give(number: tf.Tensor) -> list[tf.Tensor]:
            found = tf.numpy_function(proceed, [number], [part.dtype for part in specs])
            return [
                tf.ensure_shape(one, part.shape) for one, part in zip(found, specs, strict=True)
            ]

        number = tf.TensorSpec((), tf.int64)
        with tf.device("CPU"):
            functions = [
                tf.function(made, autograph=False).get_concrete_function(*arguments)
                for made, arguments in (
                    (lambda: tf.numpy_function(begin, [], tf.int64), ()),
                    (give, (number,)),
                    (lambda number: tf.numpy_function(end, [number], tf.int64), (number,)),
                )
            ]
            self._functions = functions  # kept here: TensorFlow refers to them only by name
            super().__init__(
                tf.raw_ops.GeneratorDataset(
                    init_func_other_args=[],
                    next_func_other_args=[],
                    finalize_func_other_args=[],
                    init_func=functions[0],
                    next_func=functions[1],
                    finalize_func=functions[2],
                    output_types=[part.dtype for part in specs],
                    output_shapes=[part.shape for part in specs],
                )
            )

    def _inputs(self) -> list[tf.data.Dataset]:
        return []

    @property
    def element_spec(self) -> Spec:
        """Types and shapes of an element."""
        return self._spec
