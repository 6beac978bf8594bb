"""The dataset that users hold: loops outside of graphs without TensorFlow's Python around each.

Before and behind the operation that hands over an element, TensorFlow's iterator runs Python
several times as long, whatever is in the element; with small batches that is most of the time.
What it works out there for elements of any kind is known here once and for all.

To begin a pass costs TensorFlow some 20 ms as well: ``from_generator`` wraps its generator into
another dataset, which is made and optimized anew for every iterator. Graphs need that, as they
are sent to other places; loops are given the generator itself, as ``Generated``.
"""

import itertools
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import tensorflow as tf

from ndfeed.loading.options import builder
from ndfeed.loading.report import Report
from ndfeed.order.orders import Order
from ndfeed.tf.generator import Generator


class Batches(tf.data.Dataset):  # type: ignore[misc]
    """The dataset that it is made of, with another iterator for loops outside of graphs.

    ``report()``, ``order``, ``epoch`` and ``skipped`` are those of ``ndfeed.loader``. They belong
    to this object: what ``map`` and the like make of it does not have them.

    Whatever is made of it refers to it, and so does every iterator: ``passes`` are told when all
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
        self._make_direct = direct  # makes the same batches, for iterators alone
        self._direct: tf.data.Dataset | None = None
        if passes is not None:
            weakref.finalize(self, passes.leave).atexit = False
        super().__init__(made._variant_tensor)

    def _inputs(self) -> list[tf.data.Dataset]:
        return [self._made]

    @property
    def element_spec(self) -> Any:  # noqa: ANN401
        """Types and shapes of a batch."""
        return self._made.element_spec

    @property
    def epoch(self) -> int:
        """The epoch that TensorFlow asked for last, or the next if none is under way.

        TensorFlow asks ahead of use: ``ndfeed.tf.State`` knows what was used. Setting it says
        with which epoch the next pass begins.
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
        """How fast the pass begun last is, where its time goes, and what limits it."""
        return self._source().loader.report()

    @property
    def skipped(self) -> Sequence[tuple[int, str]]:
        """Samples left out by ``on_error="skip"``: the row and what was wrong, the first 1,000."""
        return self._source().loader.skipped

    def _source(self) -> Generator:
        if self.passes is None:
            raise AttributeError("this dataset has no loader")
        return self.passes

    def __iter__(self) -> Iterator[Any]:
        if not tf.executing_eagerly():
            return super().__iter__()  # type: ignore[no-any-return]
        if self._make_direct is None:
            iterator: Any = super().__iter__()
        else:
            if self._direct is None:
                self._direct = self._make_direct()
            iterator = iter(self._direct)
            iterator.batches = self  # for as long as it is used, the passes are ours
        if _plain(self.element_spec):
            # One of TensorFlow's own it remains, which functions and checkpoints take.
            kind: type = type(iterator)
            iterator.__class__ = _quick(kind)
            iterator.set_up()
        return iterator  # type: ignore[no-any-return]


class Generated(tf.data.Dataset):  # type: ignore[misc]
    """What a generator gives, a new one for every iterator: as ``from_generator``, which is slower.

    It can be iterated over and nothing else: other processes and ``tf.distribute`` need a dataset
    that can be serialized.
    """

    def __init__(self, generator: Callable[[], Iterator[Any]], spec: Any) -> None:  # noqa: ANN401
        self._spec = spec
        begun: dict[int, Iterator[Any]] = {}
        numbers = itertools.count()
        specs = tf.nest.flatten(spec)

        def begin() -> np.int64:
            number = next(numbers)
            begun[number] = generator()
            return np.int64(number)

        def proceed(number: np.int64) -> list[Any]:
            return tf.nest.flatten(next(begun[int(number)]))  # type: ignore[no-any-return]

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
            self._functions = functions  # TensorFlow knows them by name
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
    def element_spec(self) -> Any:  # noqa: ANN401
        """Types and shapes of an element."""
        return self._spec


def _plain(spec: Any) -> bool:  # noqa: ANN401
    """Is a batch nothing but tensors, in whatever structure?"""
    return all(type(part) is tf.TensorSpec for part in tf.nest.flatten(spec))


@cache
def _quick(kind: Any) -> Any:  # noqa: ANN401
    """A class of TensorFlow's iterators, and how the next batch is had without detours.

    Made when there is an iterator: to make one at import would fix which devices there are.
    """

    class Quick(kind):  # type: ignore[misc]
        def set_up(self) -> None:
            spec = self.element_spec
            specs = tf.nest.flatten(spec)
            (resource,) = tf.nest.flatten(self, expand_composites=True)
            self._asked = {
                "iterator": resource,
                "output_types": [part.dtype for part in specs],
                "output_shapes": [part.shape for part in specs],
            }
            # Tensors come flat, those of a dict sorted by name, and go out as they were.
            self._build = builder(tf.nest.pack_sequence_as(spec, range(len(specs))))

        def get_next(self) -> Any:  # noqa: ANN401
            if not (tf.executing_eagerly() and tf.config.experimental.get_synchronous_execution()):
                return super().get_next()
            return self._build(tf.raw_ops.IteratorGetNext(**self._asked))

        def __next__(self) -> Any:  # noqa: ANN401
            try:
                return self.get_next()
            except tf.errors.OutOfRangeError:
                raise StopIteration from None

    Quick.__name__ = Quick.__qualname__ = kind.__name__
    return Quick
