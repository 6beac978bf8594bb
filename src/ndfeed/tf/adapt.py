"""What a loader of arrays is told where its batches go to TensorFlow."""

from ndfeed.loader.adapter import Arrays


class Pieces(Arrays):
    """Small batches come several in one piece.

    To cross into TensorFlow costs some 100 µs however little is handed over, and there a piece
    is cut for less. TensorFlow takes the memory of arrays as it is where it begins at a multiple
    of 64 bytes, which memory of a megabyte or more from the pool does.
    """

    def __init__(self, together: int, joint: bool, held: int) -> None:
        super().__init__()  # TensorFlow's tuples are made behind the cutting of pieces
        self.together = together
        self.joint = joint
        self.held = held

    def describe(self) -> str:
        """How they are handed over."""
        return "TensorFlow is handed several batches at a time" if self.joint else ""
