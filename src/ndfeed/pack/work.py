"""The folder in which a dataset is made, beside the one in which it is to appear.

    .packed.DIGEST.packing/     named for its target and plan
      owner                     locked by whoever works here, as long as that process lives
      plan, order, values       what is to be done
      journal                   what is done
      spool/, shapes.FIELD      what maps made of ragged fields
      data/                     what becomes the target

A folder whose lock can be had belongs to nobody: with the same plan it is gone on with, with
another it is removed. Where there are no locks it stays, since nobody can tell; two that work
in one folder then write the same bytes to the same places.
"""

import hashlib
import os
from typing import Self

from ndfeed.errors import ConflictError, MissingError
from ndfeed.files import write
from ndfeed.files.write import Lock

OWNER, JOURNAL = b"owner", b"journal"
_SUFFIX = b".packing"
_TRIES = 100
_LONGEST = 180


class Work:
    """A folder of work for one target and plan, owned within the context."""

    def __init__(self, target: bytes, digest: str) -> None:
        self.target = target
        self.parent, name = os.path.split(target)
        if len(name) > _LONGEST:
            name = hashlib.sha256(name).hexdigest()[:32].encode()
        self._prefix = b"." + name + b"."
        self.folder = os.path.join(self.parent, self._prefix + digest.encode() + _SUFFIX)
        self._lock: Lock | None = None

    def path(self, *names: bytes) -> bytes:
        """A file of the folder."""
        return os.path.join(self.folder, *names)

    @property
    def begun(self) -> bool:
        """Is there such a folder?"""
        return write.present(self.folder)

    @property
    def alone(self) -> bool:
        """Is it certain that nobody else writes the target? Not where there are no locks."""
        return self._lock is not None and bool(self._lock.held)

    def __enter__(self) -> Self:
        self._lock = _owned(self.folder, self.target)
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            self._lock.release()

    def leftovers(self) -> list[bytes]:
        """Every folder of work for this target, of whatever plan."""
        begin, end = len(self._prefix), -len(_SUFFIX)
        return [
            os.path.join(self.parent, name)
            for name in write.names(self.parent)
            if name.startswith(self._prefix)
            and name.endswith(_SUFFIX)
            # Else it belongs to a target whose name goes on with a dot.
            and b"." not in name[begin:end]
        ]

    def remove_others(self) -> None:
        """Remove what is left of others who wrote the same target; refuse if one still does."""
        for folder in self.leftovers():
            if folder == self.folder:
                continue
            lock = _owned(folder, self.target)
            try:
                if lock.held:
                    write.remove_folder(folder, OWNER)
            finally:
                lock.release()

    def remove(self) -> None:
        """Remove the folder: nothing of it is needed any more."""
        write.remove_folder(self.folder, OWNER)


def unfinished(path: bytes) -> list[bytes]:
    """The folders of work that are at ``path``, or for a target that is to be there."""
    path = os.path.abspath(path)
    if path.endswith(_SUFFIX) and write.present(os.path.join(path, OWNER)):
        return [path]
    return Work(path, "").leftovers()


def _owned(folder: bytes, target: bytes) -> Lock:
    """The lock of a folder, which is made if need be."""
    for _ in range(_TRIES):
        write.make_folder(folder)
        try:
            lock = Lock(os.path.join(folder, OWNER))
        except MissingError:  # removed in between
            continue
        except ConflictError:
            raise ConflictError(
                target, "another process is writing it; wait for that, or end it"
            ) from None
        if lock.current():
            return lock
        lock.release()
    raise ConflictError(target, "others keep writing it; wait for them")
