"""What the disk gives: the bytes of some samples, read by many threads at once."""

import itertools
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ndfeed.dataset import ahead
from ndfeed.dataset.dataset import Dataset
from ndfeed.dataset.rowset import chosen
from ndfeed.files import advise
from ndfeed.files.file import File

ASKING = 16  # threads: a disk answers many questions at once sooner than one after the other
_AT_ONCE = 1 << 20
_TOGETHER = 64  # stretches that a thread takes at a time
_LOOKS = 32
_TELLINGS = 5  # what was just read or written is not let go of at once


class Piece(NamedTuple):
    """Stretches of one file."""

    path: bytes
    stretches: Sequence[tuple[int, int]]


class Given(NamedTuple):
    """What was read, and in which time."""

    nbytes: int
    seconds: float


def pieces(ds: Dataset, rows: NDArray[np.int64]) -> list[Piece]:
    """Where samples lie in files, in pieces that threads can share."""
    samples = chosen(ds.rows, rows)
    found = []
    for group in ds.groups:
        if group.table.sealed:
            continue
        for path, stretches in ahead.stretches(group, samples):
            short = list(itertools.chain.from_iterable(map(_cut, stretches)))
            found += [
                Piece(path, short[at : at + _TOGETHER]) for at in range(0, len(short), _TOGETHER)
            ]
    return found


def _cut(stretch: tuple[int, int]) -> list[tuple[int, int]]:
    start, end = stretch
    return [(at, min(at + _AT_ONCE, end)) for at in range(start, end, _AT_ONCE)]


def nbytes(found: Sequence[Piece]) -> int:
    """Bytes of all stretches, in whole pages."""
    return sum(end - start for piece in found for start, end in piece.stretches)


def drop(found: Sequence[Piece]) -> None:
    """Have the system forget its copies of these files, where it can."""
    for _ in range(_TELLINGS):
        for path in dict.fromkeys(piece.path for piece in found):
            with File(path) as file:
                advise.drop(file.fd)
        if is_cold(found):
            return


def is_cold(found: Sequence[Piece]) -> bool:
    """Are most of these stretches not in memory?

    Places are others every time: the system takes a look for a wish, and begins to read there.
    """
    if not found:
        return False
    rng = np.random.default_rng()
    missing = 0
    for at in rng.integers(len(found), size=_LOOKS):
        start, end = found[at].stretches[rng.integers(len(found[at].stretches))]
        with File(found[at].path) as file:
            missing += not advise.resident(file.fd, rng.integers(start, min(end, file.size)))
    return 2 * missing > _LOOKS


def read(found: Sequence[Piece], seconds: float, threads: int) -> Given:
    """Read stretches until all are read or so many seconds have passed."""
    began = time.perf_counter()
    until = began + seconds

    def some(mine: Sequence[Piece]) -> int:
        done = 0
        for piece in mine:
            if time.perf_counter() > until:
                break
            done += _read(piece)
        return done

    with ThreadPoolExecutor(threads) as pool:
        done = sum(pool.map(some, (found[first::threads] for first in range(threads))))
    return Given(done, time.perf_counter() - began)


def _read(piece: Piece) -> int:
    buffer = memoryview(bytearray(max(end - start for start, end in piece.stretches)))
    done = 0
    with File(piece.path) as file:
        for start, end in piece.stretches:
            length = min(end, file.size) - start  # pages reach beyond the end
            if length > 0:
                file.read_into(start, [buffer[:length]])
                done += end - start
    return done
