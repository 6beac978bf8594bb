"""Tables are computed once for all processes of a machine, and freed with the last of them."""

import json
import os

import numpy as np
import pytest
from children import finish, start

from ndfeed.files import shared_table
from ndfeed.files.cache_files import cache_folder
from ndfeed.files.shared_table import share_table

NAME = "0123456789abcdef" * 2

CHILD = """
import sys
from ndfeed.files.shared_table import share_table

def fill(out):
    print("filled", flush=True)
    out[:] = 7

table = share_table(sys.argv[1], 1000, fill)
print("has", table.data.sum(), flush=True)
sys.stdin.readline()
"""


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch):
    """Also of child processes."""
    monkeypatch.setenv("XDG_CACHE_HOME", os.fspath(tmp_path))
    shared_table._here.clear()


def never(out):
    raise AssertionError("computed again")


def seven(out):
    out[:] = 7


def test_one_process_computes_and_others_attach():
    """Who attached keeps it; it is computed anew when the one that others attach to is gone."""
    first = start(CHILD, NAME)
    assert [first.stdout.readline() for _ in range(2)] == ["filled\n", "has 7000\n"]
    second = start(CHILD, NAME)
    assert second.stdout.readline() == "has 7000\n"
    finish(first)
    mine = share_table(NAME, 1000, seven)
    assert mine.data.sum() == 7000
    finish(second)


def test_many_at_once_compute_it_once():
    """Ranks begin at the same time; each would take as long, and as much memory."""
    children = [start(CHILD, NAME) for _ in range(4)]
    said = [child.stdout.readline() for child in children]
    said += [child.stdout.readline() for child, one in zip(children, said, strict=True)
             if one == "filled\n"]  # fmt: skip
    for child in children:
        finish(child)

    assert sorted(said) == ["filled\n", *["has 7000\n"] * 4]


def test_a_table_is_read_only_and_shared_within_a_process():
    """Two loaders of one program have the same memory."""
    one = share_table(NAME, 1000, seven)
    other = share_table(NAME, 1000, never)

    assert one is other
    assert not one.data.flags.writeable


@pytest.mark.parametrize(
    "note",
    [
        b"",
        b"{}",
        b"[1]",
        b'["/dev/null", 1064, 1, 2]',
        b'["/dev/null", Infinity, 1, 2]',
        b"[" * 4000,
        b"\xff" * 5000,
    ],
    ids=lambda note: str(note[:40]),
)
def test_a_note_that_means_nothing_is_replaced(note):
    """It may be of another machine with the same home folder, or damaged."""
    folder = os.path.join(cache_folder(), b"tables")
    os.makedirs(folder, mode=0o700)
    os.chmod(folder, 0o700)
    path = os.path.join(folder, NAME.encode())
    with open(path, "wb") as file:
        file.write(note)

    table = share_table(NAME, 1000, seven)
    assert table.data.sum() == 7000
    with open(path, "rb") as file:
        assert len(json.load(file)) == 4


def test_memory_of_another_table_is_not_taken():
    """A note may be older than the machine's last start, when numbers begin anew."""
    other = share_table(NAME[::-1], 1000, lambda out: out.fill(1))
    folder = os.path.join(cache_folder(), b"tables")
    os.replace(os.path.join(folder, NAME[::-1].encode()), os.path.join(folder, NAME.encode()))
    table = share_table(NAME, 1000, seven)

    assert (table.data.sum(), other.data.sum()) == (7000, 1000)


def test_without_a_place_for_notes_each_has_its_own(tmp_path, monkeypatch):
    """A read-only home folder is no reason to fail."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", os.fspath(tmp_path / "file"))

    assert share_table(NAME, 1000, seven).data.sum() == 7000


def test_tables_start_aligned():
    """They are viewed as 64-bit numbers."""
    table = share_table(NAME, 1000, seven)

    assert table.data.ctypes.data % 64 == 0
    assert table.data[:1000].view(np.uint64)[0] == int.from_bytes(b"\7" * 8, "little")
