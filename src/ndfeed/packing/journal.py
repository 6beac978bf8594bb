"""The journal of a pack: which tasks are done, recorded once the disk holds their output.

Lines of JSON, each followed by a *seal*: a CRC-32, or a signature by a key that only this user has.
A line is written when the output it describes is synced, and is itself synced before anybody relies
on it. A reader trusts lines up to the first that is incomplete, that is signed by somebody else, or
that says what no task of the plan would: everything after that is done again, which only costs
time.

    {"task":"rows 3","rows":n,"bytes":n,"wrote":{SPOT:[start,end,[crc, …]]},"read":{…}} SEAL
    {"task":"offsets 0",…,"values":n} SEAL        also "place N", "sums N"
    {"task":"publish"} SEAL                       all tasks are done, parts are about to be moved

Remote workers sync what they wrote themselves, task by task. On this machine it is done here, for
many tasks at once, while others are being written: a sync blocks all writes to a file. The files
are open here before anything is written, so that no disk error can be missed.
"""

import hmac
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Self, get_args

from ndfeed.errors import Error, LimitError
from ndfeed.files.folder import Folder, read_contents
from ndfeed.formats.inflate import crc32
from ndfeed.formats.manifest import Role
from ndfeed.formats.untrusted_text import parse_json
from ndfeed.packing.columns import Spot, Stretch, count_blocks
from ndfeed.packing.member_checksums import Member
from ndfeed.packing.plan import OffsetsTask, PlaceTask, Plan, RowsTask, SumsTask, Task

MOST_JOURNAL = 1 << 30
_PUBLISH = "publish"
_MOST_VALUES = 20_000_000
_DEEPEST = 6
_KINDS: dict[str, type[Task]] = {
    "rows": RowsTask,
    "offsets": OffsetsTask,
    "place": PlaceTask,
    "sums": SumsTask,
}
_KIND_NAMES = {kind: name for name, kind in _KINDS.items()}
_ROLES: dict[str, Role] = {role: role for role in get_args(Role)}
_NUMBER = r"(0|[1-9][0-9]{0,17})"
_TASK = re.compile(rf"(rows|offsets|place|sums) {_NUMBER}")
_SPOT = re.compile(rf"{_NUMBER}\.{_NUMBER}\.(rows|values|offsets|shapes)")
_MEMBER = re.compile(rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}")

Seal = Callable[[bytes], bytes]  # returns hex digits that authenticate some bytes


@dataclass(frozen=True, slots=True)
class Publishing:
    """All tasks are done, and parts are about to be moved to the target."""


@dataclass(frozen=True, slots=True)
class Record:
    """What a finished task did: rows and bytes that it packed, checksums of what it wrote.

    ``values`` is the number of values, of a task that writes offsets. ``read`` has checksums of
    members that other tasks read as well.
    """

    task: Task
    wrote: Mapping[Spot, Stretch]
    rows: int = 0
    nbytes: int = 0
    values: int = 0
    read: Mapping[Member, Sequence[Stretch]] = field(default_factory=dict)


Entry = Record | Publishing
Check = Callable[[Record], bool]  # may a task of the plan say that?


def checksum(text: bytes) -> bytes:
    """Return the seal of a journal that anybody may write: it detects damage."""
    return b"%08x" % crc32(text)


def _accept(_record: Record) -> bool:
    return True


class Journal:
    """Records what is done. One process at a time has it open.

    ``folder`` is the one that ``name`` is in. Existing records are trusted up to the first that
    ``check`` refuses.
    """

    def __init__(
        self, folder: Folder, name: bytes, seal: Seal = checksum, check: Check = _accept
    ) -> None:
        self._seal = seal
        data = read_contents(folder, name, MOST_JOURNAL) or b""
        entries, end = parse_journal(data, seal, check)
        self.done: dict[Task, Record] = {}
        self.publishing = False
        self._remember(entries)
        self._file = folder.output(name, new=True)
        try:
            self._file.allocate(end)
        except BaseException:
            self._file.close()
            raise
        self._end = end

    def append(self, entries: Iterable[Entry]) -> None:
        """Store entries durably."""
        entries = list(entries)
        data = b"".join(seal_line(encode_entry(entry), self._seal) for entry in entries)
        self._file.write(self._end, data)
        self._file.sync()
        self._end += len(data)
        self._remember(entries)

    def _remember(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            if isinstance(entry, Publishing):
                self.publishing = True
            else:
                self.done[entry.task] = entry

    def clear(self) -> None:
        """Start over: what was recorded is not to be relied on."""
        if self.done or self.publishing:
            self._file.allocate(0)
            self._file.sync()
            self.done, self.publishing, self._end = {}, False, 0

    def written(self) -> dict[Spot, list[Stretch]]:
        """Return all that was written, by column."""
        found: dict[Spot, list[Stretch]] = {}
        for record in self.done.values():
            for spot, stretch in record.wrote.items():
                found.setdefault(spot, []).append(stretch)
        return found

    def read(self) -> dict[Member, list[Stretch]]:
        """Return what several tasks have read of members, by member."""
        found: dict[Member, list[Stretch]] = {}
        for record in self.done.values():
            for member, stretches in record.read.items():
                found.setdefault(member, []).extend(stretches)
        return found

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def parse_journal(
    data: bytes, seal: Seal = checksum, check: Check = _accept
) -> tuple[list[Entry], int]:
    """Return a journal's entries up to the first untrusted one, and where that starts."""
    entries: list[Entry] = []
    end = 0
    for line in data.splitlines(keepends=True):
        text = unseal_line(line, seal)
        entry = None if text is None else _parse_entry(text)
        if entry is None or not (isinstance(entry, Publishing) or check(entry)):
            break
        entries.append(entry)
        end += len(line)
    return entries, end


def seal_line(text: bytes, seal: Seal) -> bytes:
    """Return a line with ``text`` and its seal."""
    return text + b" " + seal(text) + b"\n"


def unseal_line(line: bytes, seal: Seal) -> bytes | None:
    """Return the text of a line, or ``None`` if it is incomplete or the seal is wrong."""
    text, _, found = line.rpartition(b" ")
    return text if hmac.compare_digest(found, seal(text) + b"\n") else None


def name_task(task: Task) -> str:
    """Return a task as the journal names it."""
    return f"{_KIND_NAMES[type(task)]} {task.number}"


def encode_entry(entry: Entry) -> bytes:
    """Return an entry as the text of a line."""
    if isinstance(entry, Publishing):
        found: dict[str, object] = {"task": _PUBLISH}
    else:
        found = {"task": name_task(entry.task), "rows": entry.rows, "bytes": entry.nbytes}
        found["wrote"] = {str(spot): stretch for spot, stretch in entry.wrote.items()}
        if isinstance(entry.task, OffsetsTask):
            found["values"] = entry.values
        if entry.read:
            found["read"] = {str(member): some for member, some in entry.read.items()}
    return json.dumps(found, sort_keys=True, separators=(",", ":")).encode()


def _parse_entry(text: bytes) -> Entry | None:
    """Parse an entry; ``None`` unless every value has the required type."""
    try:
        found = parse_json(
            text, objects=_MOST_VALUES, values=_MOST_VALUES, deepest=_DEEPEST, what="values"
        )
    except (ValueError, LimitError, RecursionError):
        return None
    if type(found) is not dict or type(found.get("task")) is not str:
        return None
    if found["task"] == _PUBLISH:
        return Publishing() if len(found) == 1 else None
    named = _TASK.fullmatch(found["task"])
    if named is None:
        return None
    counts = {"rows", "bytes"} | ({"values"} if named[1] == "offsets" else set())
    optional = {"read"} if named[1] == "rows" else set()
    if not counts | {"task", "wrote"} <= found.keys() <= counts | {"task", "wrote"} | optional:
        return None
    try:
        return Record(
            _KINDS[named[1]](int(named[2])),
            {_parse_spot(n): _parse_stretch(v) for n, v in _items(found["wrote"])},
            _parse_count(found["rows"]),
            _parse_count(found["bytes"]),
            _parse_count(found.get("values", 0)),
            {_parse_member(n): _parse_read(v) for n, v in _items(found.get("read", {}))},
        )
    except ValueError:
        return None


def _items(value: object) -> Iterable[tuple[str, object]]:
    if not isinstance(value, dict):
        raise ValueError("expected an object")
    return value.items()


def _parse_count(value: object, most: int = 1 << 63) -> int:
    if type(value) is not int or not 0 <= value < most:
        raise ValueError("expected a count")
    return value


def _parse_spot(name: str) -> Spot:
    found = _SPOT.fullmatch(name)
    if found is None:
        raise ValueError("expected a column")
    return Spot(int(found[1]), int(found[2]), _ROLES[found[3]])


def _parse_member(name: str) -> Member:
    found = _MEMBER.fullmatch(name)
    if found is None:
        raise ValueError("expected a member")
    return Member(*(int(number) for number in found.groups()))


def _parse_stretch(value: object) -> Stretch:
    if type(value) is not list or len(value) != 3 or type(value[2]) is not list:
        raise ValueError("expected a stretch")
    start, end = _parse_count(value[0]), _parse_count(value[1])
    if start > end:
        raise ValueError("expected a stretch that ends after its start")
    return Stretch(start, end, [_parse_count(one, 1 << 32) for one in value[2]])


def _parse_read(value: object) -> list[Stretch]:
    """Parse what was read of a member: stretches with one checksum each."""
    if type(value) is not list:
        raise ValueError("expected a list")
    stretches = [_parse_stretch(one) for one in value]
    if any(len(stretch.sums) != 1 for stretch in stretches):
        raise ValueError("expected one checksum")
    return stretches


class PlanCheck:
    """Checks the records of a journal against the plan, in their order: may each be true?"""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._values = [list(part) for part in plan.values]
        self._columns = plan.columns
        self._sums: int | None = None

    def __call__(self, record: Record) -> bool:
        """Could a task of the plan have written that?"""
        if not record.task.number < self._count_tasks(record.task):
            return False
        if isinstance(record.task, OffsetsTask) and not self._learn_values(record):
            return False
        if isinstance(record.task, RowsTask):
            start, end = self._plan.pieces[record.task.number :][:2]
            if record.rows != end - start:
                return False
        return all(self._has(spot, stretch) for spot, stretch in record.wrote.items())

    def _count_tasks(self, task: Task) -> int:
        """Return how many tasks of this kind there are, as far as is known by now."""
        plan = self._plan
        if isinstance(task, OffsetsTask):
            return (len(plan.parts) - 1) * len(plan.fields)
        if isinstance(task, SumsTask):
            if self._sums is None:
                columns = self._columns
                known = len(columns.known_spots()) == len(columns.spots())
                self._sums = len(plan.sums_tasks(columns)) if known else 0
            return self._sums
        return len(plan.pieces) - 1 if isinstance(task, RowsTask) or plan.spooled else 0

    def _learn_values(self, record: Record) -> bool:
        """Remember how many values a ragged field has in a part."""
        part, number = divmod(record.task.number, len(self._plan.fields))
        if "values" not in self._plan.fields[number].roles:
            return False
        if number not in self._plan.spooled:
            return record.values == self._plan.values[part][number]
        if record.values * self._plan.fields[number].row_bytes("values") >= 1 << 62:
            return False
        self._values[part][number] = record.values
        self._columns = self._plan.columns_with(tuple(map(tuple, self._values)))
        return True

    def _has(self, spot: Spot, stretch: Stretch) -> bool:
        """Does a column have these bytes, and as many blocks as there are checksums?"""
        plan = self._plan
        if spot.part >= len(plan.parts) - 1 or spot.field >= len(plan.fields):
            return False
        if spot.role not in plan.fields[spot.field].roles:
            return False
        if spot.role == "values" and self._values[spot.part][spot.field] is None:
            return False
        file = self._columns.file(spot)
        blocks = count_blocks(file, stretch.start, stretch.end)
        return stretch.end <= file.data and len(stretch.sums) == blocks


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
        self._bytes += sum(record.nbytes for record in records)
        if self._bytes >= self._often:
            self._commit()

    def _commit(self) -> None:
        records, self._waiting, self._bytes = self._waiting, [], 0
        if records:
            for output in self._outputs:
                output.sync()
            self._journal.append(records)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, *_: object) -> None:
        with self._stack:
            if error is None:
                self._commit()
            else:
                with suppress(Error):  # the first error is the one to report
                    self._commit()
