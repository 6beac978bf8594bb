"""Small private files of this user: written completely or not at all, trusted only if ours.

A cache folder may be shared, linked or prepared by somebody else. So a folder of ours is opened
once, must belong to this user and be writable for nobody else, and its contents are reached from
its descriptor, without following links. Files are created exclusively, under names that nobody
can guess, and only files with names of our own making are ever removed.
"""

import contextlib
import errno
import os
import re
import stat
import sys
from collections.abc import Iterable
from typing import Self

from ndfeed.files import platform_calls
from ndfeed.files.file import close_quietly
from ndfeed.files.write import refuse

_READ = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
_MAKE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
_PLAIN = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
_FOLDER = _READ | _PLAIN | getattr(os, "O_DIRECTORY", 0)
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
# What we write: caches are named by a digest, and by a random name until they are complete.
_OURS = re.compile(rb"[0-9a-f]{32}|\.tmp-[0-9a-z_]{8,16}")
_SECRET = 32
# Missing, a link, too long, or not private to this user; any other error is the disk's.
_NO_KEY = (errno.ENOENT, errno.ELOOP, errno.EFBIG, errno.EPERM)
# Errors of a folder in which nothing can be stored, rather than of the disk.
_NOT_KEPT = (
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT),
    *(errno.ENOENT, errno.ENOTDIR, errno.EEXIST, errno.ELOOP),
)


known: dict[bytes, bytes] = {}  # keys that were read, by cache folder


def cache_folder() -> bytes:
    """Return the folder for this user's caches on this platform."""
    chosen = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(chosen):  # the XDG specification says to ignore relative paths
        base = chosen
    elif sys.platform == "darwin":
        base = os.path.expanduser("~/Library/Caches")
    elif sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or os.path.expanduser("~\\AppData\\Local")
    else:
        base = os.path.expanduser("~/.cache")
    return os.fsencode(os.path.join(base, "ndfeed"))


class PrivateFolder:
    """A private folder of this user, held open. ``OSError`` if it is missing or not ours."""

    def __init__(self, path: bytes, *, make: bool = False) -> None:
        self._path = path
        self._fd: int | None = None
        if make:
            # Two calls: only the last folder gets the mode.
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                os.mkdir(path, 0o700)
        if not platform_calls.can.beneath:
            _check_own(os.lstat(path), stat.S_IFDIR)
            return
        self._fd = os.open(path, _FOLDER)
        try:
            _check_own(os.fstat(self._fd), stat.S_IFDIR)
        except BaseException:
            close_quietly(self._fd)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd is not None:
            close_quietly(self._fd)
            self._fd = None

    def _at(self, name: bytes) -> bytes:
        """Return ``name`` relative to the descriptor, or as a full path without one."""
        return name if self._fd is not None else os.path.join(self._path, name)

    def read(self, name: bytes, most: int) -> tuple[bytes, os.stat_result]:
        """Return a file's bytes and status; ``OSError`` if not ours or longer than ``most``."""
        fd = os.open(self._at(name), _READ | _PLAIN, dir_fd=self._fd)
        try:
            status = os.fstat(fd)
            _check_own(status, stat.S_IFREG)
            if status.st_size > most:
                raise OSError(errno.EFBIG, f"it has {status.st_size} bytes")
            data = platform_calls.pread(fd, status.st_size, 0)
        finally:
            close_quietly(fd)
        if len(data) != status.st_size:
            raise OSError(errno.EIO, "it is shorter than the system says")
        return data, status

    def write(
        self, name: bytes, pieces: Iterable[bytes | memoryview], *, new: bool = False
    ) -> None:
        """Make ``name`` hold ``pieces``: written under another name first, then renamed.

        With ``new``, ``FileExistsError`` if there is such a file. A cache needs no fsync: its
        reader checks it, and a damaged one is simply rebuilt.
        """
        temporary = b".tmp-" + os.urandom(8).hex().encode()
        fd = os.open(self._at(temporary), _MAKE | _PLAIN, 0o600, dir_fd=self._fd)
        try:
            with os.fdopen(fd, "wb", buffering=0) as file:
                _check_own(os.fstat(fd), stat.S_IFREG)  # some file systems change the owner
                for piece in pieces:
                    _write_all(file.fileno(), memoryview(piece))
            self._rename(temporary, name, new)
        except BaseException:
            self.remove(temporary)
            raise

    def _rename(self, old: bytes, name: bytes, new: bool) -> None:
        paths, here = (self._at(old), self._at(name)), self._fd
        if new:
            try:
                os.link(*paths, src_dir_fd=here, dst_dir_fd=here)
            except FileExistsError:
                raise
            except (OSError, NotImplementedError, AttributeError):
                pass  # a file system without hard links: the last writer wins
            else:
                self.remove(old)
                return
        os.replace(*paths, src_dir_fd=here, dst_dir_fd=here)

    def remove(self, name: bytes) -> None:
        """Remove a file, or a link itself, if it exists and may be removed."""
        with contextlib.suppress(OSError):
            os.unlink(self._at(name), dir_fd=self._fd)

    def age(self, name: bytes) -> None:
        """Make a file look as old as possible."""
        follow = os.utime not in os.supports_follow_symlinks
        os.utime(self._at(name), ns=(0, 0), dir_fd=self._fd, follow_symlinks=follow)

    def files(self) -> list[tuple[os.stat_result, bytes]]:
        """List status and name of the plain files here that this user wrote under our names."""
        found = []
        with os.scandir(self._path if self._fd is None else self._fd) as entries:
            for entry in entries:
                name = os.fsencode(entry.name)
                status = entry.stat(follow_symlinks=False)
                if _OURS.fullmatch(name) and _is_own(status, stat.S_IFREG):
                    found.append((status, name))
        return found


def _write_all(fd: int, data: memoryview) -> None:
    data = data.cast("B")
    while data:
        data = data[os.write(fd, data) :]


def _is_own(status: os.stat_result, kind: int) -> bool:
    """Return whether this is of ``kind``, owned by this user, and writable for nobody else."""
    if stat.S_IFMT(status.st_mode) != kind:
        return False
    if not hasattr(os, "geteuid"):  # Windows: the user's folders are protected by other means
        return True
    return status.st_uid == os.geteuid() and not status.st_mode & _OTHERS_WRITE


def _check_own(status: os.stat_result, kind: int) -> None:
    if not _is_own(status, kind):
        what = "folder" if kind == stat.S_IFDIR else "file"
        problem = f"not a plain {what} that belongs to this user and that nobody else can write to"
        raise OSError(errno.EPERM, problem)


def publish(path: bytes, pieces: Iterable[bytes | memoryview]) -> None:
    """Make ``path`` hold ``pieces``, completely or not at all, in a private folder."""
    with PrivateFolder(os.path.dirname(path), make=True) as folder:
        folder.write(os.path.basename(path), pieces)


def discard(path: bytes) -> None:
    """Remove a file of ours if it exists and may be removed."""
    with contextlib.suppress(OSError), PrivateFolder(os.path.dirname(path)) as folder:
        folder.remove(os.path.basename(path))


def age(path: bytes) -> None:
    """Make a file of ours look as old as possible, if it exists and may be changed."""
    with contextlib.suppress(OSError), PrivateFolder(os.path.dirname(path)) as folder:
        folder.age(os.path.basename(path))


def keep_newest(path: bytes, count: int, nbytes: int) -> None:
    """Remove all but our newest files: at most ``count`` of them, with ``nbytes`` in total.

    The newest is kept whatever its size. Files that we did not write are not counted or removed.
    """
    with contextlib.suppress(OSError), PrivateFolder(path) as folder:
        found = folder.files()
        found.sort(key=lambda fact: fact[0].st_mtime_ns, reverse=True)
        total = 0
        for place, (status, name) in enumerate(found):
            total += status.st_size
            if place and (place >= count or total > nbytes):
                folder.remove(name)


def secret(*, make: bool = False) -> bytes:
    """Return the random key that signs this user's caches, which only this user can read.

    Another user who may write to a cache folder, or prepared a cache elsewhere, cannot sign what
    they put there. ``make`` creates the key if there is none.
    """
    with PrivateFolder(os.path.join(cache_folder(), b"private"), make=make) as folder:
        try:
            return _key(folder)
        except OSError as error:
            if not make or error.errno not in _NO_KEY:
                raise
            folder.remove(b"key")  # in our own folder, but not a valid key
            with contextlib.suppress(FileExistsError):  # another process was faster
                folder.write(b"key", [os.urandom(_SECRET)], new=True)
            return _key(folder)


def user_key(*, make: bool) -> bytes | None:
    """Return the secret, or ``None`` if this user has no folder in which to store one.

    It is read once per process.
    """
    path = cache_folder()
    try:
        if path not in known:
            known[path] = secret(make=make)
        return known[path]
    except OSError as error:
        if error.errno in _NOT_KEPT:
            return None
        refuse(path, "keep a key there", error)


def _key(folder: PrivateFolder) -> bytes:
    found, status = folder.read(b"key", _SECRET)
    if len(found) != _SECRET or (hasattr(os, "geteuid") and status.st_mode & 0o077):
        raise OSError(errno.EPERM, "not a key that only this user can read")
    return found
