"""What maps make is the same in ``ds[rows]``, ``ds.read`` and in the batches of a loader."""

import itertools

import numpy as np
import pytest
from loading.making import assert_same, ragged

import ndfeed

LENGTHS = [3, 3, 3, 0, 1, 7, 2, 2, 5, 4, 4, 4]

# How samples of different lengths, or samples of one, become others.
MAPS = {
    "left as they are": lambda ds: ds.map(dict, batched=False),
    "cropped to one length": lambda ds: ds.map(
        lambda s: {"x": np.resize(s["x"], (2, 3)), "n": s["n"]}, batched=False
    ),
    "cropped to some length": lambda ds: ds.map(
        lambda s: {"x": s["x"][:3], "n": s["n"]}, batched=False
    ),
    "a batch, cropped": lambda ds: ds.map(lambda b: {"x": [x[:3] for x in b["x"]]}),
    "a length from the values": lambda ds: ds.map(
        lambda s: {"made": np.arange(s["n"] % 3 + 1)}, batched=False
    ),
    "padded": lambda ds: ds.map(
        lambda s: {"x": np.pad(s["x"], ((0, 7 - len(s["x"])), (0, 0)))}, batched=False
    ),
    "text": lambda ds: ds.map(lambda s: {"name": "ab" * int(s["n"] + 1)}, batched=False),
    "nested in names": lambda ds: ds.map(
        lambda s: {"in/x": s["x"], "in/n": s["n"] * 2}, batched=False
    ),
    "several": lambda ds: ds.map(dict, batched=False).map(dict).rename({"x": "y"}),
    "numbers": lambda ds: ds.map(lambda s: {"sum": float(s["x"].sum())}, batched=False),
}


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("processes", [0, 1])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 12])
def test_rows_are_what_a_loader_gives(tmp_path, name, processes, size):
    """The same samples in the same form, whatever shapes those of one batch happen to have."""
    ds = MAPS[name](ragged(tmp_path, LENGTHS, lambda n: (n, 3)))
    with ndfeed.loader(ds, size, processes=processes) as loader:
        batches = list(loader)
    for at, batch in zip(itertools.count(0, size), batches, strict=False):
        rows = np.arange(at, min(at + size, len(ds)))
        assert_same(ds[at : at + size], batch)
        assert_same(ds[rows.tolist()], batch)
        assert_same(ds.read(rows), batch)
        for i, row in enumerate(rows.tolist()):
            one = ds[row]
            assert list(one) == list(batch)
            for field in one:
                np.testing.assert_array_equal(one[field], batch[field][i], strict=False)


@pytest.mark.parametrize("form", ["list", "pad", "packed"])
def test_crops_that_differ_have_one_form_in_all_batches(tmp_path, form):
    """Also those of samples that are stored in one shape, and in batches of one sample, which
    have one shape by chance."""
    np.savez(tmp_path / "a.npz", x=np.ones((25, 9)), n=np.arange(25))

    def crop(sample, rng):
        return {"x": sample["x"][: rng.integers(1, 9)]}

    ds = ndfeed.open(tmp_path / "a.npz").map(crop, batched=False)
    with ndfeed.loader(ds, 2, ragged=form) as loader:
        batches = list(loader)

    assert len({tuple(batch) for batch in batches}) == 1
    assert len({type(batch["x"]) for batch in batches}) == 1
    assert type(ds[0:1]["x"]) is list
    assert ds.fields["x"].shape == (None,)


@pytest.mark.parametrize("batched", [True, False])
def test_dicts_in_what_a_map_returns_are_answered_with_what_to_write(tmp_path, batched):
    """An array of dicts was the result of one kind of map, and a riddle that of the other."""
    np.savez(tmp_path / "a.npz", x=np.ones((4, 2)), y=np.arange(4))
    ds = ndfeed.open(tmp_path / "a.npz")
    nested = ds.map(lambda b: {"in": {"a": b["x"]}, "y": b["y"]}, batched=batched)
    expected = r"got a dict in it for 'in'; return 'in/a' instead, .* fields=\{'in': \{'a': 'in/a'"
    with pytest.raises(TypeError, match=expected):
        nested[0]
    with ndfeed.loader(nested, 2) as loader, pytest.raises(TypeError, match=expected):
        next(iter(loader))
    listed = ds.map(lambda b: {"in": [{"a": x} for x in b["x"]]})
    with pytest.raises(TypeError, match=expected):
        listed[0:2]

    flat = ds.map(lambda b: {"in/a": b["x"], "y": b["y"]}, batched=batched)
    with ndfeed.loader(flat, 2, fields={"in": {"a": "in/a"}}) as loader:
        assert next(iter(loader))["in"]["a"].shape == (2, 2)


def test_samples_of_several_ranks_behind_a_map(tmp_path):
    """One sample was tried, and says nothing of the others."""
    np.save(tmp_path / "x.npy", np.arange(24).reshape(8, 3))
    ds = ndfeed.open(tmp_path / "x.npy")
    both = ds.windows(2) + ds

    assert both.fields["data"].shape is None
    assert both.map(dict).fields["data"].shape is None
    stacked = both.map(lambda batch: {"data": np.array([x.sum() for x in batch["data"]])})
    assert stacked.fields["data"].shape == ()
