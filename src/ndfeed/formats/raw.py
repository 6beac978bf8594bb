"""Raw files: elements and nothing else, described by the caller or by a small JSON beside.

``tokens.bin`` may have a ``tokens.bin.json`` with the keys ``dtype`` and, optionally,
``shape`` (of one sample) and ``offset`` (bytes before the first). A file whose size is no
multiple of a sample is refused, and so is one that carries another format's first bytes.
"""

import json
import math
from typing import NamedTuple

from ndfeed.errors import FormatError, MissingError
from ndfeed.files.file import File
from ndfeed.formats.array import MOST_DIMENSIONS, Array, Description
from ndfeed.formats.types import itemsize, named

_MOST_JSON = 64 * 1024
SUFFIXES = (b".bin", b".dat", b".raw", b".memmap")


class Layout(NamedTuple):
    """What a raw file lacks: the element type, the shape of one sample, where they begin."""

    dtype: str
    shape: tuple[int, ...] = ()
    offset: int = 0


def layout(dtype: object, shape: object = ()) -> Layout:
    """A checked layout from what a caller wrote."""
    dims = (shape,) if isinstance(shape, int) else tuple(shape)  # type: ignore[arg-type]
    for n in dims:
        if not isinstance(n, int) or isinstance(n, bool) or n < 1:
            raise ValueError(f"shape must be positive whole numbers, got {shape!r}")
    if len(dims) > MOST_DIMENSIONS:
        raise ValueError(f"shape must have at most {MOST_DIMENSIONS} dimensions, got {len(dims)}")
    return Layout(named(dtype), dims)


def describe(file: File, given: Layout) -> Description:
    """A raw file as an array of samples."""
    sample = itemsize(given.dtype) * math.prod(given.shape)
    rows, spare = divmod(file.size - given.offset, sample)
    if spare or rows < 0:
        raise FormatError(
            file.path,
            f"a multiple of {sample} bytes expected (samples of dtype {given.dtype} and shape "
            f"{given.shape}{f' from byte {given.offset}' if given.offset else ''}), found "
            f"{file.size}; check dtype= and shape=",
        )
    array = Array("", given.dtype, (rows, *given.shape), 0, file.size, given.offset)
    return Description("raw", (array,))


def beside(path: bytes) -> Layout | None:
    """The layout that a JSON file beside ``path`` gives, if there is one."""
    name = path + b".json"
    try:
        with File(name) as file:
            text = file.read(0, min(file.size, _MOST_JSON))
    except MissingError:
        return None
    try:
        value = json.loads(text)
        given = layout(value["dtype"], value.get("shape", ()))
        offset = value.get("offset", 0)
        if not isinstance(offset, int) or offset < 0:
            raise ValueError(f"offset must be a whole number, got {offset!r}")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise FormatError(
            name, f'{{"dtype": …, "shape": […]}} expected: {type(error).__name__}: {error}'
        ) from None
    return given._replace(offset=offset)
