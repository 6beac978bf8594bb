"""Lists saved with torch.save: similar items are rows, different ones are fields."""

import pickle

import numpy as np
import pytest

import ndfeed
from ndfeed.errors import AmbiguousError, FieldError

torch = pytest.importorskip("torch")


def images(count, *shape):
    return [torch.full(shape, float(i)) for i in range(count)]


def test_a_list_of_tensors_is_rows(tmp_path):
    """20 images were read as 3 samples with 20 fields: each a colour of all images."""
    torch.save(images(20, 3, 4, 5), tmp_path / "x.pt")
    ds = ndfeed.open(tmp_path / "x.pt")

    assert len(ds) == 20
    assert ds.fields["data"].shape == (3, 4, 5)
    assert ds[[7, 0, 19]]["data"][:, 2, 3, 4].tolist() == [7, 0, 19]
    assert "a sample is an item of a list (items of the same kind, read as rows)" in repr(ds)


@pytest.mark.parametrize("mapped", [True, False])
def test_a_list_of_dicts_is_rows_with_their_keys_as_fields(tmp_path, mapped):
    """One sample with 40 fields trains on nothing."""
    rows = [{"x": x, "y": i} for i, x in enumerate(images(20, 6))]
    torch.save(rows, tmp_path / "x.pt")
    ds = ndfeed.open(tmp_path / "x.pt", mapped=mapped)
    batch = ds[[3, 11, 3]]

    assert list(ds.fields) == ["x", "y"]
    assert batch["y"].tolist() == [3, 11, 3]
    assert batch["x"].tolist() == [[3.0] * 6, [11.0] * 6, [3.0] * 6]


def test_a_list_of_pairs_is_rows_of_two_fields(tmp_path):
    """``list(dataset)`` is the quickest way to save a dataset of torch's."""
    torch.save([(x, i) for i, x in enumerate(images(9, 2))], tmp_path / "x.pt")
    ds = ndfeed.open(tmp_path / "x.pt", fields=("1", "0"))

    assert [sample["1"].item() for sample in ds] == list(range(9))
    assert ds[5]["0"].tolist() == [5.0, 5.0]


def test_items_of_several_shapes_are_ragged_rows(tmp_path):
    """Sentences differ in length and are samples all the same."""
    torch.save([torch.arange(n) for n in (4, 1, 3)], tmp_path / "x.pt")
    ds = ndfeed.open(tmp_path / "x.pt")

    assert ds.fields["data"].shape == (None,)
    assert [v.tolist() for v in ds[[2, 1]]["data"]] == [[0, 1, 2], [0]]


@pytest.mark.parametrize(
    "value",
    [
        [torch.zeros(30, 2), torch.arange(30)],
        [torch.zeros(30, 2), torch.zeros(30)],
        (torch.zeros(30, 2), torch.zeros(30, 2)),
        {"0": torch.zeros(30, 2), "1": torch.zeros(30, 2)},
    ],
    ids=["types", "dimensions", "tuple", "dict"],
)
def test_unlike_things_and_other_containers_are_fields(tmp_path, value):
    """Inputs and targets saved together are two fields of 30 samples."""
    torch.save(value, tmp_path / "x.pt")
    ds = ndfeed.open(tmp_path / "x.pt")

    assert len(ds) == 30
    assert list(ds.fields) == ["0", "1"]


def test_positions_are_still_to_be_had(tmp_path):
    """Whoever keeps several arrays in a list can still name them, or read the file whole."""
    torch.save(images(3, 5, 2), tmp_path / "x.pt")

    assert len(ndfeed.open(tmp_path / "x.pt", fields=("0", "2"))) == 5
    assert list(ndfeed.open(tmp_path / "x.pt", sample="file").fields) == ["0", "1", "2"]
    with pytest.raises(FieldError, match="'7'"):
        ndfeed.open(tmp_path / "x.pt", fields=("7",))


def test_lists_of_several_lengths_are_the_rows_of_all_files(tmp_path):
    """The last file of many is mostly shorter; one with a single item too is a row of it."""
    for i, count in enumerate((4, 4, 1)):
        torch.save([{"x": x + 10 * i} for x in images(count, 2)], tmp_path / f"{i}.pt")
    ds = ndfeed.open(tmp_path)

    assert ds[:]["x"][:, 0].tolist() == [0, 1, 2, 3, 10, 11, 12, 13, 20]


def test_lists_of_one_length_in_several_files_could_be_two_things(tmp_path):
    """A pair of views in every file is one sample, or two."""
    for i in range(3):
        torch.save(images(2, 5), tmp_path / f"{i}.pt")

    with pytest.raises(AmbiguousError, match=r"3 samples, .*: 0 .*6 samples, each an item of a"):
        ndfeed.open(tmp_path)
    assert len(ndfeed.open(tmp_path, sample="row")) == 6
    assert list(ndfeed.open(tmp_path, sample="file")[1]) == ["0", "1"]


def test_a_list_and_an_array_of_rows_are_rows_of_one_dataset(tmp_path):
    """However the rows were saved."""
    torch.save(images(4, 2), tmp_path / "a.pt")
    np.save(tmp_path / "b.npy", np.full((3, 2), 9, "f4"))
    ds = ndfeed.open([tmp_path / "a.pt", tmp_path / "b.npy"])

    assert ds.fields["data"].shape == (2,)
    assert ds[:]["data"][:, 1].tolist() == [0, 1, 2, 3, 9, 9, 9]


def test_lists_go_through_loaders_pickles_memory_and_packing(tmp_path):
    """A dataset is a dataset, wherever its rows lie."""
    torch.save([{"x": x, "y": i} for i, x in enumerate(images(20, 3))], tmp_path / "x.pt")
    ds = ndfeed.open(tmp_path / "x.pt")
    again = pickle.loads(pickle.dumps(ds))
    ndfeed.pack(ds, tmp_path / "packed")

    assert again.fingerprint == ds.fingerprint
    for other in (ds, again, ds.in_memory(), ndfeed.open(tmp_path / "packed")):
        seen = list(ndfeed.loader(other, batch_size=6, shuffle=True))
        assert sorted(np.concatenate([b["y"] for b in seen]).tolist()) == list(range(20))
        assert all((b["x"][:, 0] == b["y"]).all() for b in seen)
