"""The table of a packed dataset: its manifest read, every column's size and header compared.

The data itself is not looked at; that is for ``packing.verify``. Nothing is kept between runs: all
that could be is in the manifest already. Names in a manifest lead into the dataset's own folder
and nowhere else: a symbolic link below it is refused, also one that stays inside.
"""

import os
from dataclasses import replace

from ndfeed.errors import (
    BadFilesError,
    ChecksumError,
    Error,
    FormatError,
    ManifestError,
    MissingError,
    SourceError,
    TruncatedError,
)
from ndfeed.files import listing
from ndfeed.files.file import File
from ndfeed.formats import npy
from ndfeed.formats.description import Array, Description
from ndfeed.formats.inflate import crc32
from ndfeed.formats.manifest import MOST_MANIFEST, NAME, Column, Field, Manifest, parse
from ndfeed.index.build import Chunk
from ndfeed.index.table import Assembly, Table

REMEDY = "restore it with ndfeed pack --repair"


def folder_of(spelling: bytes) -> bytes | None:
    """The folder of the packed dataset that an absolute path names, if it names one."""
    folder = os.path.dirname(spelling) if os.path.basename(spelling) == NAME else spelling
    return folder if listing.exists(os.path.join(folder, NAME)) else None


def read_manifest(folder: bytes) -> Manifest:
    """The manifest of the packed dataset in ``folder``."""
    path = os.path.join(folder, NAME)
    _check_plain(path)
    with File(path) as file:
        if file.size > MOST_MANIFEST:
            raise ManifestError(path, f"expected at most {MOST_MANIFEST} bytes, found {file.size}")
        return parse(file.read(0, file.size), path)


def make_packed_table(folder: bytes, manifest: Manifest) -> Table:
    """Every column of every part, in the manifest's order; raises for all bad ones together."""
    fields = {field.name: field for field in manifest.fields}
    chunk = Chunk()
    for part in manifest.parts:
        for column in part.columns:
            path = os.path.join(folder, part.folder.encode(), column.file.encode())
            try:
                with open_column(path) as file:
                    found = check_header(file, column, fields[column.field])
                    chunk.add(file, Description("npy", (found,)))
            except Error as error:
                chunk.problems.append(error.with_traceback(None))
    if len(chunk.problems) == 1:
        raise chunk.problems[0]
    if chunk.problems:
        raise BadFilesError(chunk.problems, len(chunk.paths) + len(chunk.problems))
    base = os.path.join(folder, b"")
    made = Assembly(base)
    made.add(chunk.part(base))
    return replace(made.table(), digest=manifest.digest)


def open_column(path: bytes) -> File:
    """A column's file, which must be a plain one in a plain folder."""
    _check_plain(os.path.dirname(path))
    _check_plain(path)
    try:
        return File(path)
    except MissingError:
        raise MissingError(path, f"a column of the dataset is missing; {REMEDY}") from None


def _check_plain(path: bytes) -> None:
    if listing.is_link(path):
        raise SourceError(
            path,
            "a symbolic link, which is not followed inside a packed dataset; copy the "
            "dataset with what its links lead to (cp -rL)",
        )


def check_header(file: File, column: Column, field: Field) -> Array:
    """Compare size and header of an open column with the manifest; gives its place."""
    if file.size != column.nbytes:
        kind = TruncatedError if file.size < column.nbytes else FormatError
        raise kind(file.path, f"expected {column.nbytes} bytes, found {file.size}; {REMEDY}")
    head = file.head()
    head = head[: column.header] if column.header <= len(head) else file.read(0, column.header)
    if crc32(head) != int(column.crc32[:8], 16):
        raise ChecksumError(
            file.path, f"expected a header with CRC-32 {column.crc32[:8]}, found {crc32(head):08x}"
            f"; {REMEDY}"
        )  # fmt: skip
    dtype, row = field.stored(column.role)
    found = npy.describe(file).arrays
    wanted = dtype, (column.rows, *row), None, column.header
    if [(one.dtype, one.shape, one.strides, one.skip) for one in found] != [wanted]:
        raise FormatError(
            file.path,
            f"expected {dtype} {wanted[1]} in C order as in the manifest, found {found[0].dtype} "
            f"{found[0].shape}; {REMEDY}",
        )
    true = field.dtype if column.role in ("rows", "values") else dtype
    return found[0]._replace(name=field.name, dtype=true)
