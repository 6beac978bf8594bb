"""Create, fill, sync and lock files.

``files.write`` and ``files.folder`` make every call with which packing changes the disk, as
``os.…``, so that tests can count the calls, make each fail, and end the process at each.

A file is created exclusively. An existing one is written to only if it is a plain file without
other hard links: nothing is ever written through a symbolic or hard link. With ``at``, the
descriptor of an open folder, the last part of ``path`` is looked up there and the rest of it is
only for messages.

Data that must survive a crash of the machine is synced: a file's bytes by ``Output.sync``, names in
a folder by ``Folder.sync``. A failed sync has lost bytes, and a second one would not report it,
since the system forgets which they were. So there is no second one: what was written since the last
successful sync counts as not written.

A lock belongs to an open file and ends with its process, however that ends. It never depends on
whether some file exists or how old it is. If the file system has no locks, ``Lock`` says so;
code that relies on it must be correct without.
"""

import contextlib
import errno
import os
import secrets
import stat
import threading
import weakref
from typing import NoReturn, Self

from ndfeed.errors import ConflictError, DeniedError, MissingError, SpaceError, TargetError
from ndfeed.files.platform_calls import MOST_PER_CALL, can, fcntl, pread

FLAGS = (
    getattr(os, "O_BINARY", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NOCTTY", 0)
)
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_TRIES = 100
_NOT_ALLOCATED = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
_seek = threading.Lock()


def refuse(path: bytes, doing: str, error: OSError) -> NoReturn:
    """Raise ``error`` again as one of ours, with the file first."""
    if error.errno in _NO_SPACE:
        raise SpaceError(path, f"no space left to {doing} ({error.strerror})") from None
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        raise DeniedError(
            path, f"no permission to {doing}", remedy="make it writable for this user"
        ) from None
    if error.errno == errno.ENOENT:
        raise MissingError(
            path, f"cannot {doing}: the file or its folder no longer exists"
        ) from None
    if error.errno == errno.ELOOP:
        raise not_ours(path, "a symbolic link, which is not followed") from None
    raise TargetError(path, f"cannot {doing}: {error.strerror or error}") from error


def not_ours(path: bytes, what: str) -> ConflictError:
    """Make the error for something that is in the way and was not made by ndfeed."""
    return ConflictError(path, f"{what}, and was not made by ndfeed", remedy="move it away")


def _open_plain(path: bytes, at: int | None, new: bool) -> int:
    """Open a plain file to read and write; with ``new`` it is created if it is missing."""
    name = path if at is None else os.path.basename(path)
    for _ in range(_TRIES):
        if new:
            with contextlib.suppress(FileExistsError):
                flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | FLAGS
                return os.open(name, flags, 0o666, dir_fd=at)
        try:
            fd = os.open(name, os.O_RDWR | FLAGS, dir_fd=at)
        except FileNotFoundError:  # removed in between
            if not new:
                raise
            continue
        try:
            check_plain(path, os.fstat(fd))
            if not can.beneath:  # links may have been followed
                named = os.lstat(path)
                check_plain(path, named)
                if not os.path.samestat(named, os.fstat(fd)):
                    raise not_ours(path, "a symbolic link, which is not followed")
        except BaseException:
            os.close(fd)
            raise
        return fd
    raise ConflictError(path, "others keep creating and removing it", remedy="wait for them")


def check_plain(path: bytes, status: os.stat_result) -> None:
    """Refuse anything but a plain file without other hard links."""
    if stat.S_ISLNK(status.st_mode):
        raise not_ours(path, "a symbolic link, which is not followed")
    if not stat.S_ISREG(status.st_mode):
        raise not_ours(path, "no plain file")
    if status.st_nlink > 1:
        raise not_ours(path, "a hard link, which has other names elsewhere")


class Output:
    """A file that is written by position. Use as a context manager; thread-safe.

    ``new`` makes the file if it is missing; its contents stay.
    """

    __slots__ = ("_lost", "fd", "path")

    def __init__(self, path: bytes, *, new: bool = False, at: int | None = None) -> None:
        self.path = path
        self._lost = False
        try:
            self.fd = _open_plain(path, at, new)
        except ConflictError:
            raise
        except OSError as error:
            refuse(path, "create it" if new else "open it for writing", error)

    def allocate(self, size: int) -> None:
        """Give the file ``size`` bytes, and reserve disk space for them if possible."""
        try:
            if can.allocate and size:
                try:
                    os.posix_fallocate(self.fd, 0, size)
                except OSError as error:
                    if error.errno not in _NOT_ALLOCATED:
                        raise
            os.ftruncate(self.fd, size)
        except OSError as error:
            refuse(self.path, f"reserve {size:,} bytes", error)

    def write(self, start: int, data: memoryview | bytes) -> None:
        """Write all of ``data``, which is bytes, at ``start``."""
        rest = memoryview(data)
        try:
            while rest:
                done = _pwrite(self.fd, rest[:MOST_PER_CALL], start)
                if done <= 0:
                    raise OSError(errno.EIO, "nothing was written")
                start += done
                rest = rest[done:]
        except OSError as error:
            refuse(self.path, "write to it", error)

    def read(self, start: int, length: int) -> bytes:
        """Read bytes that were written, or were there before."""
        try:
            data = pread(self.fd, length, start)
        except OSError as error:
            refuse(self.path, "read it", error)
        if len(data) != length:
            raise TargetError(self.path, f"expected {start + length} bytes, found fewer")
        return data

    def sync(self) -> None:
        """Sync what was written to disk. Once it has failed, it always fails."""
        if self._lost:
            raise TargetError(self.path, "its last sync failed: what was written to it is lost")
        try:
            os.fsync(self.fd)
        except OSError as error:
            self._lost = True
            refuse(self.path, "sync it", error)

    def close(self) -> None:
        """Close the descriptor; may be repeated."""
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            try:
                os.close(fd)
            except OSError as error:
                refuse(self.path, "close it", error)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, *_: object) -> None:
        if error is None:
            self.close()
        else:
            with contextlib.suppress(OSError):  # the first error is the one to report
                self.close()


def _pwrite(fd: int, data: memoryview, start: int) -> int:
    if can.pwrite:
        return os.pwrite(fd, data, start)
    with _seek:  # a descriptor has one offset: nobody may move it in between
        os.lseek(fd, start, os.SEEK_SET)
        return os.write(fd, data)


def write_file(path: bytes, data: bytes) -> None:
    """Make ``path`` hold ``data``, completely or not at all; the folder is not synced.

    Until then the file has a name that nobody can have prepared.
    """
    folder, name = os.path.split(path)
    beside = os.path.join(folder, b".%s.%s" % (name[:100], secrets.token_hex(8).encode()))
    try:
        with Output(beside, new=True) as file:
            file.allocate(len(data))
            file.write(0, data)
            file.sync()
        try:
            os.replace(beside, path)
        except OSError as error:
            refuse(path, "rename to it", error)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(beside)
        raise


def present(path: bytes) -> bool:
    """Return whether there is anything of that name."""
    return os.path.lexists(path)


def free_bytes(path: bytes) -> int | None:
    """Return how many bytes may still be written to the disk of ``path``, if known."""
    try:
        found = os.statvfs(path)
    except (AttributeError, OSError):
        return None
    return found.f_bavail * found.f_frsize


class Lock:
    """A lock on a file, which is made if necessary: ``held``, or ``None`` if locks do not work.

    ``ConflictError``, or what is given as ``refused``, if somebody else has it. A forked child
    does not keep it.
    """

    __slots__ = ("__weakref__", "_at", "fd", "held", "path")

    def __init__(
        self, path: bytes, *, at: int | None = None, refused: ConflictError | None = None
    ) -> None:
        self.path = path
        self._at = at
        self.held: bool | None = None
        try:
            self.fd = _open_plain(path, at, new=True)
        except ConflictError:
            raise
        except OSError as error:
            refuse(path, "create it", error)
        try:
            if can.lock:
                self.held = self._take(refused)
        except BaseException:
            self.drop()
            raise
        _locks.add(self)

    def _take(self, refused: ConflictError | None) -> bool | None:
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            busy = ConflictError(self.path, "another process writes here", remedy="wait for it")
            raise refused or busy from None
        except OSError:  # not on this file system
            return None
        return True

    def current(self) -> bool:
        """Return whether the file still has its name; otherwise it was removed before locking."""
        name = self.path if self._at is None else os.path.basename(self.path)
        try:
            named = os.stat(name, dir_fd=self._at, follow_symlinks=False)
            return os.path.samestat(named, os.fstat(self.fd))
        except FileNotFoundError:
            return False
        except OSError as error:
            refuse(self.path, "access it", error)

    def release(self) -> None:
        """Release the lock; may be repeated."""
        if self.held and self.fd >= 0:
            with contextlib.suppress(OSError):
                fcntl.flock(self.fd, fcntl.LOCK_UN)
        self.drop()

    def drop(self) -> None:
        """Close the descriptor without unlocking, as a forked child must."""
        fd, self.fd = self.fd, -1
        _locks.discard(self)
        if fd >= 0:
            with contextlib.suppress(OSError):  # the descriptor and its lock are gone
                os.close(fd)


_locks: "weakref.WeakSet[Lock]" = weakref.WeakSet()


def _in_forked_child() -> None:
    """Close inherited locks: a lock lasts until its last descriptor is closed."""
    for lock in list(_locks):
        lock.drop()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_forked_child)
