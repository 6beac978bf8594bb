"""How what was packed appears: in one step, and only where nothing else is."""

import os
from collections.abc import Sequence

from ndfeed.errors import ConflictError, shown
from ndfeed.files import write
from ndfeed.files.folder import Folder
from ndfeed.formats.manifest import NAME, Manifest, Part
from ndfeed.index.packed import read_manifest
from ndfeed.pack.job import DATA
from ndfeed.pack.moved import inodes
from ndfeed.pack.origin import source_packs
from ndfeed.pack.plan import Plan
from ndfeed.pack.work import Work


def manifest_of(target: bytes) -> Manifest | None:
    """The manifest in a folder, if there is one."""
    return read_manifest(target) if write.present(os.path.join(target, NAME)) else None


def check_no_link(target: bytes) -> None:
    """Refuse to change a dataset by a link to it: what is done is done beside the folder itself."""
    if os.path.islink(target):
        real = shown(os.path.realpath(target))
        raise ConflictError(target, f"a symbolic link; name the folder itself, {real}")


def publish(work: Work, plan: Plan, parts: Sequence[Part], before: Manifest | None) -> None:
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


def check_places(work: Work, plan: Plan) -> None:
    """Refuse at once to add parts where something is that is not ours to remove."""
    moved = work.moved()
    with Folder(work.parent, followed=True) as beside, beside.inner(work.name) as target:
        for part in range(len(plan.parts) - 1):
            moved.check(target, plan.columns.folder(part))


def _add_parts(work: Work, target: Folder, parts: Sequence[Part]) -> None:
    """Move the new parts to where they belong; nobody sees them before the manifest says so."""
    before = work.moved()
    with work.inside.inner(DATA) as data:
        new = inodes(data, {p.folder: tuple(c.file for c in p.columns) for p in parts})
        for name in new.parts:
            before.check(target, name)
            # Not in the manifest, so it was left by a run that is gone.
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
        raise ConflictError(target, "somebody else changed it meanwhile; run the same again")
