"""Values in the type they are stored in, or an error that names the first that does not fit.

What is outside the range of the new type is refused; what it can only hold less precisely (a
float in fewer bits, the fraction of a number that becomes an integer) is not: that is what a
cast is for.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ndfeed.formats.types import EXTENDED, delivered

_TEXT = {"S": "bytes", "U": "text", "M": "a date", "m": "a duration", "V": "opaque bytes"}


class Misfit(NamedTuple):
    """The first value that does not fit: its place in the values, and itself as text."""

    at: int
    value: str


def on_disk(name: str) -> str:
    """The name of a type as columns have it: little-endian."""
    return name if name in EXTENDED else np.dtype(name).newbyteorder("<").str


def check_possible(field: str, old: str, new: str) -> None:
    """Refuse to turn one type into another if there is no telling what that should mean."""
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


def cast(values: NDArray[Any], new: str) -> tuple[NDArray[Any], Misfit | None]:
    """``values`` in the type called ``new``, in C order, and the first that does not fit."""
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
    """The place of the first value that cannot be cast, where there is one."""
    fits, fails = 0, len(flat)  # how many values from the first on can be cast together, and not
    while fails - fits > 1:
        middle = (fits + fails) // 2
        try:
            flat[fits:middle].astype(dtype)
            fits = middle
        except OverflowError:
            fails = middle
    return fits


def _wrong(old: NDArray[Any], new: NDArray[Any]) -> NDArray[np.bool_] | None:
    """Where a value does not fit, or nothing where all must."""
    if new.dtype.kind in "Mm":  # NumPy calls it safe to count centuries in nanoseconds
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
        # As objects: no type of NumPy's holds both ends of int64 and uint64.
        wide = old.astype(object)
        return np.asarray((wide < info.min) | (wide > info.max), bool)
    whole = np.trunc(old.astype(np.float64) if old.dtype.itemsize < 8 else old)
    inside = (whole >= float(info.min)) & (whole < float(info.max) + 1)
    return np.asarray(~inside)
