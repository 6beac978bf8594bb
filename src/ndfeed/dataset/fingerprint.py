"""Short text that says which samples these are, and in which order.

Two datasets have the same one if they hold the same arrays of files of the same names, sizes
and types, and the same choice of rows. The folder they lie in, their times, the chosen fields
and functions given to ``map`` do not count: row 7 is the same row.
"""

import hashlib
from collections.abc import Sequence

import numpy as np

from ndfeed.dataset.column import Group
from ndfeed.dataset.rowset import Rows
from ndfeed.index import codec


def of_groups(groups: Sequence[Group]) -> str:
    """Of all the samples of some groups."""
    digest = hashlib.sha256()
    for table in {id(group.table): group.table for group in groups}.values():
        digest.update(codec.fingerprint(table).encode())
    whole = [bool(group.columns[0].whole.all()) for group in groups]
    digest.update(f"{len(groups[0])} {sorted(set(whole))}".encode())
    return digest.hexdigest()[:16]


def of_rows(all_of_them: str, rows: Rows) -> str:
    """Of a choice of ``rows``, out of samples whose fingerprint is known."""
    if rows is None:
        return all_of_them
    digest = hashlib.sha256(all_of_them.encode())
    if isinstance(rows, range):
        rows = np.arange(rows.start, rows.stop, rows.step)
    digest.update(np.ascontiguousarray(rows, np.int64).view(np.uint8).data)
    return digest.hexdigest()[:16]


def of_both(first: str, second: str) -> str:
    """Of one after the other."""
    return hashlib.sha256(f"{first}+{second}".encode()).hexdigest()[:16]
