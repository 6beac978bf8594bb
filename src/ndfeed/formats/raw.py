"""Raw files: elements and nothing else, described by the caller or by a small JSON file.

``tokens.bin`` may have a ``tokens.bin.json`` with the keys ``dtype`` and, optionally,
``shape`` (of one sample) and ``offset`` (bytes before the first). A structured dtype, in JSON a
list of [name, type] or [name, type, shape], becomes one field per leaf, as in .npy files. A file
whose size is not a multiple of a sample is refused. So is one that begins like another format,
whose header would be read as numbers; ``detect`` ensures this before it calls this module.

Nobody can check that dtype and shape are the right ones: look at the values.
"""

import json
import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from ndfeed.errors import FormatError, LimitError, MissingError, shown
from ndfeed.files.file import File
from ndfeed.formats import npy
from ndfeed.formats.description import MOST_BYTES, MOST_DIMENSIONS, Array, Description
from ndfeed.formats.dtypes import canonical, itemsize, named

_MOST_JSON = 64 * 1024
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"  # some editors write it before UTF-8
SUFFIXES = (b".bin", b".dat", b".raw", b".memmap")


class Layout(NamedTuple):
    """What a raw file lacks: the element type, the shape of one sample, the offset of the first."""

    dtype: str
    shape: tuple[int, ...] = ()
    offset: int = 0
    structure: npy.Element | None = None  # for elements that have fields
    drops_tail: bool = False  # may the file end within a sample?

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return itemsize(self.dtype) if self.structure is None else self.structure.size


def layout(dtype: object, shape: object = ()) -> Layout:
    """Return a checked layout from a caller's arguments."""
    try:
        found = None if isinstance(dtype, str) else np.dtype(dtype)  # type: ignore[call-overload]
        structure = None if found is None or found.names is None else npy.element_of(found.descr)
        name = named(dtype) if structure is None else ""
    except (TypeError, ValueError) as error:  # including those of formats
        problem = str(error).removeprefix("dtype must be a plain element type, got ").strip(": ")
        raise ValueError(
            f"dtype must be a plain element type, got {dtype!r:.80}: {problem}"
        ) from None
    if structure is not None:
        return _make_structured(structure, shape)
    return Layout(name, _check_shape(shape, itemsize(name)))


def _make_structured(element: npy.Element, shape: object, offset: int = 0) -> Layout:
    """Return the layout of elements with fields."""
    names = f"({', '.join(leaf.name for leaf in element.leaves)})"
    return Layout(names[:200], _check_shape(shape, element.size), offset, element)


def describe(file: File, given: Layout) -> Description:
    """Describe a raw file as an array of samples."""
    sample = given.itemsize * math.prod(given.shape)
    rows, spare = divmod(file.size - given.offset, sample)
    if (spare and not given.drops_tail) or rows < 0:
        raise FormatError(
            file.path,
            f"expected a multiple of {sample} bytes (samples of dtype {given.dtype} and shape "
            f"{given.shape}{f' from byte {given.offset}' if given.offset else ''}), found "
            f"{file.size}",
            remedy='check dtype= and shape=, or leave out the rest with tail="drop"',
        )
    shape = (rows, *given.shape)
    if given.structure is not None:
        return Description("raw", npy.placed(given.structure, shape, None, given.offset, file.size))
    return Description("raw", (Array("", given.dtype, shape, 0, file.size, given.offset),))


def beside(path: bytes) -> Layout | None:
    """Return the layout in the JSON file next to ``path``, if there is one."""
    name = path + b".json"
    try:
        with File(name) as file:
            if file.size > _MOST_JSON:
                problem = f"expected at most {_MOST_JSON} bytes of JSON, found {file.size}"
                raise LimitError(name, problem)
            text = file.read(0, file.size)
    except MissingError:
        return None
    try:
        return _from_json(json.loads(_decode_text(text)))
    except (ValueError, RecursionError) as error:
        raise FormatError(
            name, f'expected {{"dtype": text, "shape": [n, …]}}: {shown(str(error)[:200])}'
        ) from None


def _decode_text(text: bytes) -> str:
    """Decode a JSON file. From bytes, json would guess the encoding and import its decoder."""
    try:
        if b"\0" not in text:  # UTF-16 and UTF-32 are full of them
            return text.removeprefix(_BYTE_ORDER_MARK).decode("utf-8")
    except UnicodeDecodeError:
        pass
    raise ValueError("the file must be UTF-8 text")


def _from_json(value: object) -> Layout:
    if not isinstance(value, dict) or not isinstance(value.get("dtype"), str | list):
        raise ValueError("no dtype in it")
    offset = value.get("offset", 0)
    if type(offset) is not int or not 0 <= offset < MOST_BYTES:
        raise ValueError(f"offset must be a whole number from 0 up, got {offset!r:.80}")
    if isinstance(value["dtype"], list):
        try:
            element = npy.element_of(_as_descr(value["dtype"]))
            return _make_structured(element, value.get("shape", ()), offset)
        except FormatError as error:
            raise ValueError(error.problem) from None
    dtype = canonical(value["dtype"])
    return Layout(dtype, _check_shape(value.get("shape", ()), itemsize(dtype)), offset)


def _as_descr(entries: list[Any]) -> list[Any]:
    """Return fields from JSON as NumPy spells them: tuples, with tuples as shapes."""
    found = []
    for entry in entries:
        if not isinstance(entry, list) or len(entry) not in (2, 3):
            raise ValueError(f"expected [name, type] or [name, type, shape], found {entry!r:.80}")
        name, kind, *shape = entry
        kind = _as_descr(kind) if isinstance(kind, list) else kind
        found.append((name, kind, *(tuple(n) if isinstance(n, list) else n for n in shape)))
    return found


def _check_shape(shape: object, size: int) -> tuple[int, ...]:
    """Return the shape of a sample whose elements have ``size`` bytes each."""
    dims = tuple(shape) if isinstance(shape, Iterable) else (shape,)
    for n in dims:
        if type(n) is not int or n < 1:
            raise ValueError(f"shape must be positive whole numbers, got {shape!r:.80}")
    if len(dims) >= MOST_DIMENSIONS:
        raise ValueError(f"shape must have under {MOST_DIMENSIONS} dimensions, got {len(dims)}")
    if size * math.prod(dims) >= MOST_BYTES:
        raise ValueError(f"shape must have fewer than 2**63 bytes, got {shape!r:.80}")
    return dims
