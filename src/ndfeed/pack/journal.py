"""The journal of a pack: which pieces are done, and the checksums of what they wrote.

Lines of JSON, each with its own CRC-32 behind it. A line is written when what it speaks of is
synced, and is itself synced before anybody relies on it. A reader believes lines up to the
first that is not whole: whatever follows is done again, which is only work.
"""

import json
from collections.abc import Iterable
from typing import Any

from ndfeed.errors import MissingError
from ndfeed.files.file import File
from ndfeed.files.write import Output
from ndfeed.formats.inflate import crc32
from ndfeed.pack.columns import Stretch

Record = dict[str, Any]


class Journal:
    """Notes what is done. One process at a time has it open."""

    def __init__(self, path: bytes) -> None:
        records, end = believed(contents(path))
        self.done: dict[str, Record] = {record["task"]: record for record in records}
        self._file = Output(path, new=True)
        try:
            self._file.allocate(end)
        except BaseException:
            self._file.close()
            raise
        self._end = end

    def note(self, records: Iterable[Record]) -> None:
        """Remember records for good; each has its ``task``."""
        records = list(records)
        data = b"".join(_line(record) for record in records)
        self._file.write(self._end, data)
        self._file.sync()
        self._end += len(data)
        self.done |= {record["task"]: record for record in records}

    def forget(self) -> None:
        """Begin anew: what was noted is not to be relied on."""
        if self.done:
            self._file.allocate(0)
            self._file.sync()
            self.done, self._end = {}, 0

    def stretches(self) -> dict[str, list[Stretch]]:
        """All that was written, by column."""
        found: dict[str, list[Stretch]] = {}
        for record in self.done.values():
            for spot, one in record.get("wrote", {}).items():
                found.setdefault(spot, []).append(Stretch(one[0], one[1], one[2]))
        return found

    def read(self) -> dict[str, list[Stretch]]:
        """What several pieces have read of members, by member."""
        found: dict[str, list[Stretch]] = {}
        for record in self.done.values():
            for member, some in record.get("read", {}).items():
                found.setdefault(member, []).extend(Stretch(*one) for one in some)
        return found

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()


def contents(path: bytes) -> bytes:
    """All that is in a journal, nothing where there is none."""
    try:
        with File(path) as file:
            return file.read(0, file.size)
    except MissingError:
        return b""


def believed(data: bytes) -> tuple[list[Record], int]:
    """The records of a journal up to the first line that is not whole, and where that begins."""
    records: list[Record] = []
    end = 0
    for line in data.splitlines(keepends=True):
        found = _parsed(line)
        if found is None:
            break
        records.append(found)
        end += len(line)
    return records, end


def _line(record: Record) -> bytes:
    text = json.dumps(record, sort_keys=True, separators=(",", ":")).encode()
    return text + b" %08x\n" % crc32(text)


def _parsed(line: bytes) -> Record | None:
    text, _, check = line.rpartition(b" ")
    if len(check) != 9 or check != b"%08x\n" % crc32(text):
        return None
    found: Record = json.loads(text)
    return found
