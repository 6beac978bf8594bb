"""Samples that are whole files: open, read straight into the batch, close, file by file.

Files are visited in the order of the table, whatever the order of the batch, and each once.
Raw members that lie close together come with one read. The checksum of a stored member is
compared the first time this process reads it.
"""

from collections.abc import Sequence

import numpy as np

from ndfeed.dataset.column import Column
from ndfeed.dataset.members import decode, decode_into, inline, is_inline, view
from ndfeed.dataset.target import Target
from ndfeed.files.file import File, fetch
from ndfeed.formats.array import RAW
from ndfeed.formats.inflate import checksum_error, crc32
from ndfeed.index.table import Ints

_GAP = 4096


class WholeFiles:
    """Fills batches of a group whose samples are whole files."""

    def __init__(self, columns: tuple[Column, ...]) -> None:
        self._columns = columns
        self._plain = all(column.plain for column in columns)
        # Per column and file: no checksum is to be compared, or it has been.
        self._sound = [
            (column.table.crc[column.arrays] < 0) | (column.coding != RAW) for column in columns
        ]

    def fill(self, part: Ints, targets: Sequence[Target]) -> None:
        """Read the files ``part`` into ``targets``, one for each column of the group."""
        order = np.argsort(part, kind="stable")
        files = part[order]
        fresh = np.ones(len(files), bool)
        fresh[1:] = files[1:] != files[:-1]
        once = order[fresh]
        if self._plain and self._close_together(part[once]):
            self._fill_together(part[once], once.tolist(), targets)
        else:
            self._fill_each(part[once], once.tolist(), targets)
        for target, column in zip(targets, self._columns, strict=True):
            if column.any_swapped:
                which = np.zeros(len(part), bool)
                which[once] = (column.swapped & ~column.strided)[part[once]]
                target.swap(which)
        if len(once) < len(part):
            source = np.repeat(once, np.diff(np.append(np.flatnonzero(fresh), len(files))))
            for at in np.flatnonzero(~fresh).tolist():
                for target in targets:
                    target.copy(int(source[at]), int(order[at]))

    def _offsets(self, part: Ints) -> tuple[list[int], Ints, Ints]:
        """Columns by their place in the file, where each begins, and how long it is."""
        columns = self._columns
        starts = np.stack([column.first[part] for column in columns])
        by_place = np.argsort(starts[:, 0], kind="stable").tolist() if len(part) else []
        sizes = np.array([columns[c].field.nbytes for c in by_place], np.int64)
        return by_place, starts[by_place], sizes

    def _close_together(self, part: Ints) -> bool:
        """Do the columns follow each other with small gaps, in the same order in every file?"""
        if len(self._columns) == 1:
            return True
        _, starts, sizes = self._offsets(part)
        gaps = starts[1:] - starts[:-1] - sizes[:-1, None]
        return bool(((gaps >= 0) & (gaps <= _GAP)).all())

    def _fill_together(self, part: Ints, at: list[int], targets: Sequence[Target]) -> None:
        table = self._columns[0].table
        by_place, starts, sizes = self._offsets(part)
        if not by_place:
            return
        checked = [c for c in by_place if not self._sound[c][part].all()]
        skips = np.stack([table.skip[self._columns[c].arrays[part]] for c in by_place])
        lead = np.minimum(skips[0], _GAP) if checked else np.zeros_like(skips[0])
        begins = (starts[0] - lead).tolist()
        gaps = np.vstack([lead, starts[1:] - starts[:-1] - sizes[:-1, None]]).T.tolist()
        scratch = [memoryview(bytearray(_GAP)) for _ in by_place]
        ends, text = table.path_ends, memoryview(table.path_bytes)  # type: ignore[arg-type]
        paths = zip(ends[part].tolist(), ends[part + 1].tolist(), strict=True)
        expected = table.identity[part, :4].tolist()
        rooms = [(targets[c].memory, int(size)) for c, size in zip(by_place, sizes, strict=True)]
        for i, (start, end) in enumerate(paths):
            buffers: list[memoryview] = []
            for (memory, size), gap, spare in zip(rooms, gaps[i], scratch, strict=True):
                if gap:
                    buffers.append(spare[:gap])
                buffers.append(memory(at[i], size))
            path = table.base + bytes(text[start:end])
            fetch(path, expected[i], begins[i], buffers)
            if checked:
                self._check(path, int(part[i]), by_place, buffers, gaps[i])

    def _check(
        self,
        path: bytes,
        part: int,
        by_place: list[int],
        buffers: list[memoryview],
        gaps: list[int],
    ) -> None:
        """Compare the checksums of the members just read, as far as not done before."""
        held = iter(buffers)
        for c, gap in zip(by_place, gaps, strict=True):
            before = next(held) if gap else memoryview(b"")
            data = next(held)
            column = self._columns[c]
            array = int(column.arrays[part])
            skip = int(column.table.skip[array])
            if self._sound[c][part] or skip > gap:
                continue
            if skip + len(data) == column.table.length[array]:
                wanted = int(column.table.crc[array])
                found = crc32(data, crc32(before[gap - skip :]))
                if found != wanted:
                    raise checksum_error(path, wanted, found)
            self._sound[c][part] = True

    def _fill_each(self, part: Ints, at: list[int], targets: Sequence[Target]) -> None:
        table = self._columns[0].table
        for p, i in zip(part.tolist(), at, strict=True):
            file_number = int(self._columns[0].file[p])
            with File(table.path(file_number)) as file:
                file.expect(table.expected(file_number))
                for c, (column, target) in enumerate(zip(self._columns, targets, strict=True)):
                    read_whole(file, column, p, target, i)
                    self._check_alone(file, c, column, p, target, i)

    def _check_alone(
        self, file: File, c: int, column: Column, part: int, target: Target, at: int
    ) -> None:
        if self._sound[c][part]:
            return
        table, array = column.table, int(column.arrays[part])
        skip, size = int(table.skip[array]), int(column.nbytes[part])
        if not column.strided[part] and skip + size == table.length[array]:
            found = crc32(target.memory(at, size), crc32(file.read(int(table.offset[array]), skip)))
            if found != table.crc[array]:
                raise checksum_error(file.path, int(table.crc[array]), found)
        self._sound[c][part] = True


def read_whole(file: File, column: Column, part: int, target: Target, at: int) -> None:
    """One array of an open file, whatever its coding and order, into sample ``at``."""
    size = int(column.nbytes[part])
    if is_inline(column, part):
        target.sample(at)[...] = inline(column, part)[0]
    elif not size:
        return
    elif column.strided[part]:
        data = decode(file, column, part)
        skip = int(column.table.skip[column.arrays[part]])
        target.sample(at)[...] = view(column, part, data, skip)[0]
    elif column.coding[part] == RAW:
        file.read_into(int(column.first[part]), [target.memory(at, size)])
    else:
        decode_into(file, column, part, target.memory(at, size))
