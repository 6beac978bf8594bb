"""The dataset that users hold: eager loops over it start sooner and run less Python per batch.

TensorFlow's iterator runs much Python around each element, which ``framework_hacks`` leaves out.

Starting a pass takes TensorFlow some 20 ms as well: ``from_generator`` wraps its generator in
another dataset, which is built and optimized anew for every iterator. Graphs need that, since they
are sent to other places. Eager loops get the generator itself, as ``Generated``.
"""

import itertools
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from ndfeed.dataset.sampling import SETTLE, Missing
from ndfeed.loading.report import Report
from ndfeed.loading.uninterrupted import clean_up
from ndfeed.order.protocol import OrderInUse
from ndfeed.tf.framework_hacks import Element, Spec, TfIterator, make_fast
from ndfeed.tf.generator import Generator


class Made(NamedTuple):
    """A dataset for graphs and all that TensorFlow does with one, and a way to make another of the
    same batches, for iterators only."""

    whole: tf.data.Dataset
    direct: Callable[[], tf.data.Dataset]


class Batches(tf.data.Dataset):  # type: ignore[misc]
    """A dataset of batches, with a faster iterator for eager loops; see ``ndfeed.tf.dataset``.

    ``report()``, ``order``, ``epoch`` and ``skipped`` are those of ``ndfeed.loader``. They belong
    to this object, as ``refresh()`` does: datasets made of it by ``map`` and the like do not have
    them.

    Whatever is made of it refers to it, and so does every iterator. ``passes`` is told when all
    of them are gone.
    """

    def __init__(self, passes: Generator, make: Callable[[], Made]) -> None:
        self.passes = passes
        self._make = make
        weakref.finalize(self, clean_up, passes.leave).atexit = False
        self._adopt(make())

    def _adopt(self, made: Made) -> None:
        """Become a dataset of TensorFlow, which is other than before where data has grown."""
        self._made, self._make_direct = made
        self._direct: tf.data.Dataset | None = None
        super().__init__(tf.data.experimental.to_variant(self._made))

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
        return self.passes.epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self.passes.epoch = epoch

    @property
    def order(self) -> OrderInUse:
        """How samples are ordered within an epoch."""
        return self.passes.loader.order

    def report(self) -> Report:
        """Report how fast the last pass is, where its time goes, and the bottleneck."""
        return self.passes.loader.report()

    @property
    def skipped(self) -> Sequence[tuple[int, str]]:
        """Samples skipped by ``on_error="skip"``: row and error of the first 1,000."""
        return self.passes.loader.skipped

    def refresh(self, *, missing: Missing = "raise", settle: float = SETTLE) -> int:
        """Look for files that came, and return how many samples are new.

        The next pass has the samples of the files there are then, and so has the next epoch of a
        pass in progress; an epoch that TensorFlow has begun to prefetch ends as it began. Files
        that are gone or have changed, or may still be written, are treated as by
        ``Dataset.refresh``. What was derived from this dataset before, by ``map`` and the like, has
        the number of batches that it was made with: more is an error, unless ``epochs=None``.
        """
        if not tf.executing_eagerly():
            raise RuntimeError(
                "refresh() in a tf.function would run once, when it is traced; call it outside"
            )
        passes, before, told = self.passes, self.passes.loader, self.passes.most
        new = passes.refresh(missing, settle)
        if passes.loader is not before:
            self._adopt(self._make())
        if passes.in_fit and (passes.most or 0) > (told or 0):
            raise RuntimeError(
                "fit has asked how many batches there are, and would leave out those that came; "
                "call fit for each epoch, or use ndfeed.keras.dataset"
            )
        return new

    def __iter__(self) -> TfIterator:
        if not tf.executing_eagerly():
            return super().__iter__()
        if self._direct is None:
            self._direct = self._make_direct()
        iterator = iter(self._direct)
        iterator.batches = self  # keeps the passes for as long as the iterator is used
        return make_fast(iterator)


class GeneratorFunctions:
    """The functions of TensorFlow that run generators whose elements have one ``spec``.

    Tracing them takes some 20 ms, so datasets share them.
    """

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.specs = tf.nest.flatten(spec)
        self._sources: dict[int, Callable[[], Iterator[Element]]] = {}
        self._begun: dict[int, Iterator[Element]] = {}
        self._numbers = itertools.count()
        number = tf.TensorSpec((), tf.int64)
        with tf.device("CPU"):
            self.concrete = [
                tf.function(made, autograph=False).get_concrete_function(number)
                for made in (
                    lambda source: tf.numpy_function(self._begin, [source], tf.int64),
                    self._give,
                    lambda number: tf.numpy_function(self._end, [number], tf.int64),
                )
            ]

    def add(self, generator: Callable[[], Iterator[Element]]) -> int:
        """Add a generator function, and return its number."""
        number = next(self._numbers)
        self._sources[number] = generator
        return number

    def remove(self, number: int) -> None:
        """Forget a generator function."""
        self._sources.pop(number, None)

    def _begin(self, source: np.int64) -> np.int64:
        number = next(self._numbers)
        self._begun[number] = self._sources[int(source)]()
        return np.int64(number)

    def _proceed(self, number: np.int64) -> list[Any]:
        arrays: list[Any] = tf.nest.flatten(next(self._begun[int(number)]))
        return arrays

    def _end(self, number: np.int64) -> np.int64:
        self._begun.pop(int(number), None)
        return number

    def _give(self, number: tf.Tensor) -> list[tf.Tensor]:
        found = tf.numpy_function(self._proceed, [number], [part.dtype for part in self.specs])
        return [
            tf.ensure_shape(one, part.shape) for one, part in zip(found, self.specs, strict=True)
        ]


class Generated(tf.data.Dataset):  # type: ignore[misc]
    """A dataset over a generator, a new one for every iterator: a faster ``from_generator``.

    It can only be iterated over: other processes and ``tf.distribute`` need a dataset that can
    be serialized.
    """

    def __init__(
        self, generator: Callable[[], Iterator[Element]], functions: GeneratorFunctions
    ) -> None:
        self._functions = functions  # kept here: TensorFlow refers to them only by name
        source = functions.add(generator)
        weakref.finalize(self, functions.remove, source).atexit = False
        begin, proceed, end = functions.concrete
        with tf.device("CPU"):
            super().__init__(
                tf.raw_ops.GeneratorDataset(
                    init_func_other_args=[tf.constant(source, tf.int64)],
                    next_func_other_args=[],
                    finalize_func_other_args=[],
                    init_func=begin,
                    next_func=proceed,
                    finalize_func=end,
                    output_types=[part.dtype for part in functions.specs],
                    output_shapes=[part.shape for part in functions.specs],
                )
            )

    def _inputs(self) -> list[tf.data.Dataset]:
        return []

    @property
    def element_spec(self) -> Spec:
        """Types and shapes of an element."""
        return self._functions.spec


def prefetch_directly(made: tf.data.Dataset, ahead: int) -> tf.data.Dataset:
    """Prefetch ``ahead`` elements of a dataset that is not optimized: its passes start sooner."""
    options = tf.data.Options()
    options.autotune.enabled = False  # there is nothing to tune or to optimize
    options.experimental_optimization.apply_default_optimizations = False
    return made.prefetch(ahead).with_options(options)
