"""``ndfeed.dataset.overlapping``: where the bytes of samples lie that are not contiguous."""

from pathlib import Path

import numpy as np
import pytest
from dataset.test_crops import open_cases, write
from hypothesis import given
from hypothesis import strategies as st

import ndfeed
from ndfeed.dataset.overlapping import find_stretches, stretch_bytes


def check_stretches(ds, name):
    """The bytes of all stretches of a sample, end to end, are the sample."""
    rows = np.arange(len(ds))
    group = next(g for g in ds.groups if any(c.field.name == name for c in g.columns))
    column = next(c for c in group.columns if c.field.name == name)
    place = group.locate(rows if ds.rows is None else np.asarray(ds.rows))
    start, size = find_stretches(column, place)
    assert start.shape[1] * size == column.size
    assert not size % stretch_bytes(column)
    paths = [Path(column.table.path(i).decode()) for i in column.file[place.part].tolist()]
    expected = ds.read(rows)[name]
    for path, own, sample in zip(paths, start.tolist(), expected, strict=True):
        data = path.read_bytes()
        assert b"".join(data[at : at + size] for at in own) == sample.tobytes()
    return size


@pytest.mark.filterwarnings("ignore:.*Fortran order")
@given(
    coding=st.sampled_from(["npy", "fortran", "stored"]),
    dtype=st.sampled_from(["<u2", "<f4", "u1"]),
    size=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    data=st.data(),
)
def test_stretches_of_crops(tmp_path_factory, coding, dtype, size, data):
    shapes = data.draw(
        st.lists(st.tuples(*(st.integers(n, n + 6) for n in size)), min_size=1, max_size=3)
    )
    folder, rng = tmp_path_factory.mktemp("c"), np.random.default_rng(0)
    write(folder, coding, [rng.integers(0, 99, shape).astype(dtype) for shape in shapes])
    ds = open_cases(folder, coding)
    sizes = {name: size for name in ("image", "mask") if name in ds.fields}
    crops = ds.crops(sizes, grid=0)
    for name in ds.names:
        check_stretches(crops, name)


def test_stretches_are_as_long_as_they_can_be(tmp_path):
    """Axes that are taken whole belong to one."""
    np.save(tmp_path / "x.npy", np.arange(7 * 6 * 5 * 4, dtype="<i4").reshape(7, 6, 5, 4))
    ds = ndfeed.open(tmp_path / "x.npy", sample="row")
    assert check_stretches(ds.crops({"data": (2, 3)}, grid=0), "data") == 3 * 4 * 4
    assert check_stretches(ds.crops({"data": (2, 5)}, grid=0), "data") == 2 * 5 * 4 * 4


def test_stretches_of_windows_that_go_back(tmp_path):
    """One for each element, from the last to the first."""
    np.save(tmp_path / "x.npy", np.arange(40))
    windows = ndfeed.open(tmp_path / "x.npy").windows(offsets=range(0, -6, -1))
    assert check_stretches(windows, "data") == 8


@pytest.mark.parametrize("view", ["windows", "crops"])
@pytest.mark.parametrize("coding", ["npy", "deflated"])
def test_a_run_goes_on_with_other_ranks(tmp_path, coding, view):
    """After four steps on two ranks, one goes on with what is left, read by processes."""
    rng = np.random.default_rng(0)
    write(tmp_path, coding, [rng.integers(0, 999, (n, 6)) for n in (14, 17, 12)])
    name = "data" if coding == "npy" else "image"
    rows = ndfeed.open(tmp_path, fields=name, sample="row", cache=False)
    ds = rows.windows(3) if view == "windows" else rows.crops({name: (4,)})
    whole = [batch[name] for batch in ndfeed.loader(ds, 6, shuffle=True, seed=2)]
    ranks = [ndfeed.loader(ds, 3, shuffle=True, seed=2, shard=(rank, 2)) for rank in range(2)]
    passes = [iter(rank) for rank in ranks]
    found = [np.concatenate([next(one)[name] for one in passes]) for _ in range(4)]
    rest = ndfeed.loader(ds, 6, shuffle=True, seed=2, processes=2)
    rest.load_state_dict(ranks[0].state_dict())
    with rest:
        found += [batch[name] for batch in rest]

    assert len(whole) > 6
    assert [one.tolist() for one in found] == [one.tolist() for one in whole]
