"""Damaged blocks of a packed dataset, written again from the source they were made from.

Only blocks whose checksum is wrong are touched, and only with bytes that have the right one. So
it may end at any moment: what is repaired stays so, and the rest is for the next time. Offsets
and shapes come first, since they say which samples the values of a block belong to.
"""

import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ndfeed.dataset.dataset import Dataset
from ndfeed.dataset.open import open as open_dataset
from ndfeed.dataset.step import Batch
from ndfeed.errors import ChangedError, Error, MissingError, SchemaError
from ndfeed.files import write
from ndfeed.files.file import File
from ndfeed.files.write import Output
from ndfeed.formats.inflate import crc32
from ndfeed.formats.manifest import Column, Field, Manifest, Part
from ndfeed.formats.npy import preamble
from ndfeed.index.table import Ints
from ndfeed.order.permutation import key_of, permuted
from ndfeed.pack import blocks
from ndfeed.pack.fields import NAMES
from ndfeed.pack.plan import lengths, map_names
from ndfeed.pack.publish import manifest_of, packs_of
from ndfeed.pack.request import Request
from ndfeed.pack.rows import Reading, Rows
from ndfeed.pack.store import as_bytes
from ndfeed.pack.values import Stored, stored

_ROLES = {"offsets": 0, "shapes": 1, "rows": 2, "values": 3}


class _Damage(NamedTuple):
    """Damaged blocks of a column, and the samples that its part holds of its pack."""

    pack: int
    start: int  # row of the pack with which the part begins
    part: Part
    column: Column
    field: Field
    path: bytes
    blocks: list[int]


def repaired(request: Request) -> Dataset:
    """Write damaged blocks again, if they come from this source, and open the dataset."""
    manifest = manifest_of(request.target)
    if manifest is None:
        raise MissingError(request.target, "no packed dataset to repair: no ndfeed.json in it")
    damages = sorted(_damages(request.target, manifest), key=lambda one: _ROLES[one.column.role])
    packs = packs_of(manifest)
    problems = [(damage, _problem(request, damage, packs)) for damage in damages]
    for damage, problem in problems:
        if problem is None:
            _Repair(request.source, damage, packs[damage.pack]).run()
    for _, problem in problems:
        if problem is not None:  # made from something else, which can be repaired alike
            raise problem
    return open_dataset(os.fsdecode(request.target))


def _damages(target: bytes, manifest: Manifest) -> Iterator[_Damage]:
    """Every column with damaged blocks."""
    fields = {field.name: field for field in manifest.fields}
    firsts = [pack.get("first", 0) for pack in packs_of(manifest)]
    start, before = 0, -1
    for number, part in enumerate(manifest.parts):
        pack = sum(first <= number for first in firsts) - 1
        start, before = 0 if pack != before else start, pack
        for column in part.columns:
            path = os.path.join(target, part.folder.encode(), column.file.encode())
            field = fields[column.field]
            every = range(column.blocks + 1)
            found = list(every)
            try:
                with File(path) as file:
                    found = blocks.damaged(file, column, field.row_bytes(column.role), every)
                    whole = file.size == column.nbytes
            except MissingError:
                whole = False
            if found or not whole:
                yield _Damage(pack, start, part, column, field, path, found)
        start += part.rows


def _problem(request: Request, damage: _Damage, packs: list[dict[str, Any]]) -> Error | None:
    """Why something cannot be repaired from this source, if it cannot."""
    if damage.pack < 0:
        return SchemaError(damage.path, "it does not say what it was made from; pack it again")
    made, ds = packs[damage.pack], request.source.ds
    if made.get("fingerprint") != ds.fingerprint:
        return ChangedError(
            damage.path,
            f"made from data with fingerprint {made.get('fingerprint')}, found "
            f"{ds.fingerprint}; repair it with the source it was packed from",
        )
    if made.get("maps") != map_names(ds):
        return ChangedError(
            damage.path,
            f"made with the maps {made.get('maps')}, found {map_names(ds)}; repair it with those",
        )
    return None


class _Repair:
    """Writes the damaged blocks of one column."""

    def __init__(self, source: Rows, damage: _Damage, pack: dict[str, Any]) -> None:
        self._source = Rows(source.ds, names=bool(pack.get("names")))
        self._damage = damage
        self._shuffle: int | None = pack.get("shuffle")
        self._rows: int = pack.get("rows", 0)

    def run(self) -> None:
        """Write them, each compared before it is."""
        one = self._damage
        write.make_folder(os.path.dirname(one.path))
        with Output(one.path, new=True) as output:
            output.allocate(one.column.nbytes)
            for block in one.blocks:
                data = self._header() if block == 0 else self._block(block)
                wanted = int(one.column.crc32[8 * block : 8 * block + 8], 16)
                if crc32(data) != wanted:
                    first = self._row(blocks.rows(one.column, block)[0] if block else 0)
                    raise ChangedError(
                        self._source.path_of(first),
                        f"gives other values of {one.field.name!r} than were packed; put back "
                        f"what was, or pack again",
                    )
                size = one.field.row_bytes(one.column.role)
                output.write(blocks.span(one.column, size, block)[0], data)
            output.sync()
        write.sync_folder(os.path.dirname(one.path))

    def _header(self) -> bytes:
        one = self._damage
        dtype, shape = one.field.stored(one.column.role)
        return preamble(dtype, (one.column.rows, *shape))

    def _block(self, block: int) -> bytes:
        one = self._damage
        first, last = blocks.rows(one.column, block)
        if one.column.role == "rows":
            return bytes(self._read(first, last).data)
        if one.column.role == "shapes":
            return as_bytes(self._shapes(first, last).astype("<i8")).tobytes()
        if one.column.role == "offsets":
            return self._offsets(first, last)
        return self._values(first, last)

    def _row(self, row: int) -> int:
        """The row of the dataset that became a row of the part."""
        return int(self._rows_of(row, row + 1)[0]) if row < self._damage.part.rows else 0

    def _rows_of(self, first: int, last: int) -> Ints:
        at = self._damage.start + np.arange(first, last)
        if self._shuffle is None:
            return at
        return permuted(at, self._rows, key_of("exact", self._shuffle, 0))

    def _read(self, first: int, last: int) -> Stored:
        """The samples of the field in rows of the part, as they are stored."""
        rows = self._rows_of(first, last)
        samples = self._source.samples(rows)
        order = np.argsort(samples, kind="stable")  # streams are read forwards
        with Reading(self._source) as reading:
            batch = reading.read(rows[order])
        back = np.argsort(order, kind="stable")
        values = batch.get(self._damage.field.name)
        turned: Batch = dict(batch)
        if isinstance(values, np.ndarray):
            turned[self._damage.field.name] = values[back]
        elif values is not None:
            turned[self._damage.field.name] = [values[i] for i in back.tolist()]
        return stored(self._damage.field, turned, rows, self._source)

    def _shapes(self, first: int, last: int) -> Ints:
        name = self._damage.field.name
        if self._source.ds.steps and name != NAMES:
            return self._read(first, last).shapes
        return self._source.shapes(name, self._rows_of(first, last))

    def _offsets(self, first: int, last: int) -> bytes:
        """Offsets follow from the one before them and the lengths of samples."""
        before = 0
        if first:
            with File(self._damage.path) as file:
                data = file.read(self._damage.column.header + 8 * (first - 1), 8)
            before = int.from_bytes(data, "little")
        counts = lengths(self._damage.field, self._shapes(max(first - 1, 0), last - 1))
        ends = before + np.cumsum(counts)
        found = ends if first else np.concatenate([[0], ends])
        return as_bytes(found.astype("<i8")).tobytes()

    def _values(self, first: int, last: int) -> bytes:
        """Values [first, last), cut out of the samples that have them."""
        one = self._damage
        beside = next(
            c for c in one.part.columns if c.field == one.field.name and c.role == "offsets"
        )
        folder = os.path.dirname(one.path)
        with File(os.path.join(folder, beside.file.encode())) as file:
            offsets = blocks.Offsets(file, beside)
            a, b = offsets.samples(first, last)
            begin = offsets[a]
        data = self._read(a, b).data
        size = one.field.row_bytes("values")
        return data[(first - begin) * size : (last - begin) * size].tobytes()
