"""Matches labels with files by name, and lists the names that do not fit.

All names are compared in one way, the first of ``_forms`` by which every file has exactly one
label: as a path, as a path within some folder, or as the name of the file, with or without its
suffix. Labels of other files are allowed, since one table often serves several datasets; a file
without a label is not, and neither is a name with two labels.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ndfeed.errors import SchemaError

Form = Callable[[str], str]

REMEDY = "give every file one label, or take() the files that have one"

_LISTED = 10
_PROBED = 1000  # files that are compared with a column that may have their names


def looks_like_names(paths: Sequence[str], names: Sequence[str]) -> bool:
    """Do these look like names of some of the files?"""
    known = {_normal(name) for name in names} - {""}
    probed = paths[:: max(len(paths) // _PROBED, 1)]
    return any(form(path) in known for _, form in _forms(probed) for path in probed)


def _normal(name: str) -> str:
    return name.replace("\\", "/").removeprefix("./") if os.sep == "\\" else name.removeprefix("./")


def _forms(paths: Sequence[str]) -> Iterator[tuple[str, Form]]:
    """Yield every way in which a file may be named, with what it is called."""
    folders = {path.rpartition(os.sep)[0] or os.sep for path in paths}
    folder = os.path.commonpath(folders) if folders else ""
    yield "path", _normal
    within = []
    while folder:
        within.append(folder.rstrip(os.sep))
        above = os.path.dirname(folder)
        folder = above if above != folder else ""
    for one in within:
        yield f"path within {one or os.sep}", _below(one)
    yield "file name", _base
    for one in within:
        yield f"path within {one or os.sep} without suffix", _without_suffix(_below(one))
    yield "file name without suffix", _without_suffix(_base)


def _base(path: str) -> str:
    return path.rpartition(os.sep)[2]


def _below(folder: str) -> Form:
    start = len(folder) + 1
    return lambda path: _normal(path[start:])


def _without_suffix(form: Form) -> Form:
    # x.npy.gz has two; the rest of 1.2.840.npy is a name.
    def cut(path: str) -> str:
        name = form(path).removesuffix(".gz")
        stem, dot, suffix = name.rpartition(".")
        return stem if dot and stem and "/" not in suffix and stem[-1] != "/" else name

    return cut


def match_names(path: str, paths: Sequence[str], keys: list[str], values: list[Any]) -> list[Any]:
    """Return the label of every file; ``path`` is the file to blame if some have none."""
    labels = {_normal(key): value for key, value in zip(keys, values, strict=True)}
    doubled = find_doubled([_normal(key) for key in keys])
    # A relative path may start at the current folder: then it is a path as well.
    paths_in_keys = any("/" in key for key in labels)
    here = {_normal(os.path.abspath(key)): labels[key] for key in labels if paths_in_keys and key}
    forms = [(name, form, here if name == "path" else labels) for name, form in _forms(paths)]
    for _, form, known in forms:
        if doubled or (paths and known.get(form(paths[0])) is None):
            continue
        names = [form(one) for one in paths]
        found = [known.get(name) for name in names]
        if len(set(names)) == len(names) and not any(one is None for one in found):
            return found
    probed = paths[:: max(len(paths) // _PROBED, 1)]
    hits = [sum(known.get(form(one)) is not None for one in probed) for _, form, known in forms]
    # Of several that fit equally well, the simplest to say.
    simple = [
        (count, way.startswith("file name")) for count, (way, *_) in zip(hits, forms, strict=True)
    ]
    way, form, known = forms[simple.index(max(simple))]
    names = [form(one) for one in paths]
    problems = []
    if not any(name in known for name in names):
        own = f", files such as {os.path.basename(paths[0])!r}"
        given = f"names are such as {keys[0]!r}{own}" if keys else "there are no labels"
        problems = [f"no file has a label: {given}"]
    else:
        missing = [name for name in names if known.get(name) is None]
        problems += describe_missing(missing, len(paths), f", compared by {way}")
        if shared := find_doubled(names):
            problems.append(f"files share their {way}: {list_names(shared)}")
    if doubled:
        have = "name has" if len(doubled) == 1 else "names have"
        problems.append(f"{len(doubled):,} {have} several labels: {list_names(doubled)}")
    raise SchemaError(path, "; ".join(problems), remedy=REMEDY)


def describe_missing(names: Sequence[str], count: int, way: str = "") -> list[str]:
    """Say which of ``count`` files have no label, if any."""
    listed = f"{len(names):,} of {count:,} files have no label{way}: {list_names(names)}"
    return [listed] if names else []


def find_doubled(names: Sequence[str]) -> list[str]:
    """Return the names that occur more than once, in order."""
    if len(set(names)) == len(names):
        return []
    return [name for name, count in Counter(names).items() if count > 1]


def list_names(names: Sequence[str]) -> str:
    """Return the first names as text, and how many more there are."""
    listed = ", ".join(repr(name) for name in names[:_LISTED])
    return f"{listed} and {len(names) - _LISTED:,} more" if len(names) > _LISTED else listed
