"""Platform capabilities, reading by position, and hints for the page cache.

Only ``can`` knows the platform's capabilities. Everything works with every capability switched
off, only slower; the tests switch them off one by one.

Prefetching into the page cache is a hint: without it, reading works as before.
"""

import contextlib
import functools
import mmap
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ndfeed.errors import ResourceError
from ndfeed.files import limits

try:
    import fcntl as fcntl
    import resource as resource
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]
    resource = None  # type: ignore[assignment]
try:
    import ctypes  # NumPy has imported it already
except ImportError:  # an interpreter without libffi
    ctypes = None  # type: ignore[assignment]

# Linux copies at most 0x7ffff000 bytes per call; requesting less keeps every call complete.
MOST_PER_CALL = 1 << 30
MOST_BUFFERS = 512  # Linux takes 1024 per call
_DEFAULT_FILES = 1024
# Allocations of at least this size check whether the memory is available.
LARGE = 32 << 20
PAGE = mmap.PAGESIZE
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt
_MOST_KEPT = 32 << 20  # bytes that a process keeps for its next arrays
_FREED = 8 << 20  # bytes of an array that a program may well have freed before
MORE_MEMORY = "read fewer samples at a time, or raise the limit (ulimit -v, the container's memory)"


# Where the layouts and numbers of C are known that are used here and in ``map_guard``.
_KNOWN = sys.platform == "linux" and os.uname().machine in ("x86_64", "aarch64")


@dataclass
class Capabilities:
    """Calls that some platform lacks."""

    pread: bool = hasattr(os, "pread")
    preadv: bool = hasattr(os, "preadv")
    lease: bool = hasattr(fcntl, "F_SETLEASE")
    memfd: bool = hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd")
    untracked_maps: bool = sys.version_info >= (3, 13)
    probe: bool = hasattr(os, "preadv") and hasattr(os, "RWF_NOWAIT")
    advise: bool = hasattr(os, "posix_fadvise")
    pwrite: bool = hasattr(os, "pwrite")
    allocate: bool = hasattr(os, "posix_fallocate")
    lock: bool = hasattr(fcntl, "flock")
    # Names looked up relative to an open folder, without following links.
    beneath: bool = {os.open, os.unlink, os.rename} <= os.supports_dir_fd
    catch_sigbus: bool = _KNOWN and ctypes is not None
    place_maps: bool = _KNOWN and ctypes is not None
    tune_malloc: bool = _KNOWN and ctypes is not None
    maps_keep_size: bool = sys.platform == "win32"  # nobody can truncate a file that is mapped
    scratch: bool = True  # temporary files on a disk
    # Anonymous memory whose pages can be released one by one. Elsewhere MADV_DONTNEED keeps them.
    sparse: bool = sys.platform == "linux" and hasattr(mmap, "MADV_DONTNEED")


can = Capabilities()
_seek = threading.Lock()

# Seconds by a clock that also runs while the machine is suspended, where there is one.
elapsed: Callable[[], float] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME)
    if hasattr(time, "CLOCK_BOOTTIME")
    else time.monotonic
)


def pread(fd: int, length: int, start: int) -> bytes:
    """Read up to ``length`` bytes from ``start``; fewer only at the end of the file."""
    if can.pread and length <= MOST_PER_CALL:
        data = os.pread(fd, length, start)
        if len(data) == length or not data:
            return data
    buffer = bytearray(length)
    return bytes(buffer[: preadv(fd, [memoryview(buffer)], start)])


def preadv(fd: int, buffers: Sequence[memoryview], start: int) -> int:
    """Fill ``buffers`` in turn from ``start``; the count falls short only at the file's end."""
    if can.preadv and len(buffers) <= MOST_BUFFERS:
        wanted = sum(map(len, buffers))
        if wanted <= MOST_PER_CALL:
            done = os.preadv(fd, buffers, start)
            if done == wanted or not done:
                return done
    done = 0
    for buffer in buffers:
        part = _read_one(fd, buffer, start + done)
        done += part
        if part < len(buffer):
            break
    return done


def _read_one(fd: int, buffer: memoryview, start: int) -> int:
    done = 0
    while done < len(buffer):
        piece = buffer[done : done + MOST_PER_CALL]
        if can.preadv:
            count = os.preadv(fd, [piece], start + done)
        elif can.pread:
            data = os.pread(fd, len(piece), start + done)
            count = len(data)
            piece[:count] = data
        else:
            with _seek:  # one offset per descriptor: nobody may move it in between
                os.lseek(fd, start + done, os.SEEK_SET)
                data = os.read(fd, len(piece))
            count = len(data)
            piece[:count] = data
        if not count:
            break
        done += count
    return done


def map_whole(fd: int) -> mmap.mmap:
    """Map the file read-only. From Python 3.13 on the map keeps no descriptor."""
    if sys.version_info >= (3, 13) and can.untracked_maps and sys.platform != "win32":
        return mmap.mmap(fd, 0, prot=mmap.PROT_READ, trackfd=False)
    return mmap.mmap(fd, 0, access=mmap.ACCESS_READ)


def fill_holes_singly(fd: int, memory: mmap.mmap, start: int, size: int) -> None:
    """Have pages of a map come one at a time if its file consists mostly of holes.

    With every page that is touched, the system fills as many around it as the disk reads ahead,
    megabytes on some disks. Other files are prefetched, but holes count as in memory.
    """
    stored = getattr(os.fstat(fd), "st_blocks", size) * 512
    if 2 * stored < size and _has_hole(fd, size) and hasattr(mmap, "MADV_RANDOM"):
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_RANDOM, start, size)


def _has_hole(fd: int, size: int) -> bool:
    """Is there a hole? Files that the disk compresses take few blocks, too."""
    with contextlib.suppress(AttributeError, OSError), _seek:
        return os.lseek(fd, 0, os.SEEK_HOLE) < size
    return False


@functools.cache
def find_mmap() -> Any:  # noqa: ANN401 - a C function
    """Return the C function that maps at an address, which Python's own does not."""
    found = ctypes.PyDLL(None).mmap
    word, number = ctypes.c_size_t, ctypes.c_int
    found.argtypes = (word, word, number, number, number, ctypes.c_long)
    found.restype = ctypes.c_ssize_t
    return found


def keep_freed_memory() -> None:
    """Let this process keep memory that it frees: for a worker process of ours.

    glibc returns that of large arrays to the system, which clears it again page by page when the
    next array is made. A function that makes some arrays per sample takes twice as long for it.
    """
    if can.tune_malloc and hasattr(library := ctypes.PyDLL(None), "mallopt"):  # musl has none
        library.mallopt(_MMAP_THRESHOLD, _MOST_KEPT)
        library.mallopt(_TRIM_THRESHOLD, _MOST_KEPT)


def keep_some_freed_memory() -> None:
    """Let this process keep some of the memory that it frees, as one that has freed 8 MB does.

    What glibc keeps for new arrays is twice as much as the largest one that was freed. If batches
    are all that is large, and come from a pool, each thread clears memory for every small array.
    """
    np.empty(_FREED, np.uint8)


def private_memory(size: int) -> mmap.mmap:
    """Allocate ``size`` bytes, in large pages where possible; dropping them frees the memory."""
    require_memory(size)
    try:
        made = mmap.mmap(-1, size)
    except OSError:
        raise out_of_memory(size) from None
    if hasattr(mmap, "MADV_HUGEPAGE"):
        try:
            made.madvise(mmap.MADV_HUGEPAGE)
        except OSError:  # the system has none
            return made
    return made


def require_memory(size: int, path: str | bytes = "memory") -> None:
    """Refuse more memory than is available, before the system kills the process for it.

    Only large sizes are checked: a check takes as long as filling a megabyte or two.
    """
    if size >= LARGE:
        free = free_memory()
        if free is not None and size > free:
            raise out_of_memory(size, path, free)


def translate_os_error(error: MemoryError, path: str | bytes, what: str) -> ResourceError:
    """Convert a failed allocation to an error that says what it was for."""
    if isinstance(error, ResourceError):
        return error
    free = free_memory()
    known = "" if free is None else f", {free / 1e6:,.0f} MB are free"
    return ResourceError(path, f"not enough memory for {what}{known}", remedy=MORE_MEMORY)


def out_of_memory(
    size: int, path: str | bytes = "memory", free: int | None = None
) -> ResourceError:
    """Make the error for ``size`` bytes of memory that are not available."""
    if free is None:
        free = free_memory()
    known = "" if free is None else f", {free / 1e6:,.0f} MB are free"
    return ResourceError(path, f"{size / 1e6:,.0f} MB of memory needed{known}", remedy=MORE_MEMORY)


def open_files_limit() -> int:
    """Return how many descriptors this process may have open."""
    if resource is None:
        return _DEFAULT_FILES
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 20 if soft == resource.RLIM_INFINITY else int(soft)


def waits() -> int:
    """Return how often this thread has waited for a disk, a network or another thread."""
    if not hasattr(resource, "RUSAGE_THREAD"):
        return 0
    return int(resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw)


def free_memory() -> int | None:
    """Return the bytes available to this process without swapping; ``None`` if not known."""
    return limits.free_memory()


def disk_bytes() -> int | None:
    """Return the bytes that this process has read from disks so far, if that is known."""
    return limits.facts_of("/proc/self/io").get("read_bytes:")


def cores() -> int:
    """Return how many processors this process may use."""
    return limits.cores()


# How many ranks a launcher has started on this host: torchrun and its like, Open MPI, other MPIs,
# and srun, which says "4(x2)" for four on each of two hosts.
_RANKS = (
    "LOCAL_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MPI_LOCALNRANKS",
    "SLURM_STEP_TASKS_PER_NODE",
)


def share_of_cores() -> int:
    """Return how many cores this process may use: its share of them, if the host has ranks."""
    own = cores()
    told = (os.environ.get(name, "").partition("(")[0] for name in _RANKS)
    ranks = next((int(one) for one in told if one.isdecimal()), 1)
    if ranks < 2:
        return own
    # Launchers may have bound each rank to cores of its own, which are not to be divided again.
    return max(min(own, max(own, limits.cores_of_parent()) // ranks), 1)


def memory_bytes() -> int:
    """Return the memory that this process may have: the machine's, or less if limited."""
    return limits.memory()


_one = [bytearray(1)]  # what is read into it is never used


def resident(fd: int, offset: int) -> bool:
    """Return whether the byte at ``offset`` is in memory; true if that is not known."""
    if not can.probe:
        return True
    try:
        os.preadv(fd, _one, offset, os.RWF_NOWAIT)
    except BlockingIOError:
        return False
    except OSError:  # the file system does not support it
        return True
    return True


def will_need(fd: int, stretches: Iterable[tuple[int, int]]) -> None:
    """Start to read ranges, each from its start to its end, without waiting for them."""
    if not can.advise:
        return
    try:
        for start, end in stretches:
            os.posix_fadvise(fd, start, end - start, os.POSIX_FADV_WILLNEED)
    except OSError:
        return


def drop(fd: int) -> None:
    """Drop a file from the page cache, so that it is read from disk again.

    Only copies of what the disk has are dropped, and none that some process has mapped, so nobody
    reads different bytes. Does nothing if the platform cannot.
    """
    if not can.advise:
        return
    try:
        # All of it: a large page is dropped entirely or not at all.
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    except OSError:
        return
