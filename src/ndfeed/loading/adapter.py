"""What a framework adds to a loader: memory of its own kind, and batches of its own kind."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ndfeed.loading.batch_maker import Source
from ndfeed.loading.buffer_pool import Bytes
from ndfeed.loading.host_source import HostSource
from ndfeed.loading.options import Structure

ALL = Structure()


def as_arrays(made: dict[str, Any]) -> dict[str, Any]:
    """A batch whose fields are arrays, also where a map made tensors of some framework."""
    return {name: _array(values) for name, values in made.items()}


def _array(values: Any) -> Any:  # noqa: ANN401
    if type(values) is np.ndarray or not hasattr(values, "__array__"):
        return values
    return np.asanyarray(values)


def encoded(values: Any) -> Any:  # noqa: ANN401
    """An array of text as UTF-8; TensorFlow takes ASCII alone. Anything else as it is."""
    text = isinstance(values, np.ndarray) and values.dtype.kind == "U"
    return np.char.encode(values, "utf-8") if text else values


class Adapter:
    """One for every process that a loader is used in, made when it is first iterated there.

    This one leaves arrays as they are; a framework's says what is otherwise. Batches come to it as
    dicts of field name to array, and leave it in the structure that the consumer asked for.

    - ``allocate`` makes memory for batches, or is nothing where any memory will do.
    - ``source`` may put something in the place of what reads into host memory.
    - ``joint`` says that batches which were read together are taken in one piece, as ``Several``;
      only where no field is ragged, and only if there are several. ``finish`` gives dicts of
      arrays then, or batches of maps stay alone.
    - ``finish`` is called with every batch by the thread that made it; ``send`` with what that
      gave by the consumer, ``ahead`` batches before it is due; ``receive`` when it is due, with
      what ``send`` gave: one thing, or the batches of a piece one by one. Where ``ahead`` is 0
      neither is called: batches are delivered as ``finish`` gave them.
    - ``describe`` says for the report how batches get to where they are used.
    - ``close`` lets go of everything; the adapter may be used again afterwards.
    """

    allocate: Callable[[int], Bytes] | None = None
    threads: int | None = None  # how many make batches fastest, if that is known
    ahead: int = 0  # batches that are sent before they are due
    together: int = 8 << 20  # bytes of small batches that are worth making at a time
    joint: bool = False  # are they taken in one piece?
    growth: float = 0.0  # bytes that ``finish`` takes for every byte of a batch that it is given
    held: int = 0  # bytes of delivered batches that the framework itself may hold

    def __init__(self, structure: Structure = ALL) -> None:
        self.structure = structure

    def source(self, host: HostSource) -> Source:
        """Where stored fields come from."""
        return host

    def finish(self, made: dict[str, Any]) -> Any:  # noqa: ANN401
        """In the thread that made the batch."""
        return self.structure.build(made)

    def send(self, made: Any) -> Sequence[Any]:  # noqa: ANN401
        """In the consumer's thread, some batches ahead."""
        return (made,)

    def receive(self, made: Any) -> Any:  # noqa: ANN401
        """In the consumer's thread, when the batch is due."""
        return made

    def describe(self) -> str:
        """How batches get to where they are used; nothing if they are where they were read."""
        return ""

    def close(self) -> None:
        """Let go of everything."""


class Arrays(Adapter):
    """For frameworks that are handed arrays, whatever maps made."""

    def finish(self, made: dict[str, Any]) -> Any:  # noqa: ANN401
        """Nothing but arrays."""
        return self.structure.build(as_arrays(self.structure.pick(made)))


class Encoded(Arrays):
    """The same, text as UTF-8."""

    def finish(self, made: dict[str, Any]) -> Any:  # noqa: ANN401
        """Nothing but arrays, of bytes where they are text."""
        return super().finish({name: encoded(values) for name, values in made.items()})
