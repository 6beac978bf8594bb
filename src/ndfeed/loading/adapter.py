"""What a framework adds to a loader: its own memory for batches and its own kind of batches."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from ndfeed.dataset.dataset import Dataset
from ndfeed.dataset.map_steps import Batch
from ndfeed.files.shared_memory import Block
from ndfeed.loading.batch_builder import Source
from ndfeed.loading.buffer_pool import Bytes
from ndfeed.loading.engine import Delivered
from ndfeed.loading.host_source import HostSource
from ndfeed.loading.options import Options, Structure
from ndfeed.order.permutation import Ints

ALL = Structure()


# Of a field in a batch: an array, a list of them, or what a map made of it.
Values: TypeAlias = Any


def as_arrays(made: Batch) -> Batch:
    """Return the batch with every field as an array, even where a map made framework tensors."""
    return {name: _array(values) for name, values in made.items()}


def _array(values: Values) -> Values:
    if type(values) is np.ndarray or not hasattr(values, "__array__"):
        return values
    return np.asanyarray(values)


def encode_text(values: Values) -> Values:
    """Encode arrays of text as UTF-8, since TensorFlow takes only ASCII; return others as is."""
    text = isinstance(values, np.ndarray) and values.dtype.kind == "U"
    return np.char.encode(values, "utf-8") if text else values


class Adapter:
    """A framework's part of a loader: one per process, made when first iterated there.

    This base class leaves arrays as they are; subclasses say what differs. Batches reach it as
    dicts of field name to array, and leave it in the structure that the consumer asked for.

    - ``allocate`` allocates memory for batches; ``None`` where any memory will do.
      ``allocate_shared`` allocates what worker processes fill.
    - ``reads`` may replace the dataset and the options that batches are read with, and ``deliver``
      is then given what was read. ``source`` may replace the source that reads into host memory.
    - ``joint`` says that batches which were read together are taken as one ``BatchGroup``; only
      where no field is ragged, unless ``cuts_ragged``, and only if there are several. ``finish``
      then returns dicts of arrays, or batches made by maps are not grouped.
    - ``draws`` asks for a random byte for each sample, beside the fields of a batch (``flips``).
    - ``finish`` is called with every batch by the thread that made it. The consumer calls ``send``
      with its result, ``ahead`` batches before it is due, and ``receive`` when it is due, with what
      ``send`` returned: one object, or the batches of a group one by one. Where ``ahead`` is 0
      neither is called: batches are delivered as ``finish`` returned them.
    - ``describe`` says for the report how batches get to where they are used.
    - ``close`` releases everything, in any thread; the adapter may be used again afterwards.
    """

    allocate: Callable[[int], Bytes] | None = None
    allocate_shared: Callable[[int], Bytes] = staticmethod(Block.of)
    threads: int | None = None  # number of threads that makes batches fastest, if known
    ahead: int = 0  # batches that are sent before they are due
    together: int = 8 << 20  # bytes of small batches that are worth making at a time
    joint: bool = False  # are batches taken as a group?
    draws: bool = False  # do batches come with random numbers?
    cuts_ragged: bool = False  # even if fields are ragged, as they were read?
    growth: float = 0.0  # bytes that ``finish`` allocates per byte of its batch
    held: int = 0  # bytes of delivered batches that the framework itself may keep

    def __init__(self, structure: Structure = ALL) -> None:
        self.structure = structure

    def source(self, host: HostSource) -> Source:
        """Return the source of stored fields."""
        return host

    def reads(self, ds: Dataset, options: Options, batch_bytes: int) -> tuple[Dataset, Options]:
        """Return what is read for batches of a size, and how; before ``source`` is called."""
        return ds, options

    def deliver(self, made: Batch, rows: Ints) -> Delivered:
        """Convert the batch of ``rows``, in the thread that made it."""
        return self.finish(made)

    def finish(self, made: Batch) -> Delivered:
        """Convert a batch, in the thread that made it."""
        return self.structure.build(made)

    def send(self, made: Delivered) -> Sequence[Delivered]:
        """Start the transfer of a batch, in the consumer's thread, some batches ahead."""
        return (made,)

    def receive(self, made: Delivered) -> Delivered:
        """Complete a batch, in the consumer's thread, when it is due."""
        return made

    def describe(self) -> str:
        """Say how batches get to where they are used; empty if they stay where they were read."""
        return ""

    def close(self) -> None:
        """Release everything."""


class Arrays(Adapter):
    """For frameworks that expect arrays, whatever the maps returned."""

    def finish(self, made: Batch) -> Delivered:
        """Return a batch of arrays only."""
        return self.structure.build(as_arrays(self.structure.pick(made)))


class Encoded(Arrays):
    """The same, with text encoded as UTF-8."""

    def finish(self, made: Batch) -> Delivered:
        """Return a batch of arrays only, with text as bytes."""
        return super().finish({name: encode_text(values) for name, values in made.items()})
