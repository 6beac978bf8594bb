"""How what was packed appears: in one step, and only where nothing else is."""

import os
from collections.abc import Sequence
from typing import Any

from ndfeed.errors import ConflictError
from ndfeed.files import write
from ndfeed.formats.manifest import NAME, Manifest, Part
from ndfeed.index.packed import read_manifest
from ndfeed.pack.piece import DATA
from ndfeed.pack.plan import Plan
from ndfeed.pack.work import Work


def manifest_of(target: bytes) -> Manifest | None:
    """The manifest in a folder, if there is one."""
    return read_manifest(target) if write.present(os.path.join(target, NAME)) else None


def packs_of(manifest: Manifest) -> list[dict[str, Any]]:
    """What a dataset was made from: an entry for each time that something was added."""
    found = (manifest.source or {}).get("packs", [])
    return found if isinstance(found, list) else []


def publish(work: Work, plan: Plan, parts: Sequence[Part], before: Manifest | None) -> None:
    """Make the target appear, or its manifest change, in one step; then remove the work."""
    packs = [*(packs_of(before) if before else []), dict(plan.source)]
    old = before.parts if before else ()
    manifest = Manifest(plan.fields, (*old, *parts), {"packs": packs})
    if before is None:
        write.write_file(work.path(DATA, NAME), manifest.encoded())
        write.sync_folder(work.path(DATA))
        write.move_folder(work.path(DATA), work.target)
        write.sync_folder(work.parent)
    else:
        _add_parts(work, plan, before)
        write.write_file(work.path(NAME), manifest.encoded())
        _check_same(work.target, before)
        write.rename(work.path(NAME), os.path.join(work.target, NAME))
        write.sync_folder(work.target)
    work.remove()


def _add_parts(work: Work, plan: Plan, before: Manifest) -> None:
    """Move the new parts to where they belong; nobody sees them before the manifest says so."""
    _check_same(work.target, before)
    for part in range(len(plan.parts) - 1):
        name = plan.columns.folder(part).encode()
        if write.present(work.path(DATA, name)):  # else an earlier run moved it
            place = os.path.join(work.target, name)
            if work.alone:  # not in the manifest, so it was left by a run that is gone
                write.remove_folder(place)
            write.move_folder(work.path(DATA, name), place)
    write.sync_folder(work.target)


def _check_same(target: bytes, before: Manifest) -> None:
    now = manifest_of(target)
    if now is None or now.digest != before.digest:
        raise ConflictError(target, "somebody else changed it meanwhile; run the same again")
