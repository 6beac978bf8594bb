"""What a loader of arrays is told where its batches go to TensorFlow."""

from collections.abc import Callable, Sequence
from typing import Any

from ndfeed.loader.fill import Source
from ndfeed.loader.host import Host
from ndfeed.loader.pool import Bytes


class Pieces:
    """Small batches come several in one piece.

    To cross into TensorFlow costs some 100 µs however little is handed over, and there a piece
    is cut for less. TensorFlow takes the memory of arrays as it is where it begins at a multiple
    of 64 bytes, which memory of a megabyte or more from the pool does.
    """

    allocate: Callable[[int], Bytes] | None = None
    threads: int | None = None
    ahead = 0

    def __init__(self, together: int, joint: bool, held: int) -> None:
        self.together = together
        self.joint = joint
        self.held = held

    def source(self, host: Host) -> Source:
        """The files."""
        return host

    def finish(self, made: Any) -> Any:  # noqa: ANN401
        """The same."""
        return made

    def send(self, made: Any) -> Sequence[Any]:  # noqa: ANN401
        """The same."""
        return (made,)

    def receive(self, made: Any) -> Any:  # noqa: ANN401
        """The same."""
        return made

    def describe(self) -> str:
        """How they are handed over."""
        return "TensorFlow is handed several batches at a time" if self.joint else ""

    def close(self) -> None:
        """There is nothing to let go of."""
