"""``ndfeed.verify``: every damaged bit is found, and the rows it touches are named."""

import dataclasses
import os
import threading

import ml_dtypes
import numpy as np
import packed_making
import pytest
from children import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from packing import making

import ndfeed
from ndfeed.files.file import File
from ndfeed.formats.checksums import find_damaged
from ndfeed.formats.manifest import parse
from ndfeed.packing.journal import parse_journal
from ndfeed.packing.staging_folder import find_unfinished

ROWS = 40
FLIPS = 100_000


def content():
    rng = np.random.default_rng(0)
    return {
        "image": rng.random((ROWS, 3, 4), dtype=np.float32),
        "half": rng.random(ROWS).astype(ml_dtypes.bfloat16),
        "text": [rng.integers(0, 255, n).astype(np.uint8) for n in rng.integers(0, 30, ROWS)],
        "crop": [rng.random(s).astype("<f4") for s in rng.integers(0, 5, (ROWS, 2))],
    }


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """A dataset that every test leaves as it found it."""
    folder = tmp_path_factory.mktemp("packed")
    manifest = packed_making.write(folder, content(), parts=3, rows_per_block=4)
    return folder, manifest


def columns(folder, manifest):
    """(path, column, field, first row of the part, part) of every column."""
    fields = {field.name: field for field in manifest.fields}
    start = 0
    for part in manifest.parts:
        for column in part.columns:
            yield folder / part.folder / column.file, column, fields[column.field], start, part
        start += part.rows


class Flipped:
    """One bit of a file turned round, and back again, without a new inode."""

    def __init__(self, path, bit):
        self.path, self.at, self.mask = path, bit // 8, 1 << bit % 8

    def _turn(self):
        fd = os.open(self.path, os.O_RDWR)
        byte = os.pread(fd, 1, self.at)[0]
        os.pwrite(fd, bytes([byte ^ self.mask]), self.at)
        os.close(fd)

    def __enter__(self):
        self._turn()

    def __exit__(self, *_):
        self._turn()


def touched(column, field, part, start, at):
    """The rows that share a block with byte ``at``, by looking at all of them."""
    if at < column.header:
        return start, start + part.rows
    size = field.row_bytes(column.role)
    block = (at - column.header) // size // column.rows_per_block
    first = block * column.rows_per_block
    last = min(first + column.rows_per_block, column.rows)
    if column.role == "offsets":
        return start + max(first - 1, 0), start + min(last, part.rows)
    if column.role != "values":
        return start + first, start + last
    samples = content()[field.name][start : start + part.rows]
    ends = np.cumsum([0, *(s.size if "shapes" in field.roles else len(s) for s in samples)])
    inside = [i for i in range(len(samples)) if ends[i] < last and ends[i + 1] > first]
    return start + inside[0], start + inside[-1] + 1


def test_a_sound_dataset_is_sound(packed):
    """And what was read is said."""
    folder, manifest = packed
    found = ndfeed.verify(folder)

    assert found.ok
    assert found.damaged == ()
    assert (found.rows, found.columns) == (ROWS, 3 * 7)
    assert found.nbytes == sum(c.nbytes for p in manifest.parts for c in p.columns)
    assert str(found) == f"{folder}: 40 rows in 21 columns, no damage found"
    assert ndfeed.verify(os.fsencode(folder / "ndfeed.json"), threads=1, progress=False).ok


@settings(max_examples=examples(150))
@given(st.data())
def test_a_flipped_bit_is_found_and_its_rows_are_named(packed, data):
    """The rows of its block, no more and no fewer, whatever the column holds."""
    every = list(columns(*packed))
    path, column, field, start, part = data.draw(st.sampled_from(every))
    bit = data.draw(st.integers(0, 8 * column.nbytes - 1))
    with Flipped(path, bit):
        found = ndfeed.verify(packed[0], threads=2)

    (damage,) = found.damaged
    assert not found.ok
    assert (damage.file, damage.field) == (str(path), field.name)
    wanted = touched(column, field, part, start, bit // 8)
    first, last = damage.rows
    assert first <= wanted[0]
    assert wanted[1] <= last
    # Empty samples at either end lie in no block, so they may be in or out.
    assert not sum(
        np.asarray(content()[field.name][row]).size
        for row in (*range(first, wanted[0]), *range(wanted[1], last))
    )
    assert str(damage) in str(found)
    assert "\n" not in str(found)
    assert "ndfeed pack --repair" in str(found)


@pytest.fixture(scope="module")
def journal(tmp_path_factory):
    """What a pack that was interrupted had noted, and what it is signed with."""
    folder = tmp_path_factory.mktemp("interrupted")
    ds = making.npz_of_rows(folder / "source", files=20, rows=100)
    path, text = making.interrupted(ds, folder / "packed")
    return text, find_unfinished(os.fsencode(path.parent))[1]


def flips(name, data, bits, sound):
    """Those of ``bits`` that can be turned round in ``data`` with nobody finding it."""
    for bit in bits:
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        if sound(bytes(flipped), bit // 8):
            yield name, bit


def test_a_hundred_thousand_flipped_bits_are_all_found(packed, journal):
    """Across columns, manifest and journal, by the code that verify runs on each of them."""
    folder, manifest = packed
    every = list(columns(folder, manifest))
    text = (folder / "ndfeed.json").read_bytes()
    journal, seal = journal
    noted, end = parse_journal(journal, seal)
    lines = np.cumsum([len(line) for line in journal.splitlines(keepends=True)])
    sizes = np.array([column.nbytes for _, column, *_ in every] + [len(text), len(journal)])
    ends = np.cumsum(8 * sizes)
    bits = np.random.default_rng(0).integers(0, ends[-1], FLIPS)
    which = np.searchsorted(ends, bits, side="right")
    own = [(bits[which == n] - (ends[n] - 8 * sizes[n])).tolist() for n in range(len(sizes))]
    missed = []
    for (path, column, field, *_), mine in zip(every, own, strict=False):
        size = field.row_bytes(column.role)
        chosen = range(column.blocks + 1)
        fd = os.open(path, os.O_RDWR)
        with File(os.fsencode(path)) as file:
            assert find_damaged(file, column, size, chosen) == []
            for bit in mine:
                byte = os.pread(fd, 1, bit // 8)[0]
                os.pwrite(fd, bytes([byte ^ 1 << bit % 8]), bit // 8)
                if len(find_damaged(file, column, size, chosen)) != 1:
                    missed.append((path, bit))
                os.pwrite(fd, bytes([byte]), bit // 8)
        os.close(fd)

    def parsed(data, at):
        try:
            parse(data, b"ndfeed.json")
        except ndfeed.ManifestError:
            return False
        return True

    def relied_on(data, at):
        """Is anything believed but the lines before the one that is damaged?"""
        line = int(np.searchsorted(lines, at, side="right"))
        return parse_journal(data, seal) != (noted[:line], int(lines[line - 1]) if line else 0)

    missed += flips("manifest", text, own[-2], parsed)
    missed += flips("journal", journal, own[-1], relied_on)

    assert missed == []
    assert end == len(journal)
    assert (np.bincount(which, minlength=len(sizes)) > 100).all()
    assert len(own[-1]) > FLIPS // 10
    assert ndfeed.verify(folder).ok


def test_a_damaged_manifest_is_an_error(packed):
    """Without it nothing can be compared."""
    with (
        Flipped(packed[0] / "ndfeed.json", 1000),
        pytest.raises(ndfeed.ManifestError, match=r"ndfeed\.json: expected digest "),
    ):
        ndfeed.verify(packed[0])


def test_several_damages_are_all_named(packed):
    """Neighbouring blocks together, others apart; offsets that are damaged too name all rows."""
    folder, manifest = packed
    paths = {f"{p.parent.name}/{p.name}": (p, c) for p, c, *_ in columns(folder, manifest)}
    image, column = paths["00000/image.npy"]
    row = 8 * 48
    header = 8 * column.header
    text, _ = paths["00001/text.values.npy"]
    offsets, _ = paths["00001/text.offsets.npy"]
    with (
        Flipped(image, header),
        Flipped(image, header + 4 * row),
        Flipped(image, header + 12 * row),
        Flipped(text, 8 * 130),
        Flipped(offsets, 8 * 128),
    ):
        found = ndfeed.verify(folder)

    assert [(d.field, d.rows) for d in found.damaged] == [
        ("image", (0, 8)),
        ("image", (12, 13)),
        ("text", (13, 26)),
        ("text", (13, 17)),
    ]


FAULTS = {
    "missing": (lambda p: p.unlink(), "a column of the dataset is missing"),
    "short": (lambda p: os.truncate(p, 300), "expected 1088 bytes, found 300"),
    "long": (lambda p: p.write_bytes(p.read_bytes() + b"x"), "expected 1088 bytes, found 1089"),
    "linked": (lambda p: (p.rename(p.with_name("x")), p.symlink_to("x")), "a symbolic link"),
    "a folder": (lambda p: (p.unlink(), p.mkdir()), "expected a regular file"),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_files_that_are_not_what_they_were(tmp_path, fault):
    """All rows of their part are in doubt; the rest is verified all the same."""
    packed_making.write(tmp_path, content(), parts=2, rows_per_block=4)
    fault[0](tmp_path / "00001/image.npy")
    with Flipped(tmp_path / "00000/half.npy", 8 * 130):
        found = ndfeed.verify(tmp_path)

    assert [(d.field, d.rows) for d in found.damaged] == [("half", (0, 4)), ("image", (20, 40))]
    assert fault[1] in found.damaged[1].problem


def test_offsets_that_do_not_rise_are_damage(tmp_path):
    """Though every checksum fits: somebody wrote them so."""
    manifest = packed_making.write(
        tmp_path, {"x": [np.arange(n) for n in range(20)]}, rows_per_block=4
    )
    good = np.cumsum([0, *range(20)])
    path = tmp_path / "00000/x.offsets.npy"
    for change, rows in (
        ({0: 1}, (0, 4)),
        ({3: 0}, (0, 4)),
        ({8: 3}, (7, 12)),
        ({20: 191}, (19, 20)),
        ({}, None),
    ):
        numbers = good.copy()
        for at, value in change.items():
            numbers[at] = value
        np.save(path, numbers)
        column = packed_making.column(path, manifest.fields[0], "offsets", numbers, 4)
        part = manifest.parts[0]
        part = dataclasses.replace(part, columns=(part.columns[0], column))
        other = dataclasses.replace(manifest, parts=(part,))
        (tmp_path / "ndfeed.json").write_bytes(other.encoded())
        found = ndfeed.verify(tmp_path)

        assert [d.rows for d in found.damaged] == ([] if rows is None else [rows])
        assert all("do not rise" in d.problem for d in found.damaged)


def test_no_packed_dataset_is_an_error(tmp_path):
    """The commonest mistake: the folder of the sources."""
    np.save(tmp_path / "x.npy", np.arange(3))
    with pytest.raises(ndfeed.MissingError, match=r"no packed dataset.*ndfeed pack makes one"):
        ndfeed.verify(tmp_path)
    with pytest.raises(ndfeed.MissingError, match="nowhere: no such folder"):
        ndfeed.verify(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="threads must be"):
        ndfeed.verify(tmp_path, threads=0)


def test_memory_does_not_grow_with_a_block(tmp_path):
    """A row of any size is read in pieces, and no thread is left behind."""
    before = set(threading.enumerate())
    data = np.zeros((3, 5_000_000), np.uint8)
    data[1, 4_000_000] = 1
    packed_making.write(tmp_path, {"x": data})
    seen = []
    (part,) = parse((tmp_path / "ndfeed.json").read_bytes(), b"").parts
    with File(os.fsencode(tmp_path / "00000/x.npy")) as file:
        look = lambda block, piece: seen.append((block, len(piece)))  # noqa: E731
        assert find_damaged(file, part.columns[0], data.shape[1], range(4), look) == []

    assert max(size for _, size in seen) <= 512 << 10
    assert sum(size for block, size in seen if block == 2) == data.shape[1]
    with Flipped(tmp_path / "00000/x.npy", 8 * 9_000_000):
        assert [d.rows for d in ndfeed.verify(tmp_path).damaged] == [(1, 2)]
    assert set(threading.enumerate()) <= before  # those of other tests may end meanwhile
