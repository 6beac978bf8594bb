"""Check a table that was read from a file: every number, as if an attacker had written it.

What holds for tables made by ``build``, because the formats check it in every file, is checked
here for all files at once: numbers refer to existing things, streams are within their files, and
elements within their streams. A table that passes can be read without leaving the files it names,
and those are within the source. It may still describe them wrongly: only a signature rules it out.

Everything is a ``ValueError``, and costs a few passes over each column. Most tables are small, so
what counts is the number of calls: ``np.count_nonzero`` of a comparison takes a fraction of the
time of ``any`` or of a reduction, and up to ``_FEW`` numbers are faster to check as a list.
"""

import math
import os
from itertools import pairwise
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from ndfeed.files import listing
from ndfeed.files.listing import Paths
from ndfeed.formats.description import (
    CODINGS,
    DEFLATE,
    GZIP,
    INLINE,
    LATIN1,
    MOST_BYTES,
    MOST_DIMENSIONS,
    MOST_RATIO,
    NO_CRC,
    RAW,
)
from ndfeed.formats.dtypes import canonical, itemsize
from ndfeed.index.table import Ints, Table

_MOST_NAME = 1 << 16
_FACTS = 5  # numbers in a file's identity
_INLINE_BYTES = 8
_SPARE = 1024  # bytes of deflate's own, as allowed by formats
_WIDE, _TIMES = 1 << 30, 1000  # elements that share bytes and exceed both are a bomb
_LARGE = float(1 << 62)  # floating-point products beyond this are recomputed exactly
_AT_ONCE = 1 << 16
_FEW = 32
_UNSIGNED = {size: np.dtype(f"u{size}") for size in (1, 4, 8)}


def check(table: Table, formats: tuple[str, ...]) -> None:
    """Refuse a table that could not have been built from files; ``formats`` are the known ones."""
    _check_counts(table)
    _check_paths(table)
    _check_names(table, formats)
    _check_notes(table)
    lengths = _lengths(table.dims)
    sizes = np.array([itemsize(name) for name in table.dtypes], np.int64)
    plain = not _any(table.coding)
    held = _check_streams(table, plain)
    _check_elements(table, lengths, sizes, held, plain)


def _refuse(problem: str) -> NoReturn:
    raise ValueError(f"the table is malformed: {problem}")


def _check_range(what: str, column: NDArray[np.integer], low: int, high: int) -> None:
    """Refuse numbers outside of ``[low, high)``."""
    if len(column) <= _FEW:
        numbers = column.tolist()
        if numbers and not low <= min(numbers) <= max(numbers) < high:
            _refuse(f"{what} out of bounds")
        return
    # In one pass: counted from ``low`` as unsigned numbers, those below it are large.
    counted = (column - low if low else column).view(_UNSIGNED[column.itemsize])
    if np.count_nonzero(counted >= high - low):
        _refuse(f"{what} out of bounds")


def _any(column: NDArray[np.integer] | NDArray[np.bool_]) -> bool:
    """Return whether any number of a column differs from 0."""
    return any(column.tolist()) if len(column) <= _FEW else bool(np.count_nonzero(column))


def _any_negative(column: Ints) -> bool:
    """Return whether any number of a column is below 0."""
    if len(column) <= _FEW:
        return min(column.tolist(), default=0) < 0
    return bool(np.count_nonzero(column < 0))


def _check_order(problem: str, column: NDArray[np.integer], *, least: int = 0) -> None:
    """Refuse numbers that do not grow by ``least`` at least from one to the next."""
    if len(column) <= _FEW:
        wrong = any(b - a < least for a, b in pairwise(column.tolist()))
    else:
        before, after = column[:-1], column[1:]  # not subtracted: that could overflow
        wrong = bool(np.count_nonzero(after <= before if least else after < before))
    if wrong:
        _refuse(problem)


def _check_counts(table: Table) -> None:
    """Check that columns over files have one length, and those over arrays, too."""
    files, arrays = len(table.identity), len(table.file)
    if not files:
        _refuse("no files")
    if table.identity.shape != (files, _FACTS) or len(table.format) != files:
        _refuse("columns over files differ in length")
    columns = (
        table.name, table.dtype, table.shape, table.strides, table.offset, table.length,
        table.skip, table.decoded, table.crc, table.coding,
    )  # fmt: skip
    if {len(column) for column in columns} != {arrays}:
        _refuse("columns over arrays differ in length")
    _check_order("arrays are not in the order of their files", table.file)
    if arrays and not 0 <= table.file[0] <= table.file[-1] < files:  # they are in order
        _refuse("files out of bounds")
    if _any_negative(table.identity[:, 2]):
        _refuse("sizes out of bounds")


def _check_paths(table: Table) -> None:
    ends, text = table.path_ends, table.path_bytes
    if len(ends) != table.files + 1 or ends[0] != 0 or ends[-1] != len(text):
        _refuse("paths do not end where their text does")
    _check_order("paths overlap", ends, least=1)
    if b"\0" in table.base or np.count_nonzero(text) != len(text):
        _refuse("a path with a zero byte")


def _check_names(table: Table, formats: tuple[str, ...]) -> None:
    """Check that numbers of names, types, formats, codings and notes are in range."""
    if table.formats != formats[: len(table.formats)]:
        _refuse("unknown formats")
    _check_range("formats", table.format, 0, len(table.formats))
    if _any(table.format == formats.index("memory")):
        _refuse("a file that is memory")
    _check_uses("names", table.name, len(table.names))
    _check_uses("types", table.dtype, len(table.dtypes))
    _check_range("codings", table.coding, 0, len(CODINGS))
    _check_range("checksums", table.crc, NO_CRC, 1 << 32)
    if any(len(name) > _MOST_NAME for name in table.names):
        _refuse("a field name beyond all bounds")
    if any(canonical(name) != name for name in table.dtypes):
        _refuse("a type by another name than its own")


def _check_uses(what: str, numbers: NDArray[np.int32], count: int) -> None:
    """Refuse numbers outside of ``[0, count)``, and any in it that does not occur."""
    _check_range(what, numbers, 0, count)
    if len(numbers) <= _FEW:
        unused = len(set(numbers.tolist())) < count
    else:
        unused = count > 1 and not np.bincount(numbers, minlength=count).all()
    if unused:
        _refuse(f"{what} that no array has")


def _check_notes(table: Table) -> None:
    """Check that notes are on existing files and can be shown to users."""
    if any(not 0 <= file < table.files or not text.isprintable() for file, text in table.notes):
        _refuse("a note on no file, or one that cannot be printed")
    if not all(text.isprintable() for text in table.ignored):
        _refuse("a name that cannot be printed")
    if table.remarked < len(table.notes) or table.passed_over < len(table.ignored):
        _refuse("more notes than were counted")
    if max(table.remarked, table.passed_over) >= MOST_BYTES:
        _refuse("notes beyond all bounds")


def _lengths(dims: Ints) -> Ints:
    """Return lengths and strides, padded with ones, after checking their ranks."""
    if dims.ndim != 2 or not dims.shape[1]:
        _refuse("shapes without a rank")
    width, lengths = dims.shape[1] - 1, dims[:, 1:]
    if _any_negative(dims.reshape(-1)):
        _refuse("lengths out of bounds")
    _check_range("ranks", dims[:, 0], 0, min(width, MOST_DIMENSIONS) + 1)
    if not _any(dims[:, 0] != width):
        return lengths
    unused = np.arange(width) >= dims[:, :1]
    if np.count_nonzero(lengths * unused):
        _refuse("lengths beyond the rank")
    return np.where(unused, 1, lengths)


def _check_streams(table: Table, plain: bool) -> Ints:
    """Per array: bytes of its stream when decoded, which lies within its file.

    ``plain`` if none is coded.
    """
    inline = table.coding == INLINE
    offset = table.offset if plain else np.where(inline, 0, table.offset)
    # Of numbers combined with "or", the sign bit is set if it is in any of them.
    if _any_negative(offset | table.length | table.skip | table.decoded):
        _refuse("offsets or lengths out of bounds")
    # Compared by subtraction: sums could overflow. Where an offset is beyond the end, less than
    # nothing is left, and a length is 0 at least.
    if _any(table.length > table.identity[:, 2].take(table.file) - offset):
        _refuse("a stream beyond the end of its file")
    if plain:
        if _any(table.decoded):
            _refuse("a decoded length of what is not coded")
        return table.length
    _check_codings(table, inline)
    coded = np.where(table.coding == RAW, table.length, table.decoded)
    return np.where(inline, _INLINE_BYTES, coded)


def _check_codings(table: Table, inline: NDArray[np.bool_]) -> None:
    """Check that decoded lengths and checksums are possible for each coding."""
    most = np.minimum(table.length, MOST_BYTES // (2 * MOST_RATIO)) * MOST_RATIO + _SPARE
    bound = np.select(
        [table.coding == RAW, inline, table.coding == LATIN1], [0, 0, table.length], most
    )
    if (table.decoded > bound).any():
        _refuse("a decoded length that its coding cannot have")
    if table.length[inline].any() or table.skip[inline].any():
        _refuse("bytes of a number that has none")
    if (table.crc[(table.coding == GZIP) | (table.coding == LATIN1) | inline] != NO_CRC).any():
        _refuse("a checksum where there is none")
    if (table.crc[table.coding == DEFLATE] == NO_CRC).any():
        _refuse("no checksum where there is one")


def _check_elements(table: Table, lengths: Ints, sizes: Ints, held: Ints, plain: bool) -> None:
    """Check that all elements of an array are within its stream."""
    _check_range("shapes", table.shape, 0, len(lengths))
    _check_range("strides", table.strides, -1, len(lengths))
    size = sizes.take(table.dtype)
    _check_products(lengths, sizes, table)
    extent = lengths.prod(axis=1).take(table.shape) * size
    if not plain:
        inline = table.coding == INLINE
        if table.dims[table.shape[inline], 0].any():
            _refuse("a number with axes")
        text = table.coding == LATIN1
        if (table.decoded[text] != extent[text]).any() or table.skip[text].any():
            _refuse("text of another length than its array")
    strided = table.strides >= 0
    if _any(strided):
        every = np.flatnonzero(strided)
        for start in range(0, len(every), _AT_ONCE):
            some = every[start : start + _AT_ONCE]
            extent[some] = _strided_extents(table, lengths, some, extent[some], size[some])
    # Where more is skipped than the stream holds, less than nothing is left.
    if _any(extent > held - table.skip):
        _refuse("elements beyond the end of their stream")


def _check_products(lengths: Ints, sizes: Ints, table: Table) -> None:
    """No array has 2**63 bytes or more; an empty one must be possible but for its zeros."""
    bound = _LARGE / max(sizes.tolist(), default=1)  # whichever shape has whichever type
    if lengths.size <= _FEW and all(
        math.prod(n or 1 for n in row) < bound for row in lengths.tolist()
    ):
        return
    most = np.maximum(lengths, 1).prod(axis=1, dtype=np.float64)
    if not np.count_nonzero(most >= bound):
        return
    every = most[table.shape] * sizes[table.dtype]
    for array in np.flatnonzero(every >= _LARGE).tolist():
        shape, size = lengths[table.shape[array]], sizes[table.dtype[array]]
        exact = math.prod(n or 1 for n in shape.tolist()) * int(size)
        if exact >= MOST_BYTES:
            _refuse("more bytes than an array can have")


def _strided_extents(table: Table, lengths: Ints, some: Ints, whole: Ints, size: Ints) -> Ints:
    """Return the bytes from the first element of each strided array to the end of its last."""
    shape, steps = table.shape[some], table.strides[some]
    if (table.dims[shape, 0] != table.dims[steps, 0]).any() or not whole.all():
        _refuse("strides that do not fit the shape")
    last, step = lengths[shape] - 1, table.dims[steps, 1:]
    if ((last * step.astype(np.float64)).sum(axis=1) >= _LARGE).any():
        _refuse("elements beyond the end of their stream")
    extent: Ints = (last * step).sum(axis=1) + size
    if ((whole > _WIDE) & (whole // _TIMES > extent)).any():
        _refuse("few bytes expanded to many: a bomb")
    return extent


def check_source(table: Table, spellings: Paths) -> None:
    """Refuse a table of files that are not within the source."""
    if os.sep != "/" or _is_list_of(table, spellings):
        return
    roots = [_root(spelling) for spelling in spellings]
    if _leads_upwards(table):
        _refuse("a path that leads upwards")
    if len(roots) == 1 and table.base.startswith(roots[0]):
        return
    # Files are in the order of the source: each below the same root as the last, or a later one.
    left = iter(roots)
    root = next(left, None)
    for path in table.paths():
        while root is not None and not (path + b"/").startswith(root):
            root = next(left, None)
        if root is None:
            _refuse("a file that the source does not lead to")


def _leads_upwards(table: Table) -> bool:
    """Is any part of a path ``..``? Spellings have none: they are absolute and normalized."""
    if b".." not in table.base and b".." not in table.path_bytes.tobytes():
        return False
    return any(b".." in path.split(b"/") for path in table.paths())


def _is_list_of(table: Table, spellings: Paths) -> bool:
    """Are the files just those that were spelled, in their order?"""
    if spellings.base or len(spellings) != table.files:
        return False
    text, ends = spellings.text()
    if (np.diff(np.frombuffer(ends, np.int64)) - len(table.base) != np.diff(table.path_ends)).any():
        return False
    own = table.path_bytes.tobytes()
    rest = [own[start:end] for start, end in pairwise(table.path_ends.tolist())]
    return table.base.join((b"", *rest)) == bytes(text)


def _root(spelling: bytes) -> bytes:
    """The folder, with its slash, that holds every file of a spelling; or the file, with one."""
    if not listing.is_pattern(spelling):
        return os.path.join(spelling, b"")
    parts = spelling.split(b"/")
    wild = next((at for at, part in enumerate(parts) if listing.is_pattern(part)), len(parts))
    return os.path.join(b"/".join(parts[:wild]), b"")
