"""Make file names for fields of any name: ASCII, one folder deep, distinct even without case.

A name is its UTF-8 bytes, percent-encoded unless they are letters, digits, ``_``, ``-`` or
dots; ``urllib.parse.unquote`` reverses it. Also encoded are

- capitals, if two names differ in nothing else (for file systems that ignore case);
- a dot at the start, the dot of a name that ends like a column's role (``a.values``), and the
  first letter of names that Windows reserves (``con``, ``nul``).

A name too long for a file system is cut, and ends in the start of its SHA-256.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Sequence

_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.")
_SMALL = _PLAIN - frozenset(range(ord("A"), ord("Z") + 1))
_OF_A_ROLE = re.compile(r"\.(?=(?:values|offsets|shapes)\Z)", re.IGNORECASE)
# Names that Windows reserves, whatever follows their first dot.
_RESERVED = re.compile(r"(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\.|\Z)", re.IGNORECASE)
_MOST_STEM = 200


def make_stems(names: Sequence[str]) -> list[str]:
    """Return the file names of each field, without their suffix."""
    found = [_escape(name.encode(), _PLAIN) for name in names]
    shared = Counter(stem.lower() for stem in found)
    return [
        _short(stem if shared[stem.lower()] == 1 else _escape(name.encode(), _SMALL), name)
        for stem, name in zip(found, names, strict=True)
    ]


def _short(stem: str, name: str) -> str:
    if len(stem) <= _MOST_STEM:
        return stem
    return f"{stem[:_MOST_STEM]}%{hashlib.sha256(name.encode()).hexdigest()[:32]}"


def _escape(name: bytes, plain: frozenset[int]) -> str:
    stem = "".join(chr(c) if c in plain else f"%{c:02X}" for c in name)
    stem = _OF_A_ROLE.sub("%2E", stem)
    if stem[0] == "." or _RESERVED.match(stem):
        stem = f"%{name[0]:02X}{stem[1:]}"
    return stem
