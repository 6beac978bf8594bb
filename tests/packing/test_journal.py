"""The journal: believed up to the first line that is not whole, and never further."""

import json
import os
import random
import shutil
from itertools import count

import pytest
from faults.seam import BROKEN, system, tree
from hypothesis import given
from hypothesis import strategies as st
from packing import making

import ndfeed
from ndfeed.files.folder import Folder
from ndfeed.packing.columns import ColumnFile, Spot, Stretch, combine_checksums
from ndfeed.packing.journal import Journal, Record, checksum, seal_line
from ndfeed.packing.plan import RowsTask
from ndfeed.packing.staging_folder import find_unfinished

RECORDS = [
    Record(RowsTask(n), {Spot(0, 0, "rows"): Stretch(n, n + 1, [n * 77])}, rows=1, nbytes=9)
    for n in range(4)
]


def opened(path):
    with Folder(os.fsencode(path.parent)) as folder:
        return Journal(folder, os.fsencode(path.name))


def written(path):
    journal = opened(path)
    journal.append(RECORDS[:1])
    journal.append(RECORDS[1:])
    journal.close()
    return path.read_bytes()


def read(path):
    journal = opened(path)
    journal.close()
    return list(journal.done.values())


def test_what_is_noted_is_there_the_next_time(tmp_path):
    """In order, and what was written by column."""
    written(tmp_path / "journal")
    journal = opened(tmp_path / "journal")
    journal.close()

    assert list(journal.done.values()) == RECORDS
    assert journal.written() == {
        Spot(0, 0, "rows"): [Stretch(n, n + 1, [n * 77]) for n in range(4)]
    }


def test_lines_are_frozen(tmp_path):
    """A newer version goes on with what an older one began."""
    first = written(tmp_path / "journal").splitlines()[0]

    assert first == (
        b'{"bytes":9,"rows":1,"task":"rows 0","wrote":{"0.0.rows":[0,1,[0]]}} f58ba5ee'
    )


@given(data=st.data())
def test_damage_is_never_believed(tmp_path_factory, data):
    """Any bit, any length: what is read is what was noted first, and nothing else."""
    path = tmp_path_factory.mktemp("any") / "journal"
    text = bytearray(written(path))
    if data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(text) - 1))
        text[at] ^= 1 << data.draw(st.integers(0, 7))
        line = bytes(text[:at]).count(b"\n")
    else:
        text = text[: data.draw(st.integers(0, len(text) - 1))]
        line = text.count(b"\n")
    path.write_bytes(text)

    assert read(path) == RECORDS[:line]


def test_a_pack_goes_on_from_a_damaged_journal(folder):
    """It does more again, and ends the same; verify names the journal until then."""
    ds = making.npz_of_rows(folder / "source", files=8, rows=100)
    journal, text = making.interrupted(ds, folder / "packed")
    work, kept = journal.parent, folder / "kept"
    shutil.copytree(work, kept)
    ndfeed.pack(ds, folder / "packed", **making.PIECES)
    expected = tree(folder / "packed")
    rng = random.Random(0)
    for _ in range(24):
        shutil.rmtree(folder / "packed")
        shutil.copytree(kept, work)
        at = rng.randrange(len(text))
        flipped = bytearray(text)
        flipped[at] ^= 1 << rng.randrange(8)
        journal.write_bytes(flipped)
        line = text[:at].count(b"\n") + 1
        for path in (work, folder / "packed"):
            with pytest.raises(
                ndfeed.ChecksumError, match=f"damaged from line {line} on"
            ) as caught:
                ndfeed.verify(path)
            assert caught.value.path == str(journal)
        ndfeed.pack(ds, folder / "packed", **making.PIECES)

        assert tree(folder / "packed") == expected
        assert not work.exists()


def test_an_unfinished_pack_with_a_sound_journal(tmp_path):
    """Verify says that, and how far it is, whether asked for the target or the hidden folder."""
    ds = making.npz_of_rows(tmp_path / "source", files=8, rows=100)
    journal, text = making.interrupted(ds, tmp_path / "packed")
    match = f"intact with {text.count(bytes([10]))} steps done; rerun the same"

    for path in (journal.parent, tmp_path / "packed"):
        with pytest.raises(ndfeed.MissingError, match=match):
            ndfeed.verify(path)


def test_a_lost_note_that_parts_are_moved(folder):
    """They are made again; files made anew are never taken for finished ones."""
    ds = making.npz_of_rows(folder / "source")
    target = folder / "packed"
    ndfeed.pack(ds.take(slice(0, 10)), target)
    shutil.copytree(target, folder / "base")
    ndfeed.pack(ds, target, append=True)
    expected = tree(target)
    for at in count(1):
        shutil.rmtree(target)
        shutil.copytree(folder / "base", target)
        with system(at, BROKEN, {"replace"}), pytest.raises(ndfeed.TargetError, match="rename"):
            ndfeed.pack(ds, target, append=True)
        if (target / "00001").exists():
            break
    (journal,) = folder.glob(".packed.*/journal")
    text = bytearray(journal.read_bytes())
    text[-4] ^= 1
    journal.write_bytes(text)
    ndfeed.pack(ds, target, append=True)

    assert tree(target) == expected


DEEP = b"[" * 100_000 + b"]" * 100_000
STRANGE = [
    DEEP,
    b'{"task":' + DEEP + b"}",
    b"5",
    b'"rows 0"',
    b'{"task":5}',
    b'{"task":"rows 0"}',
    b'{"task":"rows -1","rows":1,"bytes":1,"wrote":{}}',
    b'{"task":"remove /","rows":1,"bytes":1,"wrote":{}}',
    b'{"task":"rows 0","rows":true,"bytes":1,"wrote":{}}',
    b'{"task":"rows 0","rows":"1","bytes":1,"wrote":{}}',
    b'{"task":"rows 0","rows":1.0,"bytes":1,"wrote":{}}',
    b'{"task":"rows 0","rows":9223372036854775808,"bytes":1,"wrote":{}}',
    b'{"task":"rows 0","rows":1,"bytes":1,"wrote":{"../x":[0,1,[0]]}}',
    b'{"task":"rows 0","rows":1,"bytes":1,"wrote":{"0.0.rows":[2,1,[0]]}}',
    b'{"task":"rows 0","rows":1,"bytes":1,"wrote":{"0.0.rows":[0,1,[4294967296]]}}',
    b'{"task":"rows 0","rows":1,"bytes":1,"wrote":{"0.0.rows":[0,1]}}',
    b'{"task":"rows 0","rows":1,"bytes":1,"wrote":{},"more":1}',
    b'{"task":"publish","rows":1}',
]


@pytest.mark.parametrize("number", range(len(STRANGE)))
def test_what_no_piece_would_say_is_not_believed(tmp_path, number):
    """Nor is anything behind it, though each line has its checksum."""
    first, second = written(tmp_path / "journal").splitlines(keepends=True)[:2]
    (tmp_path / "journal").write_bytes(first + seal_line(STRANGE[number], checksum) + second)

    assert read(tmp_path / "journal") == RECORDS[:1]


def test_a_forged_journal_is_called_damaged(folder):
    """By verify, with one line, however deep it is; the pack does again what it spoke of."""
    ds = making.npz_of_rows(folder / "source", files=8, rows=100)
    journal, _ = making.interrupted(ds, folder / "packed")
    _, seal = find_unfinished(os.fsencode(journal.parent))
    journal.write_bytes(seal_line(DEEP, seal))
    with pytest.raises(ndfeed.ChecksumError, match="damaged from line 1 on"):
        ndfeed.verify(folder / "packed")

    assert making.same(ndfeed.pack(ds, folder / "packed", **making.PIECES), ds)


def test_a_journal_is_held_against_the_plan(folder):
    """Signed as it must be, but of pieces and bytes that there are not: done again, all of it."""
    ds = making.npz_of_rows(folder / "source", files=8, rows=100)
    journal, text = making.interrupted(ds, folder / "packed")
    work = journal.parent
    _, seal = find_unfinished(os.fsencode(work))
    shutil.copytree(work, folder / "kept")
    ndfeed.pack(ds, folder / "packed", **making.PIECES)
    expected = tree(folder / "packed")
    record = json.loads(text.splitlines()[0].rpartition(b" ")[0])
    (spot, (start, end, sums)), *_ = record["wrote"].items()
    for change in (
        {"task": "rows 1000000"},
        {"task": "place 0"},
        {"task": "sums 0"},
        {"rows": record["rows"] + 1},
        {"wrote": {spot: [start, 1 << 40, sums]}},
        {"wrote": {spot: [start, end, [*sums, 0]]}},
        {"wrote": {"7.0.rows": [0, 1, [0]]}},
        {"wrote": {"0.0.offsets": [0, 1, [0]]}},
        {"wrote": {}},
    ):
        shutil.rmtree(folder / "packed")
        shutil.copytree(folder / "kept", work)
        forged = json.dumps({**record, **change}).encode()
        rest = text.splitlines(keepends=True)[1:]
        journal.write_bytes(b"".join([seal_line(forged, seal), *rest]))
        ndfeed.pack(ds, folder / "packed", **making.PIECES)

        assert tree(folder / "packed") == expected


def test_columns_must_be_covered():
    """A gap in what was noted can never become a manifest."""
    file = ColumnFile(b"x", 10, 4, b"", 3)
    whole = [Stretch(0, 12, [1]), Stretch(12, 40, [2, 3, 4])]

    assert combine_checksums(file, whole) == [1, 2, 3, 4]
    for some in (whole[:1], whole[1:], []):
        with pytest.raises(ValueError, match="were not written"):
            combine_checksums(file, some)
