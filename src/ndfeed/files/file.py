"""One regular file, open for reading by position.

Size and identity come from ``fstat`` of the open descriptor, so what is checked is what is read.
Pipes, devices and folders are refused without waiting for them.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Sequence
from typing import NamedTuple, NoReturn, Self

from ndfeed.errors import ChangedError, DeniedError, MissingError, SourceError, TruncatedError
from ndfeed.files import platform_calls

# O_NONBLOCK: opening a pipe that nobody writes to would otherwise wait forever.
FLAGS = (
    os.O_RDONLY
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_NOCTTY", 0)
    | getattr(os, "O_BINARY", 0)
)
_HEAD = 1024
_VANISHED = (
    'it was there when the dataset was opened: restore it, call refresh(missing="skip"), or pass '
    'on_error="skip" to the loader'
)


class Identity(NamedTuple):
    """What must stay the same for a file to count as the same.

    ``ctime`` cannot be forged: restoring ``mtime`` after writing changes it. So does renaming or
    linking the file, or changing its owner or mode, without changing its data; these cannot be
    distinguished.
    """

    device: int
    inode: int
    size: int
    mtime: int
    ctime: int

    @classmethod
    def of(cls, status: os.stat_result) -> "Identity":
        """Return the identity that ``stat`` reports."""
        device, inode = signed(status.st_dev), signed(status.st_ino)
        return cls(device, inode, status.st_size, status.st_mtime_ns, status.st_ctime_ns)

    def same_data(self, other: "Identity") -> bool:
        """Return whether the two differ in ``ctime`` at most."""
        return self[:4] == other[:4]


def signed(number: int) -> int:
    """Convert an unsigned 64-bit number to the signed one of the same bits, for int64 tables."""
    return number if number < 1 << 63 else number - (1 << 64)


def refuse(path: str | bytes, error: OSError, *, indexed: bool = False) -> NoReturn:
    """Raise ``error`` again as one of ours, with the file first.

    ``indexed`` says that the file was there when its dataset was opened.
    """
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        raise MissingError(
            path, "no such file or folder", remedy=_VANISHED if indexed else None
        ) from None
    if error.errno in (errno.EACCES, errno.EPERM):
        raise DeniedError(
            path, "permission denied", remedy="make the file readable for this user"
        ) from None
    if error.errno == errno.ELOOP:
        raise SourceError(path, "a loop of symbolic links") from None
    if error.errno in (errno.EMFILE, errno.ENFILE):
        raise SourceError(
            path, "too many open files", remedy="raise the limit (ulimit -n)"
        ) from None
    raise SourceError(path, error.strerror or str(error)) from error


def changed(path: str | bytes, before: Identity, after: Identity) -> ChangedError:
    """Make the error for a file whose identity is no longer ``before``."""
    what = "replaced"
    if before.size != after.size:
        what = f"{before.size} bytes then, {after.size} now"
    elif before.same_data(after):
        what = "written to, renamed, linked, or given another owner or mode"
    elif (before.device, before.inode) == (after.device, after.inode):
        what = "written to since"
    return ChangedError(
        path, f"changed since it was indexed ({what})", remedy="open the dataset again"
    )


class Stretch(NamedTuple):
    """Bytes of one file to read into ``buffers`` one after the other; ``length`` in total."""

    path: bytes
    expected: Sequence[int]
    start: int
    buffers: Sequence[memoryview]
    length: int


def fetch(stretches: Iterable[Stretch]) -> None:
    """Open, read, check the identity, close: entire samples in four system calls each."""
    preadv = os.preadv if platform_calls.can.preadv else platform_calls.preadv
    for path, expected, start, buffers, length in stretches:
        try:
            fd = os.open(path, FLAGS)
        except OSError as error:
            refuse(path, error, indexed=True)
        try:
            done = preadv(fd, buffers, start) if len(buffers) <= platform_calls.MOST_BUFFERS else -1
            if done != length:  # interrupted, or more than the kernel copies in one call
                done = platform_calls.preadv(fd, buffers, start)
            # After the read: a writer changes the time first, so torn data is always detected.
            status = os.fstat(fd)
            if (
                status.st_mtime_ns != expected[3]
                or status.st_ctime_ns != expected[4]
                or status.st_size != expected[2]
                or status.st_ino != expected[1]
                or status.st_dev != expected[0]
            ):
                _expect(path, expected, status)
        except OSError as error:
            with contextlib.suppress(OSError):
                _expect(path, expected, os.fstat(fd))  # a folder or a pipe by now: the cause
            refuse(path, error)
        finally:
            close_quietly(fd)
        if done != length:
            problem = f"expected {start + length} bytes, found {start + done}"
            raise TruncatedError(path, problem, start)


def status_of(path: bytes, fd: int) -> os.stat_result:
    """Return the system's status of an open file."""
    try:
        return os.fstat(fd)
    except OSError as error:
        refuse(path, error)


def close_quietly(fd: int) -> None:
    """Close a descriptor that nothing was written to, ignoring errors."""
    try:
        os.close(fd)
    except OSError:
        return


def is_same(expected: Sequence[int], status: os.stat_result) -> bool:
    """Does ``status`` have this identity? ``False`` also for numbers of 2**63 and more."""
    return (
        status.st_mtime_ns == expected[3]
        and status.st_ctime_ns == expected[4]
        and status.st_size == expected[2]
        and status.st_ino == expected[1]
        and status.st_dev == expected[0]
    )


def _expect(path: bytes, expected: Sequence[int], status: os.stat_result) -> None:
    if is_same(expected, status):
        return
    before, after = Identity(*expected), Identity.of(status)
    if before == after:
        return
    if before.same_data(after) and not status.st_nlink:
        return  # deleted since it was opened, and still complete
    raise changed(path, before, after)


class File:
    """A regular file, open for reading by position. Use as a context manager, in one thread.

    ``head`` and ``tail`` are cached: what is within them is read once. With an identity in
    ``expected``, a file that differs when opened, or when closed at the end of the context, is a
    ``ChangedError``: what was read is consistent.
    """

    __slots__ = ("_expected", "_head", "_tail", "_tail_start", "fd", "path", "size", "status")

    def __init__(self, path: bytes, expected: Sequence[int] | None = None) -> None:
        try:
            self.fd = os.open(path, FLAGS)
        except OSError as error:
            refuse(path, error, indexed=expected is not None)
        try:
            self.status = status_of(path, self.fd)
            if expected is not None:
                _expect(path, expected, self.status)
            if not stat.S_ISREG(self.status.st_mode):
                kind = "a folder" if stat.S_ISDIR(self.status.st_mode) else "a pipe or device"
                raise SourceError(path, f"expected a regular file, found {kind}")
        except BaseException:
            close_quietly(self.fd)
            raise
        self.path = path
        self.size = self.status.st_size
        self._expected = expected
        self._head = self._tail = b""
        self._tail_start = self.size

    @property
    def identity(self) -> Identity:
        """This file's identity when it was opened."""
        return Identity.of(self.status)

    def head(self) -> bytes:
        """Return the first bytes: 1024, or all there are."""
        if not self._head:
            self._head = self._pread(min(_HEAD, self.size), 0)
        return self._head

    def tail(self, length: int) -> bytes:
        """Return the last ``length`` bytes, or all there are."""
        start = max(self.size - length, 0)
        if start < self._tail_start:
            self._tail = self.read(start, self.size - start)
            self._tail_start = start
        return self._tail[start - self._tail_start :]

    def read(self, start: int, length: int) -> bytes:
        """Read exactly ``length`` bytes from ``start``."""
        end = start + length
        if end <= len(self._head):
            return self._head[start:end]
        if end > self.size:
            raise TruncatedError(self.path, f"expected {end} bytes, found {self.size}", start)
        if start >= self._tail_start:
            return self._tail[start - self._tail_start : end - self._tail_start]
        return self._pread(length, start)

    def _pread(self, length: int, start: int) -> bytes:
        try:
            data = platform_calls.pread(self.fd, length, start)
        except OSError as error:
            refuse(self.path, error)
        if len(data) != length:
            raise TruncatedError(
                self.path, f"expected {start + length} bytes, found {start + len(data)}", start
            )
        return data

    def read_into(self, start: int, buffers: Sequence[memoryview]) -> None:
        """Fill ``buffers`` one after the other from ``start``."""
        try:
            done = platform_calls.preadv(self.fd, buffers, start)
        except OSError as error:
            refuse(self.path, error)
        wanted = sum(map(len, buffers))
        if done != wanted:
            raise TruncatedError(
                self.path, f"expected {start + wanted} bytes, found {start + done}", start
            )

    def recheck(self) -> None:
        """Compare the identity again while the file stays open: what was read may be torn."""
        if self._expected is not None:
            _expect(self.path, self._expected, status_of(self.path, self.fd))

    def close(self) -> None:
        """Close the descriptor; may be repeated."""
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            close_quietly(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            # Also after an error: bytes that changed meanwhile may look like any damage.
            if self._expected is not None:
                _expect(self.path, self._expected, status_of(self.path, self.fd))
        finally:
            self.close()


def behind_name(path: bytes, status: os.stat_result) -> Identity | None:
    """Return what now has the name of a file whose attributes changed; ``None`` if deleted.

    Deleting a file changes only its attributes; its bytes stay.
    """
    try:
        return Identity.of(os.stat(path))
    except OSError:
        return Identity.of(status) if status.st_nlink else None
