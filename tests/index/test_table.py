"""The table is a list of files and arrays, whatever it was put together from."""

from itertools import pairwise

import numpy as np
import pytest
from children import run
from hypothesis import given
from hypothesis import strategies as st
from index.lists import names, one, read_back, same, several, status, written_down

from ndfeed.files.listing import Paths
from ndfeed.formats.description import Array, Description
from ndfeed.index.table import NOTES_KEPT, concat, match_paths, places, subset


@given(several)
def test_tables_join_as_lists_do(files):
    """Nothing is lost, moved or renamed, however names and shapes are numbered."""
    table = concat([one(file) for file in files])
    notes = [(i, note) for i, (_, _, found) in enumerate(files) for note in found.notes]

    assert read_back(table) == [written_down(file) for file in files]
    assert table.notes == tuple(notes)
    assert table.remarked == len(notes)


@given(several, several, st.data())
def test_any_files_in_any_order_are_chosen_as_from_lists(first, second, data):
    """From several tables at once, numbered through, also twice the same."""
    tables = [concat([one(file) for file in some]) for some in (first, second)]
    both = [*first, *second]
    chosen = data.draw(st.lists(st.integers(0, len(both) - 1), max_size=12))
    table = subset(tables, np.array(chosen, np.int64))

    assert read_back(table) == [written_down(both[i]) for i in chosen]
    if chosen:
        assert same(table, concat([one(both[i]) for i in chosen]))


@given(several, st.integers(0, 6), st.integers(0, 6))
def test_the_way_a_table_came_about_does_not_show(files, a, b):
    """Else the same data had another fingerprint after a file was added and removed."""
    tables = [one(file) for file in files]
    cuts = sorted({0, min(a, len(files)), min(b, len(files)), len(files)})
    parts = [concat(tables[i:j]) for i, j in pairwise(cuts)]

    assert same(concat(parts), concat(tables))


@given(several, st.lists(names.map(lambda name: b"/data/" + name), max_size=8))
def test_paths_are_found_in_a_table(files, wanted):
    """The first of that name, or none."""
    own = [path for path, _, _ in files]
    found = places(concat([one(file) for file in files]), Paths(wanted))

    assert found.tolist() == [own.index(path) if path in own else -1 for path in wanted]


@given(several, st.data())
def test_paths_in_about_the_same_order_are_matched(files, data):
    """All that were there before and after what is new or gone, and no file by another name."""
    table = concat([one(file) for file in files])
    own = [path for path, _, _ in files]
    start, end = sorted(data.draw(st.tuples(*[st.integers(0, len(own))] * 2)))
    new = data.draw(st.lists(names.map(lambda name: table.base + name), max_size=4))
    wanted = [*own[:start], *new, *own[end:]]
    found = match_paths(table, Paths(wanted, table.base)).tolist()

    assert all(at == -1 or own[at] == path for path, at in zip(wanted, found, strict=True))
    if not set(new) & set(own):
        assert found.count(-1) == len(new)


def test_no_path_is_found_in_no_table():
    """As when everything changed."""
    table = subset([one((b"/x", status(), Description("npy", ())))], np.zeros(0, np.int64))

    assert table.files == 0
    assert places(table, Paths([b"/x"])).tolist() == [-1]


def test_more_files_than_are_handled_at_once():
    """Nothing is lost where one part ends and the next begins."""
    file = (b"/data/x", status(), Description("npy", (Array("", "<f4", (2,), 0, 8),)))
    many = subset([one(file)], np.zeros(40_000, np.int64))

    assert many.files == 40_000
    assert set(many.paths_of(np.arange(40_000))) == {b"/data/x"}
    assert (many.file == np.arange(40_000)).all()


def test_only_the_first_remarks_are_kept():
    """A million files may each deserve one; all of them would be no table."""
    file = (b"/data/x", status(), Description("npy", (), ("note",) * 3))
    table = concat([one(file)] * 60)

    assert len(table.notes) == NOTES_KEPT
    assert table.remarked == 180
    assert subset([table], np.arange(59)).remarked == 180
    assert subset([table], np.arange(1, 60)).remarked == 177


def test_as_many_types_as_there_are():
    """A number too small for them would wrap round to another type, of another size."""
    table = concat([one((b"/d", status(), Description("npy", tuple(
        Array("", f"|S{size}", (), 0, size) for size in range(start, start + 10_000)
    )))) for start in range(0, 40_000, 10_000)])  # fmt: skip

    assert [table.dtypes[i] for i in table.dtype[[0, 32_767, 32_768, 39_999]]] == [
        "|S0", "|S32767", "|S32768", "|S39999",
    ]  # fmt: skip


def test_a_file_costs_few_bytes(tmp_path):
    """A million files must fit in 300 MB while they are opened, and in half of that then.

    The same file many times goes the same way as so many files.
    """
    np.save(tmp_path / "sample_0123456.npy", np.zeros(8, "<f4"))
    code = """
    from ndfeed.index.open import open_table
    def used():
        return {line.split()[0]: int(line.split()[1]) for line in open("/proc/self/status")
                if line.startswith("Vm")}["VmHWM:"]
    source = [args[0]] * 300_000
    open_table(source[:2000], cached=True)
    before = used()
    table = open_table(source, cached=True).table
    print(table.nbytes // table.files, (used() - before) * 1024 // table.files)
    """
    held, peak = map(int, run(code, tmp_path / "sample_0123456.npy").split())

    assert held <= 160
    assert peak <= 300


@pytest.mark.parametrize("base", [b"/data/", b"/"])
def test_the_base_is_as_long_as_can_be(base):
    """What every path begins with is kept once."""
    found = [(base + name, status(), Description("npy", ())) for name in (b"a/x", b"a/b/y")]
    table = concat([one(file) for file in found])

    assert table.base == base + b"a/"
    assert subset([table], np.array([1])).base == base + b"a/b/"
