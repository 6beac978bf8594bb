"""Plans, journals and manifests are frozen: other versions resume and recognise packs by them."""

import gzip
import io
import json
import os
from pathlib import Path

import numpy as np
import pytest
from faults.packs import AtOnce

import ndfeed

GOLDEN = Path(__file__).parent / "frozen.json"


def stored(folder):
    """Plain files of known sizes and times, so that the plan has the same digest anywhere."""
    for number in range(2):
        path = folder / f"{number}.npy"
        np.save(path, np.arange(24, dtype="<i4").reshape(6, 4) + 24 * number)
        os.utime(path, ns=(0, 10**18))
    return ndfeed.open(folder, sample="row", cache=False)


def compressed(folder):
    """Rows that cannot be read alone, so that a shuffle scatters them."""
    for number in range(3):
        data = io.BytesIO()
        np.save(data, np.arange(40, dtype="<i4").reshape(10, 4) + 40 * number)
        (folder / f"{number}.npy.gz").write_bytes(gzip.compress(data.getvalue(), mtime=0))
    return ndfeed.open(folder, sample="row", cache=False)


def samples(folder):
    """Ragged samples in members with checksums, one for each file."""
    for number in range(4):
        np.savez(folder / f"{number}.npz", x=np.arange(number, dtype="<i2"), y=number)
    return ndfeed.open(folder, sample="file", cache=False)


def split(folder):
    """A stored member of many rows, whose checksum several tasks compute together."""
    np.savez(folder / "0.npz", x=np.arange(80, dtype="<i4").reshape(20, 4))
    return ndfeed.open(folder, sample="row", cache=False)


def lengthen(batch):
    """A map whose lengths are known only once it has run."""
    (values,) = batch.values()
    return {"n": [np.arange(value[0] % 5, dtype="<i8") for value in values]}


CASES = {
    "in order": lambda folder: (stored(folder), {"rows_per_part": 5}),
    "members": lambda folder: (samples(folder), {"names": True}),
    "split": lambda folder: (split(folder), {}),
    "scattered": lambda folder: (compressed(folder), {"shuffle": 3}),
    "spooled": lambda folder: (compressed(folder).map(lengthen), {"shuffle": 3}),
}


def describe(case, folder):
    """What a pack has written to the disk when its last task is done, and its manifest."""
    (folder / "source").mkdir()
    ds, options = CASES[case](folder / "source")
    found = {}

    def look(rows, nbytes):
        (plan,) = folder.glob(".packed.*/plan")
        found["digest"] = plan.parent.name.split(".")[2].split("-")[0]
        found["plan"] = json.loads(plan.read_bytes())
        lines = (plan.parent / "journal").read_text().splitlines()
        found["journal"] = sorted(line.rpartition(" ")[0] for line in lines)

    ndfeed.pack(
        ds, folder / "packed", executor=AtOnce(), workers=1, memory=160, progress=look, **options
    )
    found["manifest"] = json.loads((folder / "packed/ndfeed.json").read_bytes())
    if case != "in order":  # compilers, libraries and clocks change these
        del found["digest"], found["plan"]["digest"]
        del found["manifest"]["digest"]
        for source in (found["plan"]["source"], *found["manifest"]["source"]["packs"]):
            del source["plan"], source["fingerprint"], source["maps"]
    return found


@pytest.mark.parametrize("case", CASES)
def test_what_packs_write_is_frozen(case, tmp_path):
    """An interrupted pack is resumed, and a finished one recognised, by these very values."""
    assert describe(case, tmp_path) == json.loads(GOLDEN.read_text())[case]
