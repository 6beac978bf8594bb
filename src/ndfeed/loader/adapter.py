"""What a framework adds to a loader: memory of its own kind, and batches of its own kind."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ndfeed.loader.fill import Source
from ndfeed.loader.host import Host
from ndfeed.loader.pool import Bytes


class Adapter(Protocol):
    """One for every process that a loader is used in, made when it is first iterated there.

    - ``allocate`` makes memory for batches, or is nothing where any memory will do.
    - ``source`` may put something in the place of what reads into host memory.
    - ``joint`` says that batches which were read together are taken in one piece, as ``Several``;
      only where no field is ragged, and only if there are several. With maps, ``finish`` gives
      dicts of arrays then, or they stay alone.
    - ``finish`` is called with every batch by the thread that made it; ``send`` with what that
      gave by the consumer, ``ahead`` batches before it is due; ``receive`` when it is due, with
      what ``send`` gave: one thing, or the batches of a piece one by one.
    - ``describe`` says for the report how batches get to where they are used.
    - ``close`` lets go of everything; the adapter may be used again afterwards.
    """

    allocate: Callable[[int], Bytes] | None
    threads: int | None  # how many make batches fastest, if that is known
    ahead: int  # batches that are sent before they are due
    together: int  # bytes of small batches that are worth making at a time
    joint: bool  # are they taken in one piece?
    held: int  # bytes of delivered batches that the framework itself may hold

    def source(self, host: Host) -> Source:
        """Where stored fields come from."""
        ...

    def finish(self, made: Any) -> Any:  # noqa: ANN401
        """In the thread that made the batch."""
        ...

    def send(self, made: Any) -> Sequence[Any]:  # noqa: ANN401
        """In the consumer's thread, some batches ahead."""
        ...

    def receive(self, made: Any) -> Any:  # noqa: ANN401
        """In the consumer's thread, when the batch is due."""
        ...

    def describe(self) -> str:
        """How batches get to where they are used."""
        ...

    def close(self) -> None:
        """Let go of everything."""
        ...
