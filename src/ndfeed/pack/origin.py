"""What a packed dataset says it was made from: an entry for each time that rows were added.

That is ``source.packs`` in the manifest. Reading the data needs none of it, and other programs
may write what they like there; who adds to the data or repairs it relies on it, so for them every
value has the type that it must have, or the manifest is wrong.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ndfeed.errors import ManifestError
from ndfeed.formats.manifest import Manifest

_MOST = 1 << 63


class Pack(NamedTuple):
    """One time that rows were added. Empty texts stand for what is not said."""

    base: str
    fingerprint: str
    first: int
    maps: list[str]
    names: bool
    plan: str
    rows: int
    shuffle: int | None


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < _MOST


def _is_text(value: object) -> bool:
    return type(value) is str


# What each key must be, how to say it, and what it is where it is missing.
_KEYS: Mapping[str, tuple[Callable[[object], bool], str, Any]] = {
    "base": (_is_text, "text", ""),
    "fingerprint": (_is_text, "text", ""),
    "first": (_is_count, "a whole number below 2**63", 0),
    "maps": (lambda v: type(v) is list and all(map(_is_text, v)), "a list of texts", []),
    "names": (lambda v: type(v) is bool, "true or false", False),
    "plan": (_is_text, "text", ""),
    "rows": (_is_count, "a whole number below 2**63", 0),
    "shuffle": (lambda v: v is None or _is_count(v), "a whole number below 2**63 or null", None),
}


def source_packs(manifest: Manifest) -> list[dict[str, Any]]:
    """The entries as they stand in the manifest."""
    found = (manifest.source or {}).get("packs", [])
    return found if isinstance(found, list) else []


def packs_of(manifest: Manifest, path: bytes) -> list[Pack]:
    """The entries, checked; ``path`` is where the manifest was read."""
    found = (manifest.source or {}).get("packs", [])
    if type(found) is not list:
        raise ManifestError(path, "source.packs: a list expected")
    packs = [_pack(entry, f"source.packs[{number}]", path) for number, entry in enumerate(found)]
    firsts = [pack.first for pack in packs]
    if firsts != sorted(set(firsts)):
        raise ManifestError(path, "source.packs: first must rise from one to the next")
    return packs


def _pack(entry: object, where: str, path: bytes) -> Pack:
    if type(entry) is not dict:
        raise ManifestError(path, f"{where}: an object expected, found {entry!r:.40}")
    values = []
    for name, (fits, wanted, missing) in _KEYS.items():
        value = entry.get(name, missing)
        if not fits(value):
            raise ManifestError(path, f"{where}.{name}: {wanted} expected, found {value!r:.40}")
        values.append(value)
    return Pack(*values)
