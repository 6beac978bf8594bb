"""Tables that all processes of this user on this machine share: computed once, held once.

A table has a name, which is a digest of what it is computed from. The process that computes it
puts it into shared memory (``shared_memory``), and a note with the memory's handle into the user's
cache folder. Others attach to that memory. It is freed with the last process that has it. A note is
good while the process that computed the table lives; after that, whoever comes computes it anew and
replaces the note. Where notes cannot be kept, each process has its own table.

The memory begins with the table's name: a note may be older than the last start of the machine,
and point to anything.
"""

import contextlib
import json
import os
import time
import weakref
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ndfeed.errors import ConflictError, MissingError
from ndfeed.files.cache_files import PrivateFolder, cache_folder, keep_newest
from ndfeed.files.shared_memory import ALIGNED, Handle, Shared
from ndfeed.files.write import Lock

_NOTE = 4096  # bytes of a note, at most
_NOTES = 64  # that are kept
_MOMENT = 0.02  # seconds between two looks at what another process computes
_PATIENCE = 300.0  # seconds until it is computed here, since the other one may be stopped

Bytes = NDArray[np.uint8]

_here: "weakref.WeakValueDictionary[str, SharedTable]" = weakref.WeakValueDictionary()


class SharedTable:
    """Bytes that several processes have in common; read-only."""

    def __init__(self, memory: Shared) -> None:
        self._memory = memory  # others find it while this process has it open
        self.data: Bytes = memory.view()[ALIGNED:]


def share_table(name: str, size: int, fill: Callable[[Bytes], None]) -> SharedTable:
    """Return the table of this name, which is a digest of 32 digits; ``fill`` computes it."""
    found = _here.get(name)
    if found is None:
        found = _here[name] = _find_or_make(name, size, fill)
    return found


def _find_or_make(name: str, size: int, fill: Callable[[Bytes], None]) -> SharedTable:
    folder = os.path.join(cache_folder(), b"tables")
    until = time.monotonic() + _PATIENCE
    while time.monotonic() < until:
        found = _attach(folder, name, size)
        if found is not None:
            return found
        try:
            with PrivateFolder(folder, make=True):
                lock = Lock(os.path.join(folder, b"lock"))
        except ConflictError:  # another process computes a table, perhaps this one
            time.sleep(_MOMENT)
            continue
        except OSError:  # no place for notes
            return _make(name, size, fill)
        try:
            found = _attach(folder, name, size)  # made in the meantime
            if found is None:
                found = _make(name, size, fill)
                _leave_note(folder, name, found)
            return found
        finally:
            lock.release()
    return _make(name, size, fill)


def _make(name: str, size: int, fill: Callable[[Bytes], None]) -> SharedTable:
    memory = Shared(ALIGNED + size)

    def write(out: Bytes) -> None:
        fill(out[ALIGNED:])
        out[: len(name)] = np.frombuffer(name.encode(), np.uint8)

    memory.fill(write)
    return SharedTable(memory)


def _leave_note(folder: bytes, name: str, table: SharedTable) -> None:
    handle = table._memory.handle()
    note = json.dumps([os.fsdecode(handle.path), *handle[1:]]).encode()
    with contextlib.suppress(OSError):
        with PrivateFolder(folder) as notes:
            notes.write(name.encode(), [note])
        keep_newest(folder, _NOTES, _NOTES * _NOTE)


def _attach(folder: bytes, name: str, size: int) -> SharedTable | None:
    """Return the table that a note tells of; ``None`` if there is none, or it is gone."""
    try:
        with PrivateFolder(folder) as notes:
            note, _ = notes.read(name.encode(), _NOTE)
        path, *numbers = json.loads(note)
        memory = Shared.attach(Handle(os.fsencode(path), *map(int, numbers)))
    except (OSError, ValueError, TypeError, OverflowError, RecursionError, MissingError):
        return None
    if memory.size != ALIGNED + size:
        return None
    same = memory.view()[: len(name)].tobytes() == name.encode()
    return SharedTable(memory) if same else None
