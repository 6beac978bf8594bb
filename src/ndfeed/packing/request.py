"""The checked arguments of ``ndfeed.pack``, its forecast, and the records of earlier packs.

A manifest has an entry in ``source.packs`` for each time that rows were added. Reading the data
needs none of it, and other programs may write what they like there; appending and repairing rely
on it, so for them every value has the required type, or the manifest is wrong.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ndfeed.dataset.arguments import as_count
from ndfeed.dataset.column import Field
from ndfeed.errors import ConflictError, ManifestError, MissingError, shown, shown_size
from ndfeed.files import write
from ndfeed.formats.manifest import NAME, Manifest
from ndfeed.index.build import read_manifest
from ndfeed.packing.source_rows import SourceRows

_MOST_ROWS = 1 << 63


@dataclass(frozen=True)
class Request:
    """What a caller wants, checked. The only place that holds these options.

    ``memory`` is the limit for one worker, in bytes. Whether file names are stored is up to
    ``source``, which reads them.
    """

    source: SourceRows
    target: bytes
    dtypes: Mapping[str, object]
    shuffle: int | None
    rows_per_part: int | None
    append: bool
    memory: int


def check_target(target: str | os.PathLike[str]) -> bytes:
    """Return the absolute path of a target whose parent folder exists."""
    path = os.path.abspath(os.fsencode(os.fspath(target)))
    parent = os.path.dirname(path)
    if not os.path.isdir(parent):
        raise MissingError(parent, "no such folder", remedy="create it first")
    return path


def check_count(name: str, value: int | None, least: int, most: int = _MOST_ROWS - 1) -> int | None:
    """Return a whole number within bounds, if there is one."""
    return None if value is None else as_count(name, value, least, most)


def check_dtypes(dtype: Mapping[str, object] | None) -> Mapping[str, object]:
    """Return the dtypes to store fields in, by field."""
    if dtype is not None and not isinstance(dtype, Mapping):
        raise TypeError(f'dtype must be a dict such as {{"image": "float16"}}, got {dtype!r}')
    return dtype or {}


@dataclass(frozen=True, slots=True)
class Forecast:
    """What ``ndfeed.pack`` would write to ``target``, returned for ``dry_run=True``.

    ``needed`` is bytes of new columns: exact, unless a map makes ragged fields, whose lengths are
    unknown before it has run (then ``exact`` is false). ``free`` is what the disk has, where that
    is known. ``state`` is ``"new"``; ``"begun"`` where an earlier run can be resumed, whose files
    have their space already; or ``"done"`` where everything is there and nothing would happen.
    """

    target: str
    rows: int
    parts: int
    fields: Mapping[str, Field]
    needed: int
    exact: bool
    free: int | None
    state: str

    @property
    def fits(self) -> bool:
        """Is there enough space, as far as the disk says?"""
        return self.state != "new" or self.free is None or self.needed <= self.free

    def __str__(self) -> str:
        what = f"{self.rows:,} rows in {self.parts:,} part{'s' * (self.parts != 1)}"
        if self.state == "done":
            return f"{shown(self.target)}: {what}, already packed: nothing would be written"
        least = "" if self.exact else "at least "
        free = "" if self.free is None else f", {shown_size(self.free)} free"
        tail = "; would resume an earlier run" * (self.state == "begun")
        return f"{shown(self.target)}: {what}, {least}{shown_size(self.needed)} needed{free}{tail}"


class Pack(NamedTuple):
    """The record of one pack, as the manifest has it: what its rows were made from, and how.

    ``base`` is the digest of the manifest that the rows were appended to, ``first`` the number of
    their first part, ``plan`` the digest of what was packed. Empty strings stand for what is not
    recorded.
    """

    base: str
    fingerprint: str
    first: int
    maps: list[str]
    names: bool
    plan: str
    rows: int
    shuffle: int | None


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < _MOST_ROWS


def _is_text(value: object) -> bool:
    return type(value) is str


# What each value must be, how to say that, and what stands for one that is missing.
_EXPECTED: Mapping[str, tuple[Callable[[object], bool], str, Any]] = {
    "base": (_is_text, "text", ""),
    "fingerprint": (_is_text, "text", ""),
    "first": (_is_count, "a whole number below 2**63", 0),
    "maps": (lambda v: type(v) is list and all(map(_is_text, v)), "a list of texts", []),
    "names": (lambda v: type(v) is bool, "true or false", False),
    "plan": (_is_text, "text", ""),
    "rows": (_is_count, "a whole number below 2**63", 0),
    "shuffle": (lambda v: v is None or _is_count(v), "a whole number below 2**63 or null", None),
}


def read_packs(manifest: Manifest, path: bytes) -> list[Pack]:
    """Return the records in a manifest, checked; ``path`` is where the manifest was read."""
    entries = (manifest.source or {}).get("packs", [])
    if type(entries) is not list:
        raise ManifestError(path, "source.packs: expected a list")
    packs = [_read_pack(entry, f"source.packs[{n}]", path) for n, entry in enumerate(entries)]
    firsts = [pack.first for pack in packs]
    if firsts != sorted(set(firsts)):
        raise ManifestError(path, "source.packs: first must rise from one to the next")
    return packs


def _read_pack(entry: object, where: str, path: bytes) -> Pack:
    if type(entry) is not dict:
        raise ManifestError(path, f"{where}: expected an object, found {entry!r:.40}")
    values = []
    for name, (fits, expected, missing) in _EXPECTED.items():
        value = entry.get(name, missing)
        if not fits(value):
            raise ManifestError(path, f"{where}.{name}: expected {expected}, found {value!r:.40}")
        values.append(value)
    return Pack(*values)


def find_manifest(target: bytes) -> Manifest | None:
    """Read the manifest in a folder, if there is one."""
    return read_manifest(target) if write.present(os.path.join(target, NAME)) else None


def refuse_link(target: bytes) -> None:
    """Refuse to change a dataset through a link: work is staged beside the folder itself."""
    if os.path.islink(target):
        real = shown(os.path.realpath(target))
        raise ConflictError(target, "is a symbolic link", remedy=f"pass the folder itself, {real}")
