"""Samples too large for memory: copied some elements at a time, field by field.

That needs values that lie one behind the other, in a file or in a stream. What is scattered
(Fortran order) or goes through a map is held whole, as one sample is the least to be had.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ndfeed.dataset.column import Column, is_converted
from ndfeed.dataset.members import verify
from ndfeed.files.file import File
from ndfeed.formats.array import DEFLATE, GZIP, RAW
from ndfeed.formats.inflate import Decoding
from ndfeed.formats.types import EXTENDED, delivered
from ndfeed.pack.fields import NAMES
from ndfeed.pack.rows import Reading, Rows

Chunks = Iterator[NDArray[Any]]


def chunks(source: Rows, reading: Reading, row: int, most: int) -> Iterator[tuple[str, Chunks]]:
    """Every field of a row, and its values in flat arrays of at most ``most`` bytes."""
    sample = source.samples(np.array([row]))
    for group in source.ds.groups:
        place = group.locate(sample)
        part, own = int(place.part[0]), int(place.row[0])
        for column in group.columns:
            name = column.field.name
            if column.nbytes[part] > most and _streams(column, part):
                yield name, _copied(column, part, own, most)
            else:
                values = np.asarray(reading.column(group, column, sample)[0])
                yield name, iter([values.reshape(-1)])
    if source.names:
        yield NAMES, iter(source.file_names(sample))


def _streams(column: Column, part: int) -> bool:
    known = int(column.coding[part]) in (RAW, DEFLATE, GZIP)
    straight = not column.strided[part] and not is_converted(column)
    return known and straight and column.offsets is None


def _copied(column: Column, part: int, row: int, most: int) -> Chunks:
    table, array = column.table, int(column.arrays[part])
    number = int(table.file[array])
    kind = table.dtypes[table.dtype[array]]
    dtype = delivered(kind) if kind in EXTENDED else np.dtype(kind)
    size = int(column.nbytes[part])
    start = int(column.first[part]) + row * size
    step = max(most // dtype.itemsize, 1) * dtype.itemsize
    stored = int(table.coding[array]) == RAW
    if stored and column.whole[part]:  # else whoever packs rows sees to it, once for all of them
        one = np.array([part])
        verify([replace(column, arrays=column.arrays[one], whole=column.whole[one])])
    with File(table.path(number), table.expected(number)) as file:
        place = int(table.offset[array]), int(table.length[array])
        facts = int(table.coding[array]), int(table.decoded[array]), int(table.crc[array])
        decoding = None if stored else Decoding(file, place, *facts)
        if decoding is not None:
            decoding.skip(start)
        for at in range(0, size, step):
            data = np.empty(min(step, size - at), np.uint8)
            memory: memoryview = data.data
            if decoding is None:
                file.read_into(start + at, [memory])
            else:
                decoding.read_into(memory)
            yield data.view(dtype)
        if decoding is not None:
            decoding.finish()
