"""Element types by name: what files may say, how wide it is, what NumPy delivers.

A type's name is NumPy's own string with its byte order (``<f4``, ``|u1``, ``>M8[ns]``), or
one of ``EXTENDED``: the small floats that NumPy lacks. Those are delivered as the types of
ml_dtypes where it is installed, and as their bits in unsigned integers otherwise.
"""

import re
import sys
from functools import lru_cache

import numpy as np

try:
    import ml_dtypes
except ImportError:
    ml_dtypes = None

# Name to bytes. complex32 is two float16 and exists in torch alone.
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
    "complex32": 4,
}

_NATIVE = "<" if sys.byteorder == "little" else ">"
_SIZED = re.compile(
    r"([<>|=]?)([biufcSaUVmM?])(\d{0,9})(\[[0-9]{0,9}[A-Za-zμ]{1,7}(?:/[0-9]{1,9})?\])?"
)
_NUMBERS = {"i": (1, 2, 4, 8), "u": (1, 2, 4, 8), "f": (2, 4, 8, 12, 16), "c": (8, 16, 24, 32)}


def canonical(text: str) -> str:
    """The name of the type a file calls ``text``; ``ValueError`` where there is none.

    >>> canonical("=f4"), canonical("|i1"), canonical("?"), canonical("<f1")
    ('<f4', '|i1', '|b1', 'float8_e5m2')
    """
    if text in EXTENDED:
        return text
    match = _SIZED.fullmatch(text)
    if match is None:
        raise ValueError(f"unknown dtype {text[:80]!r}")
    order, kind, digits, unit = match.groups()
    kind = {"?": "b", "a": "S"}.get(kind, kind)
    size = int(digits or (1 if kind == "b" else 0))
    if (kind, size) == ("f", 1):  # what np.save writes for ml_dtypes.float8_e5m2
        return "float8_e5m2"
    if kind in _NUMBERS and size not in _NUMBERS[kind]:
        raise ValueError(f"unknown dtype {text[:80]!r}")
    if (kind == "b" and size != 1) or (kind in "mM" and size != 8) or (unit and kind not in "mM"):
        raise ValueError(f"unknown dtype {text[:80]!r}")
    if size == 0:
        raise ValueError(f"dtype {text[:80]!r} has elements of no bytes")
    if kind in "SVb" or (size == 1 and kind != "U"):
        order = "|"
    elif order not in ("<", ">"):
        order = _NATIVE
    try:
        np.dtype(f"{order}{kind}{size}{unit or ''}")
    except TypeError:
        raise ValueError(f"unknown dtype {text[:80]!r}") from None
    return f"{order}{kind}{size}{unit or ''}"


@lru_cache(maxsize=1024)
def itemsize(name: str) -> int:
    """Bytes of one element."""
    return EXTENDED[name] if name in EXTENDED else np.dtype(name).itemsize


@lru_cache(maxsize=1024)
def delivered(name: str) -> np.dtype:
    """The native NumPy dtype in which elements are handed out."""
    if name not in EXTENDED:
        return np.dtype(name).newbyteorder("=")
    if ml_dtypes is not None and hasattr(ml_dtypes, name):
        return np.dtype(getattr(ml_dtypes, name))
    return np.dtype(f"u{EXTENDED[name]}")


@lru_cache(maxsize=1024)
def swapped(name: str) -> bool:
    """Are the bytes of an element in the other order than this machine's?"""
    return name not in EXTENDED and not np.dtype(name).isnative


def plain(name: str) -> str:
    """``name`` without its byte order: two files that differ in it alone hold one field."""
    return name if name in EXTENDED else delivered(name).str


def named(dtype: object) -> str:
    """The name of a dtype that a caller wrote, as text or as anything NumPy understands."""
    if isinstance(dtype, str) and dtype in EXTENDED:
        return dtype
    found = np.dtype(dtype)  # type: ignore[call-overload]
    if found.name in EXTENDED:
        return found.name
    if found.hasobject or found.names is not None or found.subdtype is not None:
        raise ValueError(f"dtype must be a plain element type, got {found}")
    return canonical(found.str)
