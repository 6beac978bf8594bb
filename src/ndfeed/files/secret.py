"""A key of this user's own: random bytes with which names and records of ours are signed.

It is kept for this user alone, in a private folder of the user's cache folder. Whoever prepares
files for others to download does not know it.
"""

import contextlib
import errno
import os
import stat

from ndfeed.errors import (
    ConflictError,
    DeniedError,
    Error,
    MissingError,
    SpaceError,
    TargetError,
)
from ndfeed.files.folder import PRIVATE, Folder, contents, is_private
from ndfeed.files.publish import cache_folder
from ndfeed.files.write import FLAGS, refuse

_NOT_KEPT = (
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT),
    *(errno.ENOENT, errno.ENOTDIR, errno.EEXIST, errno.ELOOP),
)
known: dict[bytes, bytes] = {}  # by cache folder
_LENGTH = 32
_NAME = b"key"
_KEEPS_SECRETS = stat.S_IRWXG | stat.S_IRWXO


def user_key(*, make: bool) -> bytes | None:
    """The key, or nothing where none can be kept; with ``make`` it is made if there is none.

    It is read once in a process.
    """
    path = cache_folder()
    if path not in known:
        found = _kept(path, make=make)
        if found is None:
            return None
        known[path] = found
    return known[path]


def _kept(path: bytes, *, make: bool) -> bytes | None:
    try:
        if make:
            os.makedirs(path, mode=PRIVATE, exist_ok=True)
        with Folder(path, followed=True) as cache, _private(cache, make=make) as folder:
            if not is_private(folder, cache):
                return None
            found = _read(folder)
            if found is None and make:
                _make(folder)
                found = _read(folder)
            return found
    except (ConflictError, DeniedError, MissingError, SpaceError):
        return None
    except TargetError:
        raise
    except OSError as error:
        if error.errno in _NOT_KEPT:
            return None
        refuse(path, "keep a key there", error)


def _private(cache: Folder, *, make: bool) -> Folder:
    return cache.inner(b"private", new=make, mode=PRIVATE)


def _read(folder: Folder) -> bytes | None:
    """The key in a folder, if it is whole and nobody else can read it."""
    status = folder.status(_NAME)
    if status is None or (hasattr(os, "geteuid") and status.st_mode & _KEEPS_SECRETS):
        return None
    found = contents(folder, _NAME, _LENGTH)
    return found if found is not None and len(found) == _LENGTH else None


def _make(folder: Folder) -> None:
    """Put a new key into a folder, unless another process is faster."""
    beside = b".tmp-" + os.urandom(8).hex().encode()
    place, at = (folder.joined(beside), None) if folder.fd is None else (beside, folder.fd)
    fd = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | FLAGS, 0o600, dir_fd=at)
    try:
        try:
            if os.write(fd, os.urandom(_LENGTH)) != _LENGTH:
                raise OSError(errno.EIO, "the key was not written")
            os.fsync(fd)
        finally:
            os.close(fd)
        name = folder.joined(_NAME) if at is None else _NAME
        try:
            os.link(place, name, src_dir_fd=at, dst_dir_fd=at)
        except FileExistsError:
            return
        except (OSError, NotImplementedError):  # a file system without second names
            if folder.status(_NAME) is None:
                os.replace(place, name, src_dir_fd=at, dst_dir_fd=at)
    finally:
        with contextlib.suppress(Error):
            folder.remove(beside)
