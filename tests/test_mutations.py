"""Ten thousand edits, checksums repaired, of each of our own formats: the same data, or an error.

Index cache, manifest, journal, sidecar and state may be edited by somebody who repairs checksums
and even has this user's key. All are given the same kinds of edits from the same seed. What parses
and validates a format sees every edit; what it accepts is read, and some of it goes through every
function that takes such a file. Nothing may come of an edit but the same data, an error of ours,
or an index that is built again; nothing beside the dataset may change.

    python tests/test_mutations.py 100000

does the same with so many edits of each format.
"""

import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
import warnings
from collections import Counter
from itertools import chain
from pathlib import Path

import numpy as np

sys.path.insert(0, os.fspath(Path(__file__).parent))

from faults.seam import tree
from formats.reading import same as same_arrays
from hostile import contained, watch
from index.forging import SIGNATURE, checked, header_of, signed, with_header
from mutations import binaries, json_texts
from packing import making
from packing.making import same

import ndfeed
from ndfeed.formats import raw
from ndfeed.formats.manifest import parse
from ndfeed.index import cache, validate
from ndfeed.index.source import spell_source
from ndfeed.packing.journal import checksum, parse_journal, seal_line
from ndfeed.packing.staging_folder import find_unfinished

COUNT = 10_000
SEED = 0
MOST_SECONDS = 5  # for one attempt


def edited(document, data, count):
    """Edits of a document: three of four of what its JSON says, the others of its bytes."""
    return (
        json_texts(document, count - count // 4, SEED),
        binaries(data, count // 4, SEED),
    )


class Outcomes(Counter):
    """Counts how attempts end; whatever must not happen is raised."""

    def attempt(self, function, *args, **options):
        """What a call gives, or nothing where it raises an error of ours."""
        began, problem = time.process_time(), None
        try:
            found = function(*args, **options)
            self["done"] += 1
        except ndfeed.Error as error:
            self["refused"] += 1
            found, problem = None, error
        assert isinstance(problem, ndfeed.BadFilesError) or "\n" not in str(problem)
        assert time.process_time() - began < MOST_SECONDS
        return found


# The index cache


def make_files(folder):
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
    ds = ndfeed.open(folder, sample="row", **options)
    assert all(path.startswith(os.fspath(folder)) for path in ds.files)
    found = ds[:].items()
    return {name: [(str(r.dtype), r.shape, r.tobytes()) for r in some] for name, some in found}


def load_as_large(place, spellings):
    """Load a cache whose numbers are checked as those of a large table, by NumPy."""
    few, validate._FEW = validate._FEW, 0
    try:
        return cache.load(place, spellings)
    finally:
        validate._FEW = few


def caches(root, count, *, forged):
    """Edit the index of some files; whether it is built again, or what is read by it."""
    folder = root / "data"
    make_files(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is built again
        wanted = rows(folder, cache=False)
        assert rows(folder) == wanted
        place = cache.place(spell_source(folder), None)
        path = Path(os.fsdecode(place))
        data = path.read_bytes()
        header, columns = header_of(data)
        texts, others = edited(header, data[:-SIGNATURE], count)
        bodies = chain((with_header(text, columns) for text in texts), map(checked, others))
        found = Outcomes()
        for number, body in enumerate(bodies):
            edit = signed(path, body) if forged else body + data[-SIGNATURE:]
            path.write_bytes(edit)
            kept = found.attempt(cache.load, place, spell_source(folder))
            found["built again"] += kept is None
            if forged:
                path.write_bytes(edit)
                large = found.attempt(load_as_large, place, spell_source(folder))
                assert (kept is None) == (large is None)
            if kept is not None or number % 50 == 0:
                path.write_bytes(edit)
                read = found.attempt(rows, folder)
                found["same" if read == wanted else "other" if read else "not read"] += 1
    return found


def test_caches_with_their_checksum_repaired(folder, monkeypatch):
    """Whoever does not have the key of this user cannot make the library believe anything."""
    monkeypatch.setenv("XDG_CACHE_HOME", os.fspath(folder / "cache"))
    found = caches(folder, COUNT, forged=False)

    assert found["built again"] > COUNT - 100  # those that an edit leaves as they were
    assert found["refused"] == found["other"] == 0
    assert found["same"] >= COUNT // 50


def test_caches_with_their_signature_forged(folder, monkeypatch):
    """Who has the key may describe the files wrongly, which is as good as editing them.

    There is no crash, no other error, no file but the source's own, and no byte from outside it.
    """
    monkeypatch.setenv("XDG_CACHE_HOME", os.fspath(folder / "cache"))
    found = caches(folder, COUNT, forged=True)

    assert found["built again"] > 0.6 * COUNT
    assert found["same"] > 0.01 * COUNT
    assert found["other"] + found["not read"] < 0.1 * COUNT


# Manifests


def repaired(text):
    """A manifest that says ``text``, with the digest that belongs to it."""
    inner = text.removesuffix(b"}")
    return inner + b',\n"digest":"%s"}\n' % hashlib.sha256(inner).hexdigest().encode()


def manifests(folder, count):
    """Edit a manifest; how reading, and for some verifying, repairing and adding, end."""
    ds = making.npz_of_samples(folder / "source", files=12).select("label", "text", "volume")
    packed, kept = folder / "packed", folder / "kept"
    ndfeed.pack(ds.take(np.arange(8)), packed, rows_per_part=5)
    ndfeed.pack(ds.take([8, 9]), packed, append=True)
    (folder / "precious").mkdir()
    (folder / "precious/notes").write_bytes(b"mine")
    document = json.loads((packed / "ndfeed.json").read_bytes())
    del document["digest"]
    shutil.copytree(packed, kept)
    nothing = np.arange(0)
    before, whole, outcomes = tree(folder), ndfeed.open(kept), Outcomes()
    # It may list parts in another order: then that is the order of their rows.
    rows_of = dict(zip(["00000", "00001", "00002"], np.split(np.arange(10), [5, 8]), strict=True))
    manifest = packed / "ndfeed.json"
    for edit in chain(*edited(document, json.dumps(document).encode(), count)):
        data = repaired(edit)
        outcomes["edits"] += 1
        says = outcomes.attempt(parse, data, b"ndfeed.json")
        if says is None:
            continue
        outcomes["parsed"] += 1
        expected = whole.take(
            np.concatenate([nothing, *(rows_of.get(part.folder, nothing) for part in says.parts)])
        )
        manifest.write_bytes(data)
        found = outcomes.attempt(ndfeed.open, packed)
        assert found is None or outcomes.attempt(_alike, found, expected) in (True, None)
        if outcomes["parsed"] % 25 == 0:
            _change_packed(outcomes, ds, packed, data, expected)
            shutil.rmtree(packed)
            shutil.copytree(kept, packed)
            assert tree(folder) == before
    return outcomes


def _change_packed(outcomes, ds, packed, manifest, expected):
    """Verify what has such a manifest, add to it, and repair it."""
    outcomes.attempt(ndfeed.verify, packed, progress=False)
    found = outcomes.attempt(ndfeed.pack, ds.take([10, 11]), packed, append=True)
    assert found is None or outcomes.attempt(_alike, found, expected) in (True, None)
    (packed / "ndfeed.json").write_bytes(manifest)
    column = packed / "00000/label.npy"
    data = bytearray(column.read_bytes())
    data[-1] ^= 1
    column.write_bytes(data)
    found = outcomes.attempt(ndfeed.pack, ds.take(np.arange(8)), packed, repair=True)
    assert found is None or outcomes.attempt(_alike, found, expected) in (True, None)


def _alike(found, expected):
    """The same samples first, whatever their fields are called."""
    names = dict(zip(found.fields, expected.fields, strict=True))
    a, b = (ds.read(np.arange(len(expected))) for ds in (found, expected))
    for name, other in names.items():
        for x, y in zip(a[name], b[other], strict=True):
            np.testing.assert_array_equal(x, y)
    return True


def test_manifests(folder):
    """Opened and read; some verified, added to and repaired."""
    found = manifests(folder, COUNT)

    assert found["edits"] == COUNT
    assert found["refused"] > 0.8 * COUNT
    assert found["parsed"] > 0.01 * COUNT  # some are harmless, or not much would be tried


# Journals


def journals(folder, count):
    """Edit lines of a journal; what is believed, and for some how going on and verifying end."""
    ds = making.npz_of_rows(folder / "source", files=3, rows=30).map(making.ragged)
    target = folder / "packed"
    journal, text = making.interrupted(ds, target)
    work, kept = journal.parent, folder / "kept"
    _, seal = find_unfinished(bytes(work))
    shutil.move(work, kept)
    ndfeed.pack(ds, target, **making.PIECES)
    expected, outcomes = tree(target), Outcomes()
    shutil.rmtree(target)
    before = tree(folder)
    lines = text.splitlines(keepends=True)
    for number, (at, edit) in enumerate(_edited_lines(lines, count)):
        outcomes["edits"] += 1
        for how in (seal, checksum):
            data = b"".join([*lines[:at], seal_line(edit, how), *lines[at + 1 :]])
            records, _ = outcomes.attempt(parse_journal, data, seal)
            assert how is seal or len(records) == at  # nothing from there on
            accepted = len(records) > at
            outcomes["believed"] += accepted
            if number % 500 == 0 or (accepted and outcomes["believed"] % 15 == 0):
                shutil.copytree(kept, work)
                journal.write_bytes(data)
                _go_on(outcomes, ds, target, None if how is seal else expected)
                shutil.rmtree(work, ignore_errors=True)
                shutil.rmtree(target, ignore_errors=True)
                assert tree(folder) == before
    return outcomes


def _edited_lines(lines, count):
    """The number of a line, and what it says instead."""
    share = -(-count // len(lines))
    for at, line in enumerate(lines):
        says = line.rpartition(b" ")[0]
        number = min(share, count - at * share)
        for edit in chain(*edited(json.loads(says), says, max(number, 0))):
            yield at, edit


def _go_on(outcomes, ds, target, expected):
    """Whoever has the key may claim what is not so; then the checksums tell."""
    outcomes["gone on with"] += 1
    assert outcomes.attempt(ndfeed.verify, target) is None
    found = outcomes.attempt(ndfeed.pack, ds, target, **making.PIECES)
    if found is not None and expected is not None:
        assert tree(target) == expected
    elif found is not None:
        assert same(found, ds) or not ndfeed.verify(target, progress=False).ok


def test_journals(folder):
    """Most lines are not believed, and none is more than that."""
    found = journals(folder, COUNT)

    assert found["edits"] == COUNT
    assert 0 < found["believed"] < 0.3 * COUNT
    assert found["gone on with"] >= 40


def spools(folder, count):
    """Edit what maps made of ragged fields; how going on with it ends."""
    ds = making.npz_of_rows(folder / "source", files=3, rows=30).map(making.ragged)
    target = folder / "packed"
    journal, _ = making.interrupted(ds, target)
    work, kept = journal.parent, folder / "kept"
    shutil.move(work, kept)
    before, outcomes = tree(folder), Outcomes()
    names = sorted(p.relative_to(kept) for p in [*kept.glob("spool/*"), *kept.glob("shapes.*")])
    for place in range(count):
        shutil.copytree(kept, work)
        name = names[place % len(names)]
        (spoiled,) = binaries((kept / name).read_bytes(), 1, seed=place)
        (work / name).write_bytes(spoiled)
        outcomes["edits"] += 1
        outcomes.attempt(ndfeed.pack, ds, target, **making.PIECES)
        shutil.rmtree(work, ignore_errors=True)
        shutil.rmtree(target, ignore_errors=True)
        assert tree(folder) == before
    return outcomes


def test_spools(folder):
    """Lengths that do not fit, files of other sizes: an error that names the file."""
    assert spools(folder, 30)["edits"] == 30


# Sidecars

TOKENS = np.arange(1000, 1024, dtype="<u2")
LAYOUTS = [
    {"dtype": "uint16", "shape": [2, 3], "offset": 12},
    {"dtype": "<M8[25s]", "more": {"text": "x", "list": [1, 2]}},
    {"dtype": "bfloat16", "shape": 4},
]


def meant(text):
    """What a layout says, as NumPy alone reads the tokens by it; ``None`` if NumPy cannot."""
    import ml_dtypes

    found = json.loads(text.removeprefix(b"\xef\xbb\xbf").decode())
    shape = found.get("shape", ())
    try:
        dtype = np.dtype(getattr(ml_dtypes, found["dtype"], found["dtype"]))
        offset = found.get("offset", 0)
        values = np.frombuffer(TOKENS.tobytes(), np.uint8)[offset:].view(dtype)
        values = values.reshape(-1, *([shape] if isinstance(shape, int) else shape))
        return values.astype(dtype.newbyteorder("="))
    except (TypeError, ValueError):
        return None


def sidecars(folder, count):
    """Edit the JSON beside a raw file; how many layouts are read as NumPy reads them."""
    path = folder / "x.bin"
    path.write_bytes(TOKENS.tobytes())
    beside = path.with_name("x.bin.json")
    outcomes, alike, problems = Outcomes(), Counter(), []
    for layout in LAYOUTS:
        read = {}
        share = -(-count // len(LAYOUTS))
        for edit in chain(*edited(layout, json.dumps(layout).encode(), share)):
            outcomes["edits"] += 1
            beside.write_bytes(edit)
            try:
                with watch(path, beside):
                    found = raw.beside(bytes(path))
            except ndfeed.FormatError as error:
                problems.append(str(error))
                continue
            if found not in read:
                read[found] = contained(path), meant(edit)
        for got, wanted in read.values():
            if got and wanted is not None:
                assert same_arrays(got, {"data": wanted})
                alike[layout["dtype"]] += 1
    assert all(one.startswith(f"{beside}: ") and len(one) < 1000 for one in problems)
    outcomes["refused"] = len(problems)
    return outcomes, alike


def test_sidecars(folder):
    """Each is refused by one of our errors, or read just as it says."""
    found, alike = sidecars(folder, COUNT)

    assert found["edits"] >= COUNT
    assert found["refused"] > 0.3 * COUNT
    assert min(alike[layout["dtype"]] for layout in LAYOUTS) > 5


# States


def states(folder, count):
    """Edit a loader's state; how many are taken for a place in the same order of the same data."""
    np.savez_compressed(folder / "x.npz", n=np.arange(30))
    outcomes, longest = Outcomes(), 0
    with ndfeed.loader(ndfeed.open(folder / "x.npz"), 7, shuffle=True, threads=1) as loader:
        sound = {**loader.state_dict(), "epoch": 3, "samples": 14}
        for edit in chain(*edited(sound, json.dumps(sound).encode(), count)):
            outcomes["edits"] += 1
            try:
                state = json.loads(edit)
            except (ValueError, RecursionError):  # not JSON: not for us to read
                state = None
            try:
                loader.load_state_dict(state)
            except ndfeed.ResumeError as error:
                longest = max(longest, len(str(error)))
                continue
            assert loader.state_dict() == {name: state[name] for name in sound}
            assert all(state[name] == sound[name] for name in ("order", "rows", "data"))
            assert 0 <= state["samples"] <= sound["rows"]
            outcomes["taken"] += 1
        assert longest < 1000
        left = 30 - loader.state_dict()["samples"]
        assert sum(len(batch["n"]) for batch in loader) == left
    return outcomes


def test_states(tmp_path):
    """Each is refused, or is a place in the same order of the same data."""
    found = states(tmp_path, COUNT)

    assert found["edits"] == COUNT
    assert found["taken"] > 500


def main(count):
    """Everything above, with so many edits of each format."""
    for kind in (
        lambda place: caches(place, count, forged=False),
        lambda place: caches(place, count, forged=True),
        lambda place: manifests(place, count),
        lambda place: journals(place, count),
        lambda place: sidecars(place, count),
        lambda place: states(place, count),
    ):
        with tempfile.TemporaryDirectory() as made:
            os.environ["XDG_CACHE_HOME"] = os.path.join(made, "cache")
            print(kind(Path(made)), flush=True)  # noqa: T201 - for whoever ran it


if __name__ == "__main__":
    main(int(sys.argv[1]))
