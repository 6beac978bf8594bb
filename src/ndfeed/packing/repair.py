"""Repairs damaged blocks of a packed dataset from the source they were made from.

Only blocks whose checksum is wrong are written, and only with bytes that have the right one. So
it may be interrupted at any moment: what is repaired stays so, and the rest is left for the next
run. Offsets and shapes come first, since they say which samples the values of a block belong to.

A column is repaired in place if it is a plain file owned by this user, of the right size, without
another hard link: copying a column for one damaged block could take hours. Any other (missing, of
another size, hard-linked, owned by somebody else) is made anew in a staging folder beside the
dataset, from its undamaged blocks and the source, and then replaces the name; other names of the
old file are not touched. Symbolic links, including those to part folders, are refused.
"""

import hashlib
import os
import stat
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import NamedTuple, Self

import numpy as np

from ndfeed.dataset.dataset import Dataset
from ndfeed.dataset.map_steps import Batch
from ndfeed.dataset.open import open as open_dataset
from ndfeed.errors import ChangedError, Error, ManifestError, MissingError, SchemaError
from ndfeed.files.folder import Folder
from ndfeed.files.write import Output
from ndfeed.formats.checksums import block_rows, block_span, find_damaged
from ndfeed.formats.inflate import crc32
from ndfeed.formats.manifest import NAME, Column, Field, Manifest, Part
from ndfeed.formats.npy import preamble
from ndfeed.index.build import open_column
from ndfeed.index.table import Ints
from ndfeed.packing.columns import as_bytes
from ndfeed.packing.plan import map_names, shuffle_rows
from ndfeed.packing.request import Pack, Request, find_manifest, read_packs, refuse_link
from ndfeed.packing.source_rows import NAMES, RowReader, SourceRows
from ndfeed.packing.staging_folder import StagingFolder
from ndfeed.packing.stored_fields import Offsets, StoredValues, count_values, to_stored_values
from ndfeed.packing.tasks import DATA

_DIGEST = hashlib.sha256(b"repair").hexdigest()[:32]
_NEW = b"column.npy"
_AT_ONCE = 1 << 20
_ROLES = {"offsets": 0, "shapes": 1, "rows": 2, "values": 3}


class _Damage(NamedTuple):
    """Damaged blocks of a column, and the samples that its part holds of its pack."""

    pack: int
    start: int  # row of the pack with which the part starts
    part: Part
    column: Column
    field: Field
    path: bytes
    blocks: list[int]


def repair_blocks(request: Request) -> Dataset:
    """Write damaged blocks again, if they come from this source, and open the dataset."""
    manifest = find_manifest(request.target)
    if manifest is None:
        raise MissingError(request.target, "no packed dataset to repair: no ndfeed.json in it")
    refuse_link(request.target)
    packs = read_packs(manifest, os.path.join(request.target, NAME))
    owners = _assign_packs(manifest, packs)
    damages = sorted(
        _find_damage(request.target, manifest, owners), key=lambda one: _ROLES[one.column.role]
    )
    rows = Counter[int]()
    for pack, part in zip(owners, manifest.parts, strict=True):
        rows[pack] += part.rows
    problems = [
        (damage, _find_obstacle(request, damage, packs, rows[damage.pack])) for damage in damages
    ]
    with _RepairTarget(request.target) as target:
        for damage, problem in problems:
            if problem is None:
                _Repair(request.source, target, damage, packs[damage.pack]).run()
    for _, problem in problems:
        if problem is not None:  # made from something else, from which it can be repaired likewise
            raise problem
    return open_dataset(os.fsdecode(request.target))


def _assign_packs(manifest: Manifest, packs: list[Pack]) -> list[int]:
    """Return for each part the pack that made it, -1 where none is recorded."""
    return [sum(pack.first <= n for pack in packs) - 1 for n in range(len(manifest.parts))]


def _find_damage(target: bytes, manifest: Manifest, owners: list[int]) -> Iterator[_Damage]:
    """Yield every column with damaged blocks."""
    fields = {field.name: field for field in manifest.fields}
    start, before = 0, -1
    for pack, part in zip(owners, manifest.parts, strict=True):
        start, before = 0 if pack != before else start, pack
        for column in part.columns:
            path = os.path.join(target, part.folder.encode(), column.file.encode())
            field = fields[column.field]
            every = range(column.blocks + 1)
            found = list(every)
            try:
                with open_column(path) as file:
                    found = find_damaged(file, column, field.row_bytes(column.role), every)
                    whole = file.size == column.nbytes
            except MissingError:
                whole = False
            if found or not whole:
                yield _Damage(pack, start, part, column, field, path, found)
        start += part.rows


def _find_obstacle(request: Request, damage: _Damage, packs: list[Pack], rows: int) -> Error | None:
    """Say why damage cannot be repaired from this source, if so; ``rows`` are its pack's."""
    if damage.pack < 0:
        return SchemaError(
            damage.path,
            "its manifest does not record what it was made from",
            remedy="pack it again",
        )
    made, ds = packs[damage.pack], request.source.ds
    if made.fingerprint != ds.fingerprint:
        return ChangedError(
            damage.path,
            f"made from data with fingerprint {made.fingerprint}, found {ds.fingerprint}",
            remedy="repair it with the source it was packed from",
        )
    if made.maps != map_names(ds):
        return ChangedError(
            damage.path,
            f"made with the maps {made.maps}, found {map_names(ds)}",
            remedy="repair it with those",
        )
    if not made.rows == rows == len(ds):
        path = os.path.join(request.target, NAME)
        problem = f"expected {len(ds)} rows of this source, found {rows} in its parts"
        return ManifestError(path, f"{problem}, {made.rows} recorded", remedy="pack it again")
    return None


class _RepairTarget:
    """The dataset, open, and a staging folder for columns that are made anew, if there are any."""

    def __init__(self, path: bytes) -> None:
        self._path = path
        self._stack = ExitStack()
        self._work = StagingFolder(path, _DIGEST)
        self._entered = False

    def __enter__(self) -> Self:
        self.folder = self._stack.enter_context(Folder(self._path))
        return self

    def __exit__(self, *_: object) -> None:
        if self._entered or self._work.exists:  # by an earlier run
            with suppress(Error):
                self._own_staging()
                self._work.remove()
        self._stack.close()

    def _own_staging(self) -> None:
        if not self._entered:
            self._stack.enter_context(self._work)
            self._entered = True

    def make_folder(self) -> Folder:
        """Return a folder for columns until they are complete."""
        self._own_staging()
        self._work.inside.inner(DATA, new=True).close()
        return self._work.inside.inner(DATA, b"00000", new=True)


class _Repair:
    """Writes the damaged blocks of one column."""

    def __init__(
        self, source: SourceRows, target: _RepairTarget, damage: _Damage, pack: Pack
    ) -> None:
        self._source = SourceRows(source.ds, names=pack.names)
        self._target = target
        self._damage = damage
        self._shuffle = pack.shuffle
        self._rows = pack.rows
        self._name = damage.column.file.encode()

    def run(self) -> None:
        """Write them; each is compared with its checksum first."""
        part = self._damage.part.folder.encode()
        with self._target.folder.inner(part, new=True) as folder:
            status = folder.status(self._name)
            if self._is_ours(status):
                with folder.output(self._name) as output:
                    self._write_blocks(output)
                    output.sync()
                return
            with self._target.make_folder() as new:
                new.remove(_NEW)  # left by an earlier run
                with new.output(_NEW, new=True) as output:
                    output.allocate(self._damage.column.nbytes)
                    if status is not None:
                        self._copy_undamaged(output)
                    self._write_blocks(output)
                    output.sync()
                new.move(_NEW, folder, self._name, over=True)
            folder.sync()

    def _is_ours(self, status: os.stat_result | None) -> bool:
        """May the column be repaired in place?"""
        return (
            status is not None
            and stat.S_ISREG(status.st_mode)
            and status.st_nlink <= 1
            and status.st_size == self._damage.column.nbytes
            and status.st_uid == getattr(os, "geteuid", lambda: 0)()
        )

    def _copy_undamaged(self, output: Output) -> None:
        """Copy the undamaged blocks of a column that is made anew."""
        one, damaged = self._damage, set(self._damage.blocks)
        size = one.field.row_bytes(one.column.role)
        with open_column(one.path) as file:
            for block in range(one.column.blocks + 1):
                start, end = block_span(one.column, size, block)
                for at in range(start, end if block not in damaged else start, _AT_ONCE):
                    output.write(at, file.read(at, min(_AT_ONCE, end - at)))

    def _write_blocks(self, output: Output) -> None:
        one = self._damage
        size = one.field.row_bytes(one.column.role)
        for block in one.blocks:
            start, end = block_span(one.column, size, block)
            data = self._make_header() if block == 0 else self._make_block(block, output)
            if len(data) != end - start or crc32(data) != one.column.checksum(block):
                first = self._source_row(block_rows(one.column, block)[0] if block else 0)
                raise ChangedError(
                    self._source.path_of(first),
                    f"gives other values of {one.field.name!r} than were packed",
                    remedy="restore the source, or pack again",
                )
            output.write(start, data)

    def _make_header(self) -> bytes:
        one = self._damage
        dtype, shape = one.field.stored(one.column.role)
        return preamble(dtype, (one.column.rows, *shape))

    def _make_block(self, block: int, output: Output) -> bytes:
        one = self._damage
        first, last = block_rows(one.column, block)
        if not one.field.row_bytes(one.column.role):
            return b""
        if one.column.role == "rows":
            return bytes(self._read_samples(first, last).data)
        if one.column.role == "shapes":
            return as_bytes(self._read_shapes(first, last).astype("<i8")).tobytes()
        if one.column.role == "offsets":
            return self._make_offsets(first, last, output)
        return self._read_values(first, last)

    def _source_row(self, row: int) -> int:
        """Return the row of the dataset that became a row of the part."""
        return int(self._rows_of(row, row + 1)[0]) if row < self._damage.part.rows else 0

    def _rows_of(self, first: int, last: int) -> Ints:
        at = self._damage.start + np.arange(first, last)
        return shuffle_rows(at, self._rows, self._shuffle)

    def _read_samples(self, first: int, last: int) -> StoredValues:
        """Return the samples of the field in rows of the part, as they are stored."""
        rows = self._rows_of(first, last)
        samples = self._source.samples(rows)
        order = np.argsort(samples, kind="stable")  # streams are read forwards
        with RowReader(self._source) as reader:
            batch = reader.read(rows[order])
        back = np.argsort(order, kind="stable")
        values = batch.get(self._damage.field.name)
        turned: Batch = dict(batch)
        if isinstance(values, np.ndarray):
            turned[self._damage.field.name] = values[back]
        elif values is not None:
            turned[self._damage.field.name] = [values[i] for i in back.tolist()]
        return to_stored_values(self._damage.field, turned, rows, self._source)

    def _read_shapes(self, first: int, last: int) -> Ints:
        name = self._damage.field.name
        if self._source.ds.steps and name != NAMES:
            return self._read_samples(first, last).shapes
        return self._source.shapes(name, self._rows_of(first, last))

    def _make_offsets(self, first: int, last: int, output: Output) -> bytes:
        """Compute offsets from the one before them and the lengths of samples."""
        before = 0
        if first:
            data = output.read(self._damage.column.header + 8 * (first - 1), 8)
            before = int.from_bytes(data, "little", signed=True)
        counts = count_values(self._damage.field, self._read_shapes(max(first - 1, 0), last - 1))
        ends = before + np.cumsum(counts)
        found = ends if first else np.concatenate([[0], ends])
        return as_bytes(found.astype("<i8")).tobytes()

    def _read_values(self, first: int, last: int) -> bytes:
        """Return values [first, last), cut out of the samples that have them."""
        one = self._damage
        beside = next(
            c for c in one.part.columns if c.field == one.field.name and c.role == "offsets"
        )
        folder = os.path.dirname(one.path)
        with open_column(os.path.join(folder, beside.file.encode())) as file:
            offsets = Offsets(file, beside)
            a, b = offsets.samples_of(first, last)
            begin = offsets[a]
        data = self._read_samples(a, b).data
        size = one.field.row_bytes("values")
        return data[(first - begin) * size : (last - begin) * size].tobytes()
