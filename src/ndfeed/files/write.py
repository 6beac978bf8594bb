"""Write: the one module from which files and folders are made, filled, renamed and removed.

Every such call of this package's is made here, as ``os.…``, so that tests can count them, let
each fail and end the process at each.

What must outlast the machine is synced: a file's bytes by ``Output.sync``, names in a folder by
``sync_folder``. A sync that fails has lost bytes that a second one would not miss: the system
forgets which they were. So there is no second one: what was written since the last good sync
counts as not written.

A lock belongs to an open file and ends with its process, however that ends. It is never a
matter of whether some file exists or how old it is. Where the file system has no locks
``Lock`` says so; whoever relies on it must be right without.
"""

import contextlib
import errno
import os
import stat
import threading
import weakref
from typing import NoReturn, Self

from ndfeed.errors import ConflictError, DeniedError, MissingError, SpaceError, TargetError
from ndfeed.files.system import MOST_PER_CALL, can, fcntl

_BINARY = getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_OCCUPIED = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR, errno.EISDIR)
_NOT_ALLOCATED = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
_seek = threading.Lock()


def refuse(path: bytes, doing: str, error: OSError) -> NoReturn:
    """Raise ``error`` again as one of ours, with the file first."""
    if error.errno in _NO_SPACE:
        raise SpaceError(path, f"no space left to {doing} ({error.strerror})") from None
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        raise DeniedError(path, f"may not {doing}; give yourself write access") from None
    if error.errno == errno.ENOENT:
        raise MissingError(path, f"gone, or its folder is: cannot {doing}") from None
    raise TargetError(path, f"cannot {doing}: {error.strerror or error}") from error


class Output:
    """A file that is written by position. Use as a context manager; safe from several threads.

    ``new`` makes the file if it is not there; what is in it stays.
    """

    __slots__ = ("_lost", "fd", "path")

    def __init__(self, path: bytes, *, new: bool = False) -> None:
        self.path = path
        self._lost = False
        flags = os.O_RDWR | _BINARY | (os.O_CREAT if new else 0)
        try:
            self.fd = os.open(path, flags, 0o666)
        except OSError as error:
            refuse(path, "create it" if new else "open it for writing", error)

    def allocate(self, size: int) -> None:
        """Give the file ``size`` bytes, and have the disk keep room for them if it can."""
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
        """Put all of ``data``, which is bytes, at ``start``."""
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

    def sync(self) -> None:
        """Have the disk hold what was written. Once it has failed it fails for good."""
        if self._lost:
            raise TargetError(self.path, "its last sync failed: what was written to it is lost")
        try:
            os.fsync(self.fd)
        except OSError as error:
            self._lost = True
            refuse(self.path, "sync it", error)

    def close(self) -> None:
        """Close the descriptor; harmless the second time."""
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
            with contextlib.suppress(OSError):  # the first error is the one to tell
                self.close()


def _pwrite(fd: int, data: memoryview, start: int) -> int:
    if can.pwrite:
        return os.pwrite(fd, data, start)
    with _seek:  # one offset per descriptor: nobody may move it in between
        os.lseek(fd, start, os.SEEK_SET)
        return os.write(fd, data)


def write_file(path: bytes, data: bytes) -> None:
    """Make ``path`` hold ``data``, whole or not at all; the folder is not synced."""
    beside = path + b".new"
    with Output(beside, new=True) as file:
        file.allocate(len(data))
        file.write(0, data)
        file.sync()
    rename(beside, path)


def rename(old: bytes, new: bytes) -> None:
    """Give a file another name, in place of a file that has it."""
    try:
        os.replace(old, new)
    except OSError as error:
        refuse(new, "rename to it", error)


def move_folder(old: bytes, new: bytes) -> None:
    """Give a folder another name, unless there is anything but an empty folder of that name."""
    try:
        os.rename(old, new)
    except OSError as error:
        if error.errno in _OCCUPIED:
            raise ConflictError(new, "is there already; remove it or choose another") from None
        refuse(new, "rename a folder to it", error)


def make_folder(path: bytes) -> None:
    """Make a folder, if it is not there already."""
    try:
        os.mkdir(path)
    except FileExistsError:
        return
    except OSError as error:
        refuse(path, "make this folder", error)


def sync_folder(path: bytes) -> None:
    """Have the disk hold which names are in a folder."""
    if os.name == "nt":  # folders cannot be opened there
        return
    try:
        fd = os.open(path, os.O_RDONLY | _BINARY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system without syncing of folders
            refuse(path, "sync this folder", error)


def names(path: bytes) -> list[bytes]:
    """The names in a folder, sorted; none where there is no such folder."""
    try:
        return sorted(os.listdir(path))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        refuse(path, "list this folder", error)


def present(path: bytes) -> bool:
    """Is there anything of that name?"""
    return os.path.lexists(path)


def remove(path: bytes) -> None:
    """Remove a file, if it is there."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
    except OSError as error:
        refuse(path, "remove it", error)


def remove_folder(path: bytes, last: bytes = b"") -> None:
    """Remove a folder with all in it, if it is there; the file ``last`` behind all others."""
    for name in sorted(names(path), key=lambda name: name == last):
        inner = os.path.join(path, name)
        if stat.S_ISDIR(os.lstat(inner).st_mode):
            remove_folder(inner)
        else:
            remove(inner)
    try:
        os.rmdir(path)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
            refuse(path, "remove this folder", error)  # else somebody else works there


def free_bytes(path: bytes) -> int | None:
    """Bytes that may still be written to the disk of ``path``, where that can be asked."""
    try:
        found = os.statvfs(path)
    except (AttributeError, OSError):
        return None
    return found.f_bavail * found.f_frsize


class Lock:
    """A lock on a file, which is made if need be: ``held``, or of no use here (``None``).

    ``ConflictError`` where somebody else has it. A forked child does not keep it.
    """

    __slots__ = ("__weakref__", "fd", "held", "path")

    def __init__(self, path: bytes) -> None:
        self.path = path
        self.held: bool | None = None
        try:
            self.fd = os.open(path, os.O_RDWR | os.O_CREAT | _BINARY, 0o666)
        except OSError as error:
            refuse(path, "create it", error)
        try:
            if can.lock:
                self.held = self._taken()
        except BaseException:
            os.close(self.fd)
            raise
        _locks.add(self)

    def _taken(self) -> bool | None:
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConflictError(self.path, "another process writes here; wait for it") from None
        except OSError:  # not on this file system
            return None
        return True

    def current(self) -> bool:
        """Is the file still the one of that name? Else somebody removed it before it was ours."""
        try:
            named, own = os.stat(self.path), os.fstat(self.fd)
        except FileNotFoundError:
            return False
        return (named.st_dev, named.st_ino) == (own.st_dev, own.st_ino)

    def release(self) -> None:
        """Let go of the lock; harmless the second time."""
        if self.held and self.fd >= 0:
            with contextlib.suppress(OSError):
                fcntl.flock(self.fd, fcntl.LOCK_UN)
        self.drop()

    def drop(self) -> None:
        """Have no part in the lock any more, as a child that was forked with it."""
        fd, self.fd = self.fd, -1
        _locks.discard(self)
        if fd >= 0:
            with contextlib.suppress(OSError):  # the descriptor is gone, and the lock with it
                os.close(fd)


_locks: "weakref.WeakSet[Lock]" = weakref.WeakSet()


def _in_forked_child() -> None:
    """A lock goes with the last descriptor of its open file: a child must not have one."""
    for lock in list(_locks):
        lock.drop()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_forked_child)
