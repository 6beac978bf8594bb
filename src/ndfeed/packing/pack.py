"""``ndfeed.pack``: rewrite a dataset into plain columns, completely or not at all."""

import os
import stat
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, overload

from ndfeed.dataset.arguments import as_bytes
from ndfeed.dataset.choosing import check_unmixed
from ndfeed.dataset.dataset import Dataset
from ndfeed.dataset.open import open as open_dataset
from ndfeed.dataset.packed_columns import describe_packed
from ndfeed.errors import AmbiguousError, ConflictError, Error, MissingError, SchemaError
from ndfeed.files import write
from ndfeed.files.folder import Folder
from ndfeed.formats.manifest import NAME, Field, Manifest
from ndfeed.index.source import Source
from ndfeed.index.table import Ints
from ndfeed.packing.plan import Plan, make_plan
from ndfeed.packing.repair import repair_blocks
from ndfeed.packing.request import (
    Forecast,
    Request,
    check_count,
    check_dtypes,
    check_target,
    find_manifest,
    read_packs,
    refuse_link,
)
from ndfeed.packing.source_rows import SourceRows
from ndfeed.packing.staging_folder import StagingFolder
from ndfeed.packing.stored_fields import find_fields, probe_row_bytes
from ndfeed.progress import Bar

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from ndfeed.packing.run import Progress

_MOST_WORKERS = 4096
_MOST_PARTS = 1 << 62


@overload
def pack(
    source: "Source | Dataset | Mapping[str, Source | Dataset]",
    target: str | os.PathLike[str],
    *,
    fields: Sequence[str] | None = ...,
    dtype: Mapping[str, object] | None = ...,
    shuffle: int | None = ...,
    names: bool = ...,
    rows_per_part: int | None = ...,
    append: bool = ...,
    repair: bool = ...,
    executor: "Executor | None" = ...,
    workers: int | None = ...,
    memory: int | str | None = ...,
    progress: "Progress | None" = ...,
    dry_run: Literal[False] = ...,
) -> Dataset: ...


@overload
def pack(
    source: "Source | Dataset | Mapping[str, Source | Dataset]",
    target: str | os.PathLike[str],
    *,
    fields: Sequence[str] | None = ...,
    dtype: Mapping[str, object] | None = ...,
    shuffle: int | None = ...,
    names: bool = ...,
    rows_per_part: int | None = ...,
    append: bool = ...,
    repair: bool = ...,
    executor: "Executor | None" = ...,
    workers: int | None = ...,
    memory: int | str | None = ...,
    progress: "Progress | None" = ...,
    dry_run: Literal[True],
) -> Forecast: ...


def pack(  # noqa: PLR0913 - what users say about a conversion
    source: "Source | Dataset | Mapping[str, Source | Dataset]",
    target: str | os.PathLike[str],
    *,
    fields: Sequence[str] | None = None,
    dtype: Mapping[str, object] | None = None,
    shuffle: int | None = None,
    names: bool = False,
    rows_per_part: int | None = None,
    append: bool = False,
    repair: bool = False,
    executor: "Executor | None" = None,
    workers: int | None = None,
    memory: int | str | None = None,
    progress: "Progress | None" = None,
    dry_run: bool = False,
) -> Dataset | Forecast:
    """Rewrite a dataset into plain ``.npy`` columns in the folder ``target``, and open that.

    ``source`` is a dataset, with whatever ``map`` it has, or what ``ndfeed.open`` takes. The target
    appears complete or not at all. After any interruption the same call resumes the work.

    ``fields``   the fields to keep, all by default.
    ``dtype``    dtypes to store fields in, ``{"image": "float16"}``; a value outside the range of
                 its new dtype is an error that names field, row and value.
    ``shuffle``  a seed: rows are written in a random order fixed by it.
    ``names``    also store the name of every row's source file: UTF-8 in the ragged field "file".
    ``rows_per_part``  split the columns; by default there is one part.
    ``append``   add rows to a packed dataset; those who have it open keep seeing what it was.
    ``repair``   write damaged blocks again from the source they were made from.
    ``executor`` runs the tasks: any ``concurrent.futures.Executor`` whose workers see the target's
                 folder. By default threads, or processes where these are faster. Pass
                 ``workers=`` with executors of ``concurrent.futures``: without it the memory limit
                 is divided for about one task per core.
    ``workers``  how many tasks run at once: by default what the executor has as ``max_workers``,
                 or else about one for each core.
    ``memory``   limit for all workers together, in bytes or as ``"2GB"``; default an eighth of RAM,
                 at most 2 GiB.
    ``progress`` called with the rows and bytes that were just written; first with those that an
                 earlier run had written.
    ``dry_run``  write nothing, and return what would be written and the space it needs as a
                 ``Forecast``. Raises what packing would raise at once, except for too little
                 space, which the forecast tells.
    """
    if dry_run and repair:
        raise ValueError("dry_run with repair: ndfeed.verify says what repair would write again")
    ds = source if isinstance(source, Dataset) else _open_source(source, fields)
    check_unmixed(ds, "pack()")
    if fields is not None:
        ds = ds.select(*([fields] if isinstance(fields, str) else fields))
    # Imported late: executors import logging, which ``import ndfeed`` can do without.
    from ndfeed.packing import executors, run  # noqa: PLC0415

    workers = check_count("workers", workers, 1, _MOST_WORKERS)
    pool = executors.WorkerPool(ds, executor, workers)
    request = Request(
        source=SourceRows(ds, names=names),
        target=check_target(target),
        dtypes=check_dtypes(dtype),
        shuffle=check_count("shuffle", shuffle, 0),
        rows_per_part=check_count("rows_per_part", rows_per_part, 1),
        append=append,
        memory=max(as_bytes(memory) // pool.workers, 1),
    )
    if repair:
        return repair_blocks(request)
    plan, order, before, done = _prepare(request)
    work = StagingFolder(request.target, plan.digest)
    if dry_run:
        if append and not done:
            run.check_places(work, plan)
        return _forecast(work, plan, done=done)
    if done:
        return run.open_finished(work)
    with Bar("packing", len(ds)) as bar, pool:
        tell = progress or (lambda rows, _: bar.advance(rows))
        return run.run_pack(request, plan, order, before, pool, tell)


def _open_source(
    source: "Source | Mapping[str, Source | Dataset]", fields: Sequence[str] | None
) -> Dataset:
    """Open only the fields to keep: whatever is wrong with others does not matter."""
    try:
        return open_dataset(source, fields=fields)
    except AmbiguousError as error:
        # A dropped field may decide what a sample is.
        try:
            return open_dataset(source)
        except Error:
            raise error from None


class _Preparation(NamedTuple):
    """A plan, the order of its rows, and what it is appended to; ``done`` if the target has it."""

    plan: Plan
    order: Ints | None
    before: Manifest | None
    done: bool = False


def _prepare(request: Request) -> _Preparation:
    """Plan the work, or raise if something else is at the target. Writes nothing."""
    before = find_manifest(request.target)
    if request.append and before is None:
        raise MissingError(
            request.target, "no packed dataset to append to", remedy="leave append out"
        )
    if request.append:
        refuse_link(request.target)
    fields = _choose_fields(request, before if request.append else None)
    row_bytes = probe_row_bytes(request.source.ds)
    if before is None:
        _check_free(request.target)
        return _Preparation(*make_plan(request, fields, row_bytes), before)
    if not request.append:
        plan, order = make_plan(request, fields, row_bytes)
        _check_same(request, before, plan)
        return _Preparation(plan, order, before, done=True)
    appended = _find_finished_append(request, before, fields, row_bytes)
    if appended is not None:
        return _Preparation(appended, None, before, done=True)
    first = _next_part(request, before)
    return _Preparation(*make_plan(request, fields, row_bytes, first, before.digest), before)


def _forecast(work: StagingFolder, plan: Plan, *, done: bool) -> Forecast:
    """Forecast what running a plan in a staging folder would write."""
    return Forecast(
        os.fsdecode(work.target),
        plan.rows,
        len(plan.parts) - 1,
        {field.name: describe_packed(field) for field in plan.fields},
        plan.columns.known_bytes,
        not plan.spooled,
        write.free_bytes(work.parent),
        "done" if done else "begun" if work.exists else "new",
    )


def _choose_fields(request: Request, before: Manifest | None) -> tuple[Field, ...]:
    """Return the fields to write: those of the dataset, or of what they are appended to."""
    names = request.source.names
    found = {f.name: f for f in find_fields(request.source.ds, request.dtypes, names=names)}
    if before is None:
        return tuple(found.values())
    path = os.path.join(request.target, NAME)
    if set(found) != {field.name for field in before.fields}:
        known = sorted(field.name for field in before.fields)
        raise SchemaError(
            path, f"expected fields {known}, found {sorted(found)}", remedy="choose with fields="
        )
    for field in before.fields:
        new = found[field.name]
        pairs = zip(field.shape, new.shape, strict=False)
        alike = len(field.shape) == len(new.shape) and all(a in (None, b) for a, b in pairs)
        if field.dtype != new.dtype or not alike:
            raise SchemaError(
                path,
                f"{field}: expected {field.dtype} {field.shape}, found {new.dtype} {new.shape}",
                remedy="cast it with dtype= or convert it with map",
            )
    return before.fields


def _check_free(target: bytes) -> None:
    """Refuse at once if the target could not be moved into place at the end."""
    parent, name = os.path.split(target)
    with Folder(parent, followed=True) as beside:
        status = beside.status(name)
        if status is None:
            return
        if not stat.S_ISDIR(status.st_mode):
            raise ConflictError(
                target, "exists and is not a folder", remedy="remove it or choose another name"
            )
        with beside.inner(name) as folder:
            if folder.names():
                raise ConflictError(target, "the folder is not empty", remedy="choose another one")


def _check_same(request: Request, before: Manifest, plan: Plan) -> None:
    """Refuse an existing target unless the same plan made it, in a run interrupted late."""
    packs = read_packs(before, os.path.join(request.target, NAME))
    if len(packs) != 1 or packs[0].plan != plan.pack.plan:
        raise ConflictError(
            request.target,
            "already holds another packed dataset",
            remedy="remove it, append to it, or choose another folder",
        )


def _find_finished_append(
    request: Request, before: Manifest, fields: tuple[Field, ...], row_bytes: int
) -> Plan | None:
    """Return the plan that appended these very rows last, in a run interrupted late."""
    last = read_packs(before, os.path.join(request.target, NAME))[-1:]
    if not last or last[0].fingerprint != request.source.ds.fingerprint or not last[0].base:
        return None  # created, not appended: the same rows may well be wanted again
    plan, _ = make_plan(request, fields, row_bytes, last[0].first, last[0].base)
    return plan if plan.pack.plan == last[0].plan else None


def _next_part(request: Request, before: Manifest) -> int:
    """Return the number of the first part to add, after all existing ones."""
    read_packs(before, os.path.join(request.target, NAME))
    used = [int(part.folder) for part in before.parts if part.folder.isdecimal()]
    found = max(used, default=-1) + 1
    if found + len(request.source) >= _MOST_PARTS or before.rows + len(request.source) >= 1 << 63:
        raise SchemaError(
            request.target, "no more rows or parts fit", remedy="pack them to another target"
        )
    return found
