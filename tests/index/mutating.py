"""What becomes of a dataset whose kept index somebody has edited.

    python tests/index/mutating.py 10000

makes that many edits, with the checksum repaired and with the signature forged as well, and
prints how each kind ended. ``test_mutations`` does the same with fewer.
"""

import collections
import os
import pathlib
import sys
import tempfile
import time
import warnings

import numpy as np

sys.path.insert(0, os.fspath(pathlib.Path(__file__).parent.parent))

from index.forging import SIGNATURE, checked, header_of, signed, with_header
from mutations import binaries, json_texts

import ndfeed
from ndfeed.index import cache
from ndfeed.index.source import spelled


def make(folder):
    """Files of several formats, orders and codings, older than any tick."""
    folder.mkdir()
    x, y = np.arange(12, dtype="<f4").reshape(3, 4), np.arange(3, dtype=">i2")
    for i in range(3):
        np.savez(folder / f"a{i}.npz", x=x + i, y=y)
        np.savez_compressed(folder / f"b{i}.npz", x=np.asfortranarray(x - i), y=y)
    np.savez(folder / "c.npz", x=x[:0], y=y[:0])
    time.sleep(0.1)


def rows(folder, **options):
    """Everything a dataset delivers: names, types and bytes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ds = ndfeed.open(folder, sample="row", **options)
    assert all(path.startswith(os.fspath(folder)) for path in ds.files)
    return {name: [described(row) for row in values] for name, values in ds[:].items()}


def described(row):
    """A sample to compare, bit for bit."""
    return str(row.dtype), row.shape, row.tobytes()


def bodies(data, count, seed):
    """Edits of a cache's bytes without the signature: of its header's JSON, and of any bytes."""
    header, columns = header_of(data)
    texts = json_texts(header, count // 2, seed)
    edits = binaries(data[:-SIGNATURE], count - count // 2, seed)
    yield from (with_header(text, columns) for text in texts)
    yield from map(checked, edits)


def outcomes(root, count, *, forged, seed=0):
    """How often which outcome came of ``count`` edits of the cache of the files in ``root``."""
    folder = root / "data"
    make(folder)
    wanted = rows(folder, cache=False)
    assert rows(folder) == wanted
    path = os.fsdecode(cache.place(spelled(folder), None))
    data = pathlib.Path(path).read_bytes()
    found = collections.Counter()
    for body in bodies(data, count, seed):
        pathlib.Path(path).write_bytes(signed(path, body) if forged else body + data[-SIGNATURE:])
        try:
            found["same" if rows(folder) == wanted else "other data"] += 1
        except ndfeed.Error:
            found["refused"] += 1
    return found


if __name__ == "__main__":
    for forged in (False, True):
        with tempfile.TemporaryDirectory() as root:
            os.environ["XDG_CACHE_HOME"] = os.path.join(root, "cache")
            began = time.monotonic()
            ended = dict(outcomes(pathlib.Path(root), int(sys.argv[1]), forged=forged))
            what = "signature forged" if forged else "checksum repaired"
            sys.stdout.write(f"{what}: {ended} in {time.monotonic() - began:.0f} s\n")
