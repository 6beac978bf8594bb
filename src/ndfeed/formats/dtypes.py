"""Element types: their names and widths in files, what NumPy delivers, and checked casts.

A type's name is NumPy's own string with its byte order (``<f4``, ``|u1``, ``>M8[ns]``), or
one of ``EXTENDED``: the small numbers that NumPy lacks. Those are delivered as the types of
ml_dtypes where it is installed, and as their bits in unsigned integers otherwise.

``np.save`` loses information about the types of ml_dtypes. ``<f1`` can only be float8_e5m2 and is
read as that; ``|V2`` and ``|V1`` stay opaque here, and ``dataset`` gives them the type the caller
names (or takes two bytes for bfloat16, with a warning). ``<W4`` could be two types of ml_dtypes
and ``<g2`` is none: both are unknown. So are C's own letters (``l``, ``d``), whose width depends
on the machine that wrote them.

Text from a file reaches ``np.dtype`` only after it matches the grammar here: NumPy compiles some
such text, and divides by the zero in ``M8[s/0]``, which ends the process.

Casts refuse values outside the range of the new type, with an error that names the first. Values
that only lose precision (a float in fewer bits, the fraction of a number that becomes an integer)
are accepted: that is what a cast is for.
"""

import re
from collections.abc import Collection
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

# Name to bytes. complex32 is two float16. The narrow types take one byte each.
EXTENDED = {
    "bfloat16": 2,
    "float8_e3m4": 1,
    "float8_e4m3": 1,
    "float8_e4m3b11fnuz": 1,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
    "float6_e2m3fn": 1,
    "float6_e3m2fn": 1,
    "float4_e2m1fn": 1,
    "int2": 1,
    "int4": 1,
    "uint2": 1,
    "uint4": 1,
    "complex32": 4,
}

try:
    import ml_dtypes
except ImportError:
    _SMALL: dict[str, np.dtype] = {}
else:
    _SMALL = {n: np.dtype(getattr(ml_dtypes, n)) for n in EXTENDED if hasattr(ml_dtypes, n)}

_SIZED = re.compile(
    r"""([<>|=]?)(
        b1 | [iu][1248] | f(?:1|2|4|8|12|16) | c(?:8|16|24|32) | [SaUV]([0-9]{0,10})
        | [mM]8 (?:\[ (?:[1-9][0-9]{0,8})? (?:Y|M|W|D|h|m|s|ms|us|μs|ns|ps|fs|as) \])?
    )""",
    re.VERBOSE,
)
_NAMED = {"?": "|b1"} | {
    name: np.dtype(name).str
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64", "complex64", "complex128"),
    )
}
_MOST_LETTERS = (1 << 29) - 1  # of four bytes each; beyond this, NumPy 1 overflows


class UnknownDtypeError(ValueError):
    """A file has a dtype that is not known, and so its elements cannot be read."""


@lru_cache(maxsize=1024)
def canonical(text: str) -> str:
    """Return the name of the type that a file calls ``text``.

    Raises ``UnknownDtypeError`` if there is none, ``ValueError`` if its elements have no bytes.

    >>> canonical("=f4"), canonical(">i1"), canonical("bool"), canonical("<f1")
    ('<f4', '|i1', '|b1', 'float8_e5m2')
    """
    if text in EXTENDED:
        return text
    if text in _NAMED:
        return _NAMED[text]
    match = _SIZED.fullmatch(text)
    if match is None or int(match[3] or 0) > _MOST_LETTERS:
        raise UnknownDtypeError(f"unknown dtype {text[:80]!r}")
    order, kind, _ = match.groups()
    if kind == "f1":
        return "float8_e5m2"
    try:
        found = np.dtype(order + (f"S{kind[1:]}" if kind[0] == "a" else kind))
    except (TypeError, ValueError):  # too wide, or a long double of another platform
        raise UnknownDtypeError(f"unknown dtype {text[:80]!r}") from None
    if not found.itemsize:
        raise ValueError(f"dtype {text[:80]!r} has elements of no bytes")
    return found.str


@lru_cache(maxsize=1024)
def itemsize(name: str) -> int:
    """Return the bytes of one element."""
    return EXTENDED[name] if name in EXTENDED else np.dtype(name).itemsize


@lru_cache(maxsize=1024)
def delivered(name: str) -> np.dtype:
    """Return the native NumPy dtype in which elements are delivered."""
    if name in EXTENDED:
        return _SMALL.get(name) or np.dtype(f"u{EXTENDED[name]}")
    return np.dtype(name).newbyteorder("=")


@lru_cache(maxsize=1024)
def swapped(name: str) -> bool:
    """Return whether the byte order of an element is not this machine's."""
    return name not in EXTENDED and not np.dtype(name).isnative


def plain(name: str) -> str:
    """Return ``name`` without its byte order: files that differ only in it have the same field."""
    return name if name in EXTENDED else delivered(name).str


def named(dtype: object) -> str:
    """Return the name of a dtype given by a caller, as text or anything NumPy understands."""
    if isinstance(dtype, str) and dtype in EXTENDED:
        return dtype
    found: np.dtype = np.dtype(dtype)  # type: ignore[call-overload]
    if found.name in EXTENDED:
        return str(found.name)
    if found.hasobject or found.names is not None or found.subdtype is not None:
        raise ValueError(f"dtype must be a plain element type, got {found}")
    return canonical(found.str)


def widest_text(names: Collection[str]) -> str | None:
    """Return the widest of several types, if all of them are text or all are bytes.

    >>> widest_text({"<U2", "<U6"}), widest_text({"<U2", "|S6"}), widest_text({"<f4", "<f8"})
    ('<U6', None, None)
    """
    kinds = {None if name in EXTENDED else np.dtype(name).kind for name in names}
    return max(names, key=itemsize) if kinds in ({"U"}, {"S"}) else None


_TEXT = {"S": "bytes", "U": "text", "M": "a date", "m": "a duration", "V": "opaque bytes"}


class Misfit(NamedTuple):
    """The first value that does not fit: its position, and the value as text."""

    at: int
    value: str


def on_disk(name: str) -> str:
    """Return the name of a type as stored in columns: little-endian."""
    return name if name in EXTENDED else np.dtype(name).newbyteorder("<").str


def check_possible(field: str, old: str, new: str) -> None:
    """Refuse a conversion between two types if it has no clear meaning."""
    a, b = _kind(old), _kind(new)
    numbers = "biufcE"
    fits = (a in numbers and b in numbers and not (a == "c" and b != "c")) or a == b
    if a == b == "V" and old != new:
        fits = False
    if "E" in (a, b) and old != new:
        for name in (old, new):
            if name in EXTENDED and delivered(name).kind == "u":
                raise ValueError(f"dtype of {field!r}: {name} is cast by ml_dtypes; install it")
    if not fits:
        raise ValueError(
            f"dtype of {field!r}: {_TEXT.get(a, old)} cannot become {_TEXT.get(b, new)}; "
            f"use map to convert it yourself"
        )


def _kind(name: str) -> str:
    return "E" if name in EXTENDED else np.dtype(name).kind


def can_hold(dtype: np.dtype[Any], value: complex) -> bool:
    """Can the dtype hold the value? A fraction may lose digits, as 0.1 does in float32."""
    if dtype.kind in "SUMmO" or dtype.names is not None:
        return False
    if np.iscomplexobj(value) and dtype.kind != "c":
        return False
    with np.errstate(all="ignore"):
        try:
            back = np.array(value).astype(dtype).astype(complex)
        except (OverflowError, TypeError, ValueError):
            return False
    exact = dtype.kind in "biu"
    return bool(np.isclose(back, value, rtol=0 if exact else 0.07, atol=0, equal_nan=True))


def cast(values: NDArray[Any], new: str) -> tuple[NDArray[Any], Misfit | None]:
    """Return ``values`` as the type ``new``, in C order, and the first that does not fit."""
    dtype = delivered(new) if new in EXTENDED else np.dtype(new)
    values = np.asarray(values)
    if values.dtype == dtype:
        return np.ascontiguousarray(values).reshape(values.shape), None
    with np.errstate(all="ignore"):
        try:
            made = values.astype(dtype, order="C")
        except OverflowError:  # dates, from NumPy 2.5 on
            at = _first_overflow(values.reshape(-1), dtype)
            return values, Misfit(at, str(values.reshape(-1)[at]))
        wrong = _wrong(values, made)
    if wrong is None or not wrong.any():
        return made, None
    at = int(np.argmax(wrong.reshape(-1)))
    return made, Misfit(at, str(values.reshape(-1)[at]))


def _first_overflow(flat: NDArray[Any], dtype: np.dtype[Any]) -> int:
    """Return the position of the first value that cannot be cast; there must be one."""
    fits, fails = 0, len(flat)  # the first ``fits`` values can be cast, the first ``fails`` cannot
    while fails - fits > 1:
        middle = (fits + fails) // 2
        try:
            flat[fits:middle].astype(dtype)
            fits = middle
        except OverflowError:
            fails = middle
    return fits


def _wrong(old: NDArray[Any], new: NDArray[Any]) -> NDArray[np.bool_] | None:
    """Return where values do not fit, or ``None`` if all must."""
    if new.dtype.kind in "Mm":  # NumPy considers counting centuries in nanoseconds safe
        return np.asarray((new.astype(old.dtype) != old) & ~np.isnat(old))
    if np.can_cast(old.dtype, new.dtype, "safe"):
        return None
    if new.dtype.kind in "iu":
        return _outside(old, np.iinfo(new.dtype))
    if new.dtype.kind == "b":
        return np.asarray((old != 0) & (old != 1))
    if new.dtype.kind in "SU" or new.dtype.name.startswith(("int", "uint")):
        return np.asarray(new.astype(old.dtype) != old)
    return np.asarray(np.isfinite(old) & ~np.isfinite(new))


def _outside(old: NDArray[Any], info: "np.iinfo[Any]") -> NDArray[np.bool_]:
    if old.dtype.kind in "iub":
        low, high = int(old.min(initial=0)), int(old.max(initial=0))
        if info.min <= low and high <= info.max:
            return np.zeros(old.shape, bool)
        # As objects: no NumPy type holds both ends of int64 and uint64.
        wide = old.astype(object)
        return np.asarray((wide < info.min) | (wide > info.max), bool)
    whole = np.trunc(old.astype(np.float64) if old.dtype.itemsize < 8 else old)
    inside = (whole >= float(info.min)) & (whole < float(info.max) + 1)
    return np.asarray(~inside)
