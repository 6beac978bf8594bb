"""A dict of datasets and views: each keeps its rows and its maps."""

import pickle

import numpy as np
import pytest
from dataset.layouts import COUNT, LAYOUTS, open_layout, samples
from hypothesis import given
from hypothesis import strategies as st

import ndfeed

pytestmark = pytest.mark.filterwarnings("ignore:.*Fortran order")


@pytest.fixture(params=LAYOUTS)
def stored(tmp_path, request):
    """The same samples in every layout."""
    return open_layout(tmp_path / "x", request.param)


def double(batch):
    (values,) = batch.values()
    return {"twice": np.asarray(values) * 2}


def test_views_of_every_layout_stand_side_by_side(stored):
    """Values, order, views of views, memory, packs and loaders."""
    data = samples()
    rows, others = [5, 0, 5, 23, 11, 2], [7, 8, 9, 10, 11, 12]
    ds = ndfeed.open(
        {
            "a": stored.take(rows),
            "b": stored.take(others).map(double),
            "c": np.arange(6),
            "d": stored.take(range(20, 8, -2)),
        }
    )
    expected = {"a": data[rows], "b": data[others] * 2, "c": np.arange(6), "d": data[20:8:-2]}

    def check(batch, at):
        assert list(batch) == list(expected)
        for name, values in expected.items():
            np.testing.assert_array_equal(np.asarray(batch[name]), values[at])

    check(ds[:], np.arange(6))
    check(ds.take([4, 1])[:], [4, 1])
    check(ds.take([4, 1, 1]).in_memory()[:], [4, 1, 1])
    check(pickle.loads(pickle.dumps(ds))[:], np.arange(6))
    check((ds + ds.take([3]))[:], [*range(6), 3])
    assert pickle.loads(pickle.dumps(ds)).fingerprint == ds.fingerprint
    for options in ({"shuffle": True}, {"threads": 1}, {"shuffle": ndfeed.Windows(files=2)}):
        with ndfeed.loader(ds, 4, **options) as loader:
            seen = []
            for batch in loader:
                check(batch, batch["c"])
                seen += batch["c"].tolist()
        assert sorted(seen) == list(range(6))


def test_views_are_packed(stored, tmp_path):
    """Rows in any order, of compressed files too."""
    rows = [5, 0, 5, 23, 11, 2]
    ds = ndfeed.open({"a": stored.take(rows), "b": stored.take(sorted(rows))})
    ndfeed.pack(ds, tmp_path / "p")
    packed = ndfeed.open(tmp_path / "p", verify=True)

    np.testing.assert_array_equal(np.asarray(packed[:]["a"]), samples()[rows])
    np.testing.assert_array_equal(np.asarray(packed[:]["b"]), samples()[sorted(rows)])
    np.testing.assert_array_equal(np.asarray(packed[:]["a"]), np.asarray(ds[:]["a"]))


@given(data=st.data())
def test_any_selections_of_selections(tmp_path_factory, data):
    """As NumPy would index."""
    folder = tmp_path_factory.mktemp("any")
    counts = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=4).filter(any))
    whole = np.arange(2 * sum(counts)).reshape(-1, 2)
    for i, part in enumerate(np.split(whole, np.cumsum(counts)[:-1])):
        np.save(folder / f"{i}.npy", part)
    ds = ndfeed.open(folder, sample="row")
    numbers = st.lists(st.integers(0, len(whole) - 1), min_size=3, max_size=3)
    first, second, outer = (data.draw(numbers) for _ in range(3))
    one = ndfeed.open({"a": ds.take(first), "b": ds.take(second)})
    two = ndfeed.open({"x": one.take([2, 0]), "y": (ds + ds).take([len(whole), 0])})

    np.testing.assert_array_equal(one[:]["b"], whole[second])
    np.testing.assert_array_equal(two[:]["x/a"], whole[first][[2, 0]])
    np.testing.assert_array_equal(two[:]["x/b"], whole[second][[2, 0]])
    np.testing.assert_array_equal(two[:]["y"], whole[[0, 0]])
    chosen = [n % len(one) for n in outer]
    np.testing.assert_array_equal(one.take(chosen)[:]["a"], whole[first][chosen])
    np.testing.assert_array_equal((one + one.take(chosen))[:]["b"][3:], whole[second][chosen])


def test_maps_see_the_names_that_they_were_written_for(tmp_path):
    """And nothing of the other sources."""
    np.savez(tmp_path / "a.npz", x=np.arange(4), y=np.arange(4) * 10)
    ds = ndfeed.open(tmp_path / "a.npz")
    seen = []

    def both(batch):
        seen.append(sorted(batch))
        return {"sum": batch["x"] + batch["y"], "x": batch["x"]}

    made = ndfeed.open({"p": ds.map(both), "q": ds.select("x").map(lambda b: {"z": -b["x"]})})

    assert made[:]["p/sum"].tolist() == [0, 11, 22, 33]
    assert made[:]["q"].tolist() == [0, -1, -2, -3]
    assert list(made.fields) == ["p/sum", "p/x", "q"]
    assert {tuple(names) for names in seen} == {("x", "y")}
    later = made.map(lambda batch: {"t": batch["q"] + batch["p/x"]})
    assert later[:]["t"].tolist() == [0, 0, 0, 0]


def test_sums_of_several_shapes_are_known_in_a_dict(tmp_path):
    """One sample of each side is tried, as for the sum alone: a loader needs to know."""
    np.save(tmp_path / "x.npy", np.arange(24).reshape(8, 3))
    ds = ndfeed.open(tmp_path / "x.npy")
    both = ds.map(lambda batch: {"x": batch["data"]}) + ds.map(lambda b: {"x": b["data"][:, :2]})
    made = ndfeed.open({"p": both, "q": np.arange(16), "r": both})

    assert made.fields["p"].shape == made.fields["r"].shape == (None,)
    (batch,) = ndfeed.loader(made, 16, ragged="packed", fields=("p", "p_offsets"))
    assert batch[1].tolist() == [*range(0, 25, 3), *range(26, 41, 2)]


def jitter(batch, rng):
    return {"noise": rng.random(len(batch["x"]))}


def test_random_maps_of_two_sources_differ(tmp_path):
    """And are the same in every run, with threads and processes."""
    np.savez(tmp_path / "a.npz", x=np.arange(8))
    ds = ndfeed.open(tmp_path / "a.npz")
    made = ndfeed.open({"p": ds.map(jitter), "q": ds.map(jitter)})
    found = []
    for options in ({"threads": 1}, {"threads": 2}, {"processes": 2}):
        with ndfeed.loader(made, 4, seed=1, **options) as loader:
            found.append(list(loader))

    assert not np.array_equal(found[0][0]["p"], found[0][0]["q"])
    for other in found[1:]:
        for one, two in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(one["p"], two["p"])
            np.testing.assert_array_equal(one["q"], two["q"])


def test_other_rows_are_other_data(stored):
    """A run must not resume on them."""
    a, b = stored.take([0, 1, 2]), stored.take([2, 1, 0])
    prints = {
        ndfeed.open({"a": a, "b": b}).fingerprint,
        ndfeed.open({"a": b, "b": a}).fingerprint,
        ndfeed.open({"a": a, "b": a}).fingerprint,
        ndfeed.open({"a": stored, "b": stored}).fingerprint,
    }

    assert len(prints) == 4


def test_swapped_sources_are_other_data(tmp_path):
    """Also where one of them is more than its files."""
    np.save(tmp_path / "x.npy", np.arange(9))
    ds = ndfeed.open(tmp_path / "x.npy")
    a, b = ds.windows(3), ds.take(range(7))
    swapped = [ndfeed.open(one).fingerprint for one in ({"a": a, "b": b}, {"a": b, "b": a})]

    assert swapped[0] != swapped[1]


@pytest.mark.parametrize("nested", [False, True])
def test_memory_beside_files_is_known_in_other_processes(tmp_path, nested):
    """It has another name in each: a run could not be resumed, and ranks seemed to disagree."""
    np.save(tmp_path / "x.npy", np.arange(9))
    values, ends = tmp_path / "x.npy", [0, 4, 9]
    sums = [
        lambda: ndfeed.open(values) + ndfeed.open(np.arange(9)),
        lambda: ndfeed.open(values, offsets=ends) + ndfeed.open(values, offsets=ends),
        lambda: (
            ndfeed.open({"a": values, "b": np.arange(9)}) + ndfeed.open({"a": values, "b": values})
        ),
    ]
    for make in sums:
        one, other = make(), make()
        if nested:
            one, other = (ndfeed.open({"a": ds, "b": np.zeros(len(ds))}) for ds in (one, other))
        assert one.fingerprint == other.fingerprint == pickle.loads(pickle.dumps(one)).fingerprint
        assert one.fingerprint != make().take(range(len(one) - 1)).fingerprint


def test_fields_of_views_keep_their_order(tmp_path):
    """As select() gave it, whatever the order in files."""
    np.savez(tmp_path / "x.npz", a=np.zeros(3), b=np.zeros(3), c=np.zeros(3))
    view = ndfeed.open(tmp_path / "x.npz").select("c", "a")

    assert list(ndfeed.open({"p": view, "q": np.zeros(3)}).fields) == ["p/c", "p/a", "q"]


def test_where_samples_of_views_lie(tmp_path):
    """``files`` and ``locate`` follow the rows."""
    for i in range(3):
        np.save(tmp_path / f"{i}.npy", np.arange(4) + 10 * i)
    ds = ndfeed.open(tmp_path, sample="row")
    made = ndfeed.open({"a": ds.take([9, 1, 2]), "b": np.arange(3)})

    assert [path[-5] for path in made.files] == ["2", "0"]
    assert [a.tolist() for a in made.locate([0, 1, 2])] == [[0, 1, 1], [1, 1, 2]]
    assert made.nbytes == 3 * 16
    whole = ndfeed.open({"a": ndfeed.open(tmp_path, sample="file").take([2, 0])})
    assert [path[-5] for path in whole.files] == ["2", "0"]
    np.testing.assert_array_equal(whole[:]["a"][:, 0], [20, 0])


def test_ragged_views(tmp_path):
    """Their sizes are those of the rows they have."""
    for i in range(4):
        np.save(tmp_path / f"{i}.npy", np.arange(i + 1))
    ds = ndfeed.open(tmp_path, sample="file")
    made = ndfeed.open({"a": ds.take([3, 0]), "b": np.arange(2)})

    assert [len(one) for one in made[:]["a"]] == [4, 1]
    assert made.nbytes == 5 * 8 + 2 * 8
    with ndfeed.loader(made, 2, ragged="pad") as loader:
        (batch,) = loader
    assert batch["a"].tolist() == [[0, 1, 2, 3], [0, 0, 0, 0]]


def test_numbered_files_are_refused(tmp_path):
    """The numbers would be those of other files."""
    np.save(tmp_path / "a.npy", np.arange(3))
    ds = ndfeed.open(tmp_path / "a.npy").with_origin()

    with pytest.raises(ValueError, match="not possible after with_origin"):
        ndfeed.open({"a": ds})


def test_torch_and_processes(tmp_path):
    """Rows travel with their group."""
    torch = pytest.importorskip("torch")
    for i in range(6):
        np.savez_compressed(tmp_path / f"{i}.npz", data=samples()[4 * i : 4 * i + 4])
    ds = ndfeed.open(tmp_path, sample="row")
    rows = np.random.default_rng(0).permutation(COUNT)
    made = ndfeed.open({"a": ds.take(rows), "n": torch.from_numpy(rows)})
    for options in ({"processes": 2}, {}):
        with ndfeed.torch.loader(made, 5, shuffle=True, **options) as loader:
            for batch in loader:
                np.testing.assert_array_equal(batch["a"], samples()[batch["n"]])


def test_views_of_converted_fields(tmp_path):
    """Their rows were selected twice: first among all, then among those of one dtype."""
    np.save(tmp_path / "a.npy", np.arange(10, dtype=np.int16))
    np.save(tmp_path / "b.npy", np.arange(10, 20, dtype=np.int32))
    ds = ndfeed.open(tmp_path, sample="row", dtype={"data": "float64"})
    for rows in ([2, 0, 1], [17, 3, 12, 3]):
        beside = ndfeed.open({"x": ds.take(rows), "n": np.arange(len(rows))})
        assert beside[:]["x"].tolist() == rows
        assert beside[:]["x"].dtype == np.float64
        assert [x for batch in ndfeed.loader(beside, 2) for x in batch["x"]] == rows
