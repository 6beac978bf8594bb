"""The journal of a pack: which tasks are done, recorded once the disk holds their output.

Lines of JSON, each followed by a *seal*: a CRC-32, or a signature by a key that only this user has.
A line is written when the output it describes is synced, and is itself synced before anybody relies
on it. A reader trusts lines up to the first that is incomplete, that is signed by somebody else, or
that says what no task would: everything after that is done again, which only costs time.

    {"task":"rows 3","rows":n,"bytes":n,"wrote":{SPOT:[start,end,[crc, …]]},"read":{…}} SEAL
    {"task":"offsets 0",…,"values":n} SEAL        also "place N", "sums N"
    {"task":"publish"} SEAL

Remote workers sync what they wrote themselves, task by task. On this machine it is done here, for
many tasks at once, while others are being written: a sync blocks all writes to a file. The files
are open here before anything is written, so that no disk error can be missed.
"""

import hmac
import json
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from typing import Any, Self

from ndfeed.errors import Error, LimitError
from ndfeed.files.folder import Folder, read_contents
from ndfeed.formats.inflate import crc32
from ndfeed.formats.untrusted_text import parse_json
from ndfeed.packing.columns import Stretch

PUBLISHING = "publish"
MOST_JOURNAL = 1 << 30
_MOST_VALUES = 20_000_000
_DEEPEST = 6
_TASK = re.compile(r"(rows|offsets|place|sums) (0|[1-9][0-9]{0,17})")
_SPOT = re.compile(r"[0-9]{1,18}\.[0-9]{1,18}\.(rows|values|offsets|shapes)")
_MEMBER = re.compile(r"[0-9]{1,18}\.[0-9]{1,18}\.[0-9]{1,18}")

Record = dict[str, Any]
Seal = Callable[[bytes], bytes]  # returns hex digits that authenticate some bytes
Check = Callable[[Record], bool]  # may a plan's task say that?


def checksum(text: bytes) -> bytes:
    """Return the seal of a journal that anybody may write: it detects damage."""
    return b"%08x" % crc32(text)


def _anything(_record: Record) -> bool:
    return True


class Journal:
    """Records what is done. One process at a time has it open.

    ``folder`` is the one that ``name`` is in. Existing records are trusted up to the first that
    ``check`` refuses.
    """

    def __init__(
        self, folder: Folder, name: bytes, seal: Seal = checksum, check: Check = _anything
    ) -> None:
        self._seal = seal
        data = read_contents(folder, name, MOST_JOURNAL) or b""
        records, end = believed(data, seal, check)
        self.done: dict[str, Record] = {record["task"]: record for record in records}
        self._file = folder.output(name, new=True)
        try:
            self._file.allocate(end)
        except BaseException:
            self._file.close()
            raise
        self._end = end

    def note(self, records: Iterable[Record]) -> None:
        """Store records durably; each has its ``task``."""
        records = list(records)
        texts = (json.dumps(one, sort_keys=True, separators=(",", ":")) for one in records)
        data = b"".join(sealed(text.encode(), self._seal) for text in texts)
        self._file.write(self._end, data)
        self._file.sync()
        self._end += len(data)
        self.done |= {record["task"]: record for record in records}

    def forget(self) -> None:
        """Start over: what was recorded is not to be relied on."""
        if self.done:
            self._file.allocate(0)
            self._file.sync()
            self.done, self._end = {}, 0

    def stretches(self) -> dict[str, list[Stretch]]:
        """Return all that was written, by column."""
        found: dict[str, list[Stretch]] = {}
        for record in self.done.values():
            for spot, one in record.get("wrote", {}).items():
                found.setdefault(spot, []).append(Stretch(one[0], one[1], one[2]))
        return found

    def read(self) -> dict[str, list[Stretch]]:
        """Return what several tasks have read of members, by member."""
        found: dict[str, list[Stretch]] = {}
        for record in self.done.values():
            for member, some in record.get("read", {}).items():
                found.setdefault(member, []).extend(Stretch(*one) for one in some)
        return found

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def believed(
    data: bytes, seal: Seal = checksum, check: Check = _anything
) -> tuple[list[Record], int]:
    """Return a journal's records up to the first untrusted one, and where that starts."""
    records: list[Record] = []
    end = 0
    for line in data.splitlines(keepends=True):
        text = unsealed(line, seal)
        found = None if text is None else _record(text)
        if found is None or not check(found):
            break
        records.append(found)
        end += len(line)
    return records, end


def sealed(text: bytes, seal: Seal) -> bytes:
    """Return a line with ``text`` and its seal."""
    return text + b" " + seal(text) + b"\n"


def unsealed(line: bytes, seal: Seal) -> bytes | None:
    """Return the text of a line, or ``None`` if it is incomplete or the seal is wrong."""
    text, _, found = line.rpartition(b" ")
    return text if hmac.compare_digest(found, seal(text) + b"\n") else None


def _record(text: bytes) -> Record | None:
    """Parse a record; ``None`` unless every value has the required type."""
    try:
        found = parse_json(
            text, objects=_MOST_VALUES, values=_MOST_VALUES, deepest=_DEEPEST, what="values"
        )
    except (ValueError, LimitError, RecursionError):
        return None
    if type(found) is not dict or type(found.get("task")) is not str:
        return None
    if found["task"] == PUBLISHING:
        return found if len(found) == 1 else None
    task = _TASK.fullmatch(found["task"])
    if task is None:
        return None
    counts = {"rows", "bytes"} | ({"values"} if task[1] == "offsets" else set())
    optional = {"read"} if task[1] == "rows" else set()
    if not counts | {"task", "wrote"} <= found.keys() <= counts | {"task", "wrote"} | optional:
        return None
    fits = (
        all(_is_count(found[name]) for name in counts)
        and _are(found["wrote"], _SPOT, _is_stretch)
        and _are(found.get("read", {}), _MEMBER, _are_stretches)
    )
    return found if fits else None


def _is_count(value: object, most: int = 1 << 63) -> bool:
    return type(value) is int and 0 <= value < most


def _are(value: object, names: re.Pattern[str], fits: Callable[[object], bool]) -> bool:
    """Is it an object with such names, whose values fit?"""
    return type(value) is dict and all(names.fullmatch(n) and fits(v) for n, v in value.items())


def _is_stretch(value: object) -> bool:
    if type(value) is not list or len(value) != 3 or type(value[2]) is not list:
        return False
    start, end, sums = value
    ordered = _is_count(start) and _is_count(end) and start <= end
    return ordered and all(_is_count(one, 1 << 32) for one in sums)


def _are_stretches(value: object) -> bool:
    """Check what was read of a member: stretches with one checksum each."""
    return type(value) is list and all(_is_stretch(one) and len(one[2]) == 1 for one in value)


MOST_FILES = 64
_LEAST, _MOST, _TIMES = 1 << 20, 256 << 20, 16


class Commits:
    """Collects records; syncs the files ``names`` and records them each time enough bytes came.

    Without names, what records describe is synced already.
    """

    def __init__(
        self, journal: Journal, folder: Folder, names: Sequence[bytes], total: int
    ) -> None:
        self._journal = journal
        self._stack = ExitStack()
        with self._stack:
            self._outputs = [self._stack.enter_context(folder.output(name)) for name in names]
            self._stack = self._stack.pop_all()
        self._often = min(max(total // _TIMES, _LEAST), _MOST) if names else 0
        self._waiting: list[Record] = []
        self._bytes = 0

    def add(self, records: list[Record]) -> None:
        """Take records, and write them to the journal if there are enough."""
        self._waiting += records
        self._bytes += sum(record["bytes"] for record in records)
        if self._bytes >= self._often:
            self._commit()

    def _commit(self) -> None:
        records, self._waiting, self._bytes = self._waiting, [], 0
        if records:
            for output in self._outputs:
                output.sync()
            self._journal.note(records)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, *_: object) -> None:
        with self._stack:
            if error is None:
                self._commit()
            else:
                with suppress(Error):  # the first error is the one to report
                    self._commit()
