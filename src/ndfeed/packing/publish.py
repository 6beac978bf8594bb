"""Makes a packed dataset appear in one step, with a record of its sources.

It appears only where nothing else is. The record is ``source.packs`` in the manifest: an entry for
each time that rows were added. Reading the data needs none of it, and other programs may write what
they like there; appending and repairing rely on it, so for them every value has the required type,
or the manifest is wrong.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ndfeed.errors import ConflictError, ManifestError, shown
from ndfeed.files import write
from ndfeed.files.folder import Folder
from ndfeed.formats.manifest import NAME, Manifest, Part
from ndfeed.index.build import read_manifest
from ndfeed.packing.job import DATA
from ndfeed.packing.plan import Plan
from ndfeed.packing.staging_folder import StagingFolder, inodes

_MOST_ROWS = 1 << 63


class Pack(NamedTuple):
    """One time that rows were added. Empty strings stand for what is not recorded."""

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


# What each key must be, how to say it, and its default.
_KEYS: Mapping[str, tuple[Callable[[object], bool], str, Any]] = {
    "base": (_is_text, "text", ""),
    "fingerprint": (_is_text, "text", ""),
    "first": (_is_count, "a whole number below 2**63", 0),
    "maps": (lambda v: type(v) is list and all(map(_is_text, v)), "a list of texts", []),
    "names": (lambda v: type(v) is bool, "true or false", False),
    "plan": (_is_text, "text", ""),
    "rows": (_is_count, "a whole number below 2**63", 0),
    "shuffle": (lambda v: v is None or _is_count(v), "a whole number below 2**63 or null", None),
}


def source_packs(manifest: Manifest) -> list[dict[str, Any]]:
    """Return the entries as they are in the manifest."""
    found = (manifest.source or {}).get("packs", [])
    return found if isinstance(found, list) else []


def packs_of(manifest: Manifest, path: bytes) -> list[Pack]:
    """Return the entries, checked; ``path`` is where the manifest was read."""
    found = (manifest.source or {}).get("packs", [])
    if type(found) is not list:
        raise ManifestError(path, "source.packs: expected a list")
    packs = [_pack(entry, f"source.packs[{number}]", path) for number, entry in enumerate(found)]
    firsts = [pack.first for pack in packs]
    if firsts != sorted(set(firsts)):
        raise ManifestError(path, "source.packs: first must rise from one to the next")
    return packs


def _pack(entry: object, where: str, path: bytes) -> Pack:
    if type(entry) is not dict:
        raise ManifestError(path, f"{where}: expected an object, found {entry!r:.40}")
    values = []
    for name, (fits, wanted, missing) in _KEYS.items():
        value = entry.get(name, missing)
        if not fits(value):
            raise ManifestError(path, f"{where}.{name}: expected {wanted}, found {value!r:.40}")
        values.append(value)
    return Pack(*values)


def manifest_of(target: bytes) -> Manifest | None:
    """Load the manifest in a folder, if there is one."""
    return read_manifest(target) if write.present(os.path.join(target, NAME)) else None


def check_no_link(target: bytes) -> None:
    """Refuse to change a dataset through a link: work is staged beside the folder itself."""
    if os.path.islink(target):
        real = shown(os.path.realpath(target))
        raise ConflictError(target, "is a symbolic link", remedy=f"pass the folder itself, {real}")


def publish(
    work: StagingFolder, plan: Plan, parts: Sequence[Part], before: Manifest | None
) -> None:
    """Make the target appear, or its manifest change, in one step; then remove the work."""
    packs = [*(source_packs(before) if before else []), dict(plan.source)]
    old = before.parts if before else ()
    manifest = Manifest(plan.fields, (*old, *parts), {"packs": packs})
    inside, beside = work.inside, work.beside
    if before is None:
        with inside.inner(DATA) as data:
            data.write(NAME, manifest.encoded())
            data.sync()
        inside.move(DATA, beside, work.name)
        beside.sync()
    else:
        with beside.inner(work.name) as target:
            _check_same(work.target, before)
            _add_parts(work, target, parts)
            inside.write(NAME, manifest.encoded())
            _check_same(work.target, before)
            inside.move(NAME, target, NAME, over=True)
            target.sync()
    work.remove()


def check_places(work: StagingFolder, plan: Plan) -> None:
    """Refuse at once to add parts where something exists that is not ours to remove."""
    moved = work.moved()
    with Folder(work.parent, followed=True) as beside, beside.inner(work.name) as target:
        for part in range(len(plan.parts) - 1):
            moved.check(target, plan.columns.folder(part))


def _add_parts(work: StagingFolder, target: Folder, parts: Sequence[Part]) -> None:
    """Move the new parts into place; nobody sees them before the manifest lists them."""
    before = work.moved()
    with work.inside.inner(DATA) as data:
        new = inodes(data, {p.folder: tuple(c.file for c in p.columns) for p in parts})
        for name in new.parts:
            before.check(target, name)
            # Not in the manifest, so an earlier run left it behind.
            if work.alone and before.has(target, name):
                before.remove_part(target, name)
        if new.parts:
            (before | new).write(work.inside, work.seal)
        for name in new.parts:
            data.move(name.encode(), target, name.encode())
    target.sync()


def _check_same(target: bytes, before: Manifest) -> None:
    now = manifest_of(target)
    if now is None or now.digest != before.digest:
        raise ConflictError(target, "somebody else changed it meanwhile", remedy="rerun")
