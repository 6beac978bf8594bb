"""Many paths in little more memory than their bytes.

A million paths in a list take some 100 MB. Here they lie end to end in one piece of memory, and
what all of them begin with is kept once. Paths are bytes: a file name need not be valid text.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, islice, pairwise
from typing import overload

import numpy as np
from numpy.typing import NDArray

_AT_ONCE = 4096


class Paths(Sequence[bytes]):
    """Paths in order, each beginning with ``base``. More may be put behind them."""

    __slots__ = ("_ends", "_text", "base")

    def __init__(self, paths: Iterable[bytes] = (), base: bytes = b"") -> None:
        self.base = base
        self._text = bytearray()
        self._ends = array("q", (0,))
        self.extend(paths)

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, index: int) -> bytes: ...

    @overload
    def __getitem__(self, index: slice) -> list[bytes]: ...

    def __getitem__(self, index: int | slice) -> bytes | list[bytes]:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step == 1:
                return self._between(start, max(start, stop))
            return [self[at] for at in range(start, stop, step)]
        at = range(len(self))[index]
        return self.base + bytes(self._text[self._ends[at] : self._ends[at + 1]])

    def __iter__(self) -> Iterator[bytes]:
        for start in range(0, len(self), _AT_ONCE):
            yield from self._between(start, min(start + _AT_ONCE, len(self)))

    def __reduce__(self) -> tuple[Callable[..., "Paths"], tuple[bytes, bytes, bytes]]:
        return _arrived, (self.base, bytes(self._text), self._ends.tobytes())

    def append(self, path: bytes) -> None:
        """Put one path at the end."""
        self.extend((path,))

    def extend(self, paths: Iterable[bytes], folder: bytes = b"") -> None:
        """Put ``paths`` at the end, or these names in a ``folder`` that begins with ``base``."""
        start = folder[len(self.base) :]
        cut = 0 if folder else len(self.base)
        left = iter(paths)
        while some := [path[cut:] for path in islice(left, _AT_ONCE)]:
            self._text += start.join((b"", *some))
            ends = accumulate((len(start) + len(path) for path in some), initial=self._ends[-1])
            self._ends.extend(islice(ends, 1, None))

    def chosen(self, which: NDArray[np.bool_]) -> "Paths":
        """Those that a mask marks."""
        found = Paths(base=self.base)
        for start in range(0, len(self), _AT_ONCE):
            marked = np.flatnonzero(which[start : start + _AT_ONCE]).tolist()
            some = self[start : start + _AT_ONCE] if marked else []
            found.extend(some[i] for i in marked)
        return found

    def text(self) -> tuple[memoryview, memoryview]:
        """All bytes behind ``base``, end to end, and where each path ends, from 0 on, as int64.

        Not copied: no path may be put behind them as long as these are used.
        """
        return memoryview(self._text), memoryview(self._ends)

    def _between(self, start: int, stop: int) -> list[bytes]:
        ends = self._ends[start : stop + 1]
        first, base = ends[0], self.base
        text = bytes(self._text[first : ends[-1]])
        return [base + text[a - first : b - first] for a, b in pairwise(ends)]


def _arrived(base: bytes, text: bytes, ends: bytes) -> Paths:
    made = Paths(base=base)
    made._text += text
    made._ends = array("q", ends)
    return made


def common_folder(paths: Iterable[bytes]) -> bytes:
    """The deepest folder that holds all ``paths``, with its slash; nothing if there is none."""
    low = high = None
    for path in paths:
        low = path if low is None or path < low else low
        high = path if high is None or path > high else high
    if low is None or high is None:
        return b""
    pairs = enumerate(zip(low, high, strict=False))
    same = next((i for i, (a, b) in pairs if a != b), min(len(low), len(high)))
    return low[: low.rfind(b"/", 0, same) + 1]
