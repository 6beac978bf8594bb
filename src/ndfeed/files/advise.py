"""Asking the system for bytes before they are read, where they are not in memory already.

All of it is a hint: where the platform or the file system lacks it, reading is as it was.
"""

import os
from collections.abc import Iterable

from ndfeed.files.system import can

_one = [bytearray(1)]  # what is read into it is never looked at


def resident(fd: int, offset: int) -> bool:
    """Is the byte at ``offset`` in memory? Yes where nobody can say."""
    if not can.probe:
        return True
    try:
        os.preadv(fd, _one, offset, os.RWF_NOWAIT)
    except BlockingIOError:
        return False
    except OSError:  # the file system does not know how to
        return True
    return True


def will_need(fd: int, stretches: Iterable[tuple[int, int]]) -> None:
    """Begin to read stretches, each from its start to its end, without waiting for them."""
    if not can.advise:
        return
    try:
        for start, end in stretches:
            os.posix_fadvise(fd, start, end - start, os.POSIX_FADV_WILLNEED)
    except OSError:
        return


def drop(fd: int) -> None:
    """Have the system forget what it keeps of a file in memory, so that a disk is read again.

    Only copies of what the disk has are given up, and none that some process has mapped: nobody
    reads other bytes, only later. Nothing where the platform cannot.
    """
    if not can.advise:
        return
    try:
        # All of it: what the system keeps in one large piece goes as a whole or not at all.
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    except OSError:
        return
