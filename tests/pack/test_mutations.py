"""Manifest, journal and spool, edited by an enemy who repairs checksums: the same, or an error.

Never other data, another exception, a hang, or a touch of what lies beside the dataset. In CI some
hundreds of mutations; ``python tests/pack/test_mutations.py 10000`` for as many as one likes.
"""

import hashlib
import json
import shutil
import sys
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))

import mutations
from faults.seam import tree
from pack import making
from pack.making import same

import ndfeed
from ndfeed.formats.manifest import parse
from ndfeed.pack.journal import believed, checksum, sealed
from ndfeed.pack.work import unfinished

MOST_SECONDS = 5


class Outcomes(Counter):
    """Counts how attempts end; whatever must not happen is raised."""

    def attempt(self, function, *args, **options):
        """What a call gives, or nothing where it raises an error of ours."""
        began = time.monotonic()
        try:
            found = function(*args, **options)
            self["done"] += 1
        except ndfeed.Error as error:
            self["refused"] += 1
            self["of several lines"] += "\n" in str(error)
            found = None
        assert time.monotonic() - began < MOST_SECONDS
        return found


def signed(text):
    """A manifest that says ``text``, with the digest that belongs to it."""
    inner = text.removesuffix(b"}")
    return inner + b',\n"digest":"%s"}\n' % hashlib.sha256(inner).hexdigest().encode()


def plain(text):
    """What a manifest says, without its digest."""
    found = json.loads(text)
    del found["digest"]
    return found


def manifests(folder, number):
    """Mutate a manifest so many times; how reading, verifying, repairing and adding end."""
    ds = making.npz_of_samples(folder / "source", files=12).select("label", "text", "volume")
    packed, kept = folder / "packed", folder / "kept"
    ndfeed.pack(ds.take(np.arange(8)), packed, rows_per_part=5)
    ndfeed.pack(ds.take([8, 9]), packed, append=True)
    (folder / "precious").mkdir()
    (folder / "precious/notes").write_bytes(b"mine")
    text = (packed / "ndfeed.json").read_bytes()
    column = packed / "00000/label.npy"
    damaged = bytearray(column.read_bytes())
    damaged[-1] ^= 1
    shutil.move(packed, kept)
    expected, outcomes = ndfeed.open(kept), Outcomes()
    before = tree(folder)
    for mutated in mutations.json_texts(plain(text), number):
        data = signed(mutated)
        outcomes["mutations"] += 1
        if outcomes.attempt(parse, data, b"ndfeed.json") is None:
            continue
        shutil.copytree(kept, packed)
        (packed / "ndfeed.json").write_bytes(data)
        found = outcomes.attempt(ndfeed.open, packed)
        assert found is None or outcomes.attempt(_alike, found, expected) in (True, None)
        outcomes.attempt(ndfeed.verify, packed, progress=False)
        found = outcomes.attempt(ndfeed.pack, ds.take([10, 11]), packed, append=True)
        assert found is None or outcomes.attempt(_alike, found, expected) in (True, None)
        (packed / "ndfeed.json").write_bytes(data)
        column.write_bytes(damaged)
        found = outcomes.attempt(ndfeed.pack, ds.take(np.arange(8)), packed, repair=True)
        assert found is None or outcomes.attempt(_alike, found, expected) in (True, None)
        shutil.rmtree(packed)
        assert tree(folder) == before
    return outcomes


def _alike(found, expected):
    """The same samples first, whatever their fields are called."""
    names = dict(zip(found.fields, expected.fields, strict=True))
    a, b = (ds.read(np.arange(len(expected))) for ds in (found, expected))
    for name, other in names.items():
        for x, y in zip(a[name], b[other], strict=True):
            np.testing.assert_array_equal(x, y)
    return True


def journals(folder, number, *, forged):
    """Mutate lines of a journal so many times; how going on with it and verifying end.

    ``forged`` are those of somebody who has this user's key, too: they may claim what is not so,
    and then the checksums tell.
    """
    ds = making.npz_of_rows(folder / "source", files=3, rows=30).map(making.ragged)
    target = folder / "packed"
    journal, text = making.interrupted(ds, target)
    work, kept = journal.parent, folder / "kept"
    _, seal = unfinished(bytes(work))
    shutil.copytree(work, kept)
    ndfeed.pack(ds, target, **making.PIECES)
    expected, outcomes = tree(target), Outcomes()
    shutil.rmtree(target)
    before = tree(folder)
    lines = text.splitlines(keepends=True)
    records = [json.loads(line.rpartition(b" ")[0]) for line in lines]
    for place in range(number):
        at = place % len(records)
        (mutated,) = mutations.json_texts(records[at], 1, seed=place)
        changed = [*lines[:at], sealed(mutated, seal if forged else checksum), *lines[at + 1 :]]
        shutil.copytree(kept, work, dirs_exist_ok=True)
        journal.write_bytes(b"".join(changed))
        outcomes["mutations"] += 1
        assert outcomes.attempt(ndfeed.verify, target) is None
        found = outcomes.attempt(ndfeed.pack, ds, target, **making.PIECES)
        if found is not None and not forged:
            assert tree(target) == expected
        elif found is not None:
            assert same(found, ds) or not ndfeed.verify(target, progress=False).ok
        shutil.rmtree(work, ignore_errors=True)
        shutil.rmtree(target, ignore_errors=True)
        assert tree(folder) == before
    return outcomes


def spools(folder, number):
    """Mutate what maps made of ragged fields; how going on with it ends."""
    ds = making.npz_of_rows(folder / "source", files=3, rows=30).map(making.ragged)
    target = folder / "packed"
    journal, _ = making.interrupted(ds, target)
    work, kept = journal.parent, folder / "kept"
    shutil.move(work, kept)
    before, outcomes = tree(folder), Outcomes()
    names = sorted(p.relative_to(kept) for p in [*kept.glob("spool/*"), *kept.glob("shapes.*")])
    for place in range(number):
        shutil.copytree(kept, work)
        name = names[place % len(names)]
        (spoiled,) = mutations.binaries((kept / name).read_bytes(), 1, seed=place)
        (work / name).write_bytes(spoiled)
        outcomes["mutations"] += 1
        outcomes.attempt(ndfeed.pack, ds, target, **making.PIECES)
        shutil.rmtree(work, ignore_errors=True)
        shutil.rmtree(target, ignore_errors=True)
        assert tree(folder) == before
    return outcomes


def lines(number):
    """Mutate single lines, correctly signed; how many are believed."""
    record = {
        "task": "rows 3",
        "wrote": {"0.0.rows": [0, 4096, [7]], "0.1.values": [10, 20, [1, 2]]},
        "read": {"0.0.1": [[0, 5, [9]]]},
        "rows": 7,
        "bytes": 99,
    }
    outcomes = Outcomes()
    for mutated in mutations.json_texts(record, number):
        outcomes["mutations"] += 1
        found = outcomes.attempt(believed, sealed(mutated, checksum))
        outcomes["believed"] += len(found[0])
    return outcomes


@pytest.fixture(autouse=True)
def no_warnings():
    """Of folders that are not ours: there are none here."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def test_manifests(folder):
    """Opened, verified, added to and repaired."""
    found = manifests(folder, 500)

    assert found["mutations"] == 500
    assert found["refused"] > 400
    assert found["done"] > 100  # some are harmless, or not much would be tried


def test_journals(folder):
    """Of somebody who does not have this user's key: no line is believed from there on."""
    found = journals(folder, 30, forged=False)

    assert found["done"] == 30


def test_forged_journals(folder):
    """Of somebody who has: what is claimed must be what a plan's pieces would claim."""
    found = journals(folder, 40, forged=True)

    assert found["done"] >= 30


def test_spools(folder):
    """Lengths that do not fit, files of other sizes: an error that names the file."""
    found = spools(folder, 30)

    assert found["mutations"] == 30


def test_lines():
    """Most are not believed, and none is more than that."""
    found = lines(4000)

    assert found["done"] == 4000
    assert 0 < found["believed"] < 800


if __name__ == "__main__":
    count = int(sys.argv[1])
    for kind in (
        manifests,
        lambda place, n: journals(place, n // 10, forged=False),
        lambda place, n: journals(place, n // 10, forged=True),
        lambda place, n: spools(place, n // 10),
    ):
        with tempfile.TemporaryDirectory(dir="/dev/shm") as made:
            print(dict(kind(Path(made), count)), flush=True)  # noqa: T201 - for whoever ran it
    print(dict(lines(count)))  # noqa: T201
