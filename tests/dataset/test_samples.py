"""What a sample is: the rule, its refusals, and the names of fields."""

import numpy as np
import pytest

import ndfeed


def save(folder, **files):
    """Save arrays under the names ``a__b`` for ``a/b``; a dict makes an .npz."""
    folder.mkdir(exist_ok=True)
    for name, value in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(exist_ok=True)
        if isinstance(value, dict):
            np.savez(path.with_suffix(".npz"), **value)
        else:
            np.save(path.with_suffix(".npy"), value)
    return folder


def test_one_file_alone_is_rows(tmp_path):
    """The commonest case: one large array."""
    ds = ndfeed.open(save(tmp_path, x=np.zeros((7, 2))))

    assert len(ds) == 7
    assert ds.fields["data"].shape == (2,)
    assert "one file alone" in repr(ds)


def test_an_array_without_axes_makes_files(tmp_path):
    """An image and its label as a number can only be one sample."""
    for i in range(3):
        save(tmp_path, **{f"s{i}": {"image": np.zeros((4, 4)), "label": np.int64(i)}})
    ds = ndfeed.open(tmp_path)

    assert len(ds) == 3
    assert ds.fields["image"].shape == (4, 4)
    assert ds[2]["label"] == 2
    assert "'label' is a scalar (0-dimensional)" in repr(ds)


def test_lengths_that_differ_within_a_file_make_files(tmp_path):
    """Boxes of a picture are not rows of the same thing."""
    for i in range(3):
        save(tmp_path, **{f"s{i}": {"image": np.zeros((4, 4)), "boxes": np.zeros((i + 1, 4))}})
    ds = ndfeed.open(tmp_path)

    assert len(ds) == 3
    assert ds.fields["boxes"].shape == (None, 4)
    assert [len(b) for b in ds[[2, 0]]["boxes"]] == [3, 1]


def test_what_could_be_read_two_ways_is_refused_with_both(tmp_path):
    """1,000 images a file, or one image and its mask: a wrong guess trains on nonsense."""
    for i in range(3):
        save(
            tmp_path, **{f"s{i}": {"image": np.zeros((4, 5), "f4"), "mask": np.zeros((4, 6), "u1")}}
        )

    with pytest.raises(ndfeed.AmbiguousError) as caught:
        ndfeed.open(tmp_path)

    text = str(caught.value)
    assert text.startswith(str(tmp_path))
    assert "\n" not in text
    for part in ('sample="file" gives 3 samples', "image float32 (4, 5)", "mask uint8 (4, 6)"):
        assert part in text
    for part in ('sample="row" gives 12 samples', "image float32 (5,)", "mask uint8 (6,)"):
        assert part in text
    assert len(ndfeed.open(tmp_path, sample="row")) == 12
    assert len(ndfeed.open(tmp_path, sample="file")) == 3


def test_rows_of_files_of_several_lengths_follow_each_other(tmp_path):
    """The last shard is always shorter."""
    parts = [np.arange(n * 2).reshape(n, 2) for n in (3, 0, 5, 1)]
    save(tmp_path, **{f"p{i}": part for i, part in enumerate(parts)})
    ds = ndfeed.open(tmp_path, sample="row")

    assert len(ds) == 9
    np.testing.assert_array_equal(ds[:]["data"], np.concatenate(parts))


def test_rows_that_differ_in_shape_between_files_are_ragged(tmp_path):
    """Two resolutions in one folder are no error, and never padded silently."""
    save(tmp_path, a=np.zeros((2, 3)), b=np.ones((2, 4)))
    ds = ndfeed.open(tmp_path, sample="row")

    assert ds.fields["data"].shape == (None,)
    assert [len(x) for x in ds[[0, 3, 1]]["data"]] == [3, 4, 3]


@pytest.mark.parametrize(
    ("files", "match"),
    [
        (
            {"a": {"x": np.zeros(3), "y": np.zeros(3)}, "b": {"x": np.zeros(3)}},
            r"b\.npz: .*'y' is missing",
        ),
        (
            {"a": np.zeros((2, 3), "f4"), "b": np.zeros((2, 3), "f8")},
            r"b\.npy: .*float64, in .*a\.npy",
        ),
    ],
)
def test_files_that_do_not_fit_together_are_named(tmp_path, files, match):
    """The one odd file of ten thousand is what the reader needs to know."""
    with pytest.raises(ndfeed.SchemaError, match=match):
        ndfeed.open(save(tmp_path, **files), sample="row")


def test_rows_asked_for_where_there_are_none(tmp_path):
    """The message says which field stands in the way."""
    save(tmp_path, s={"x": np.zeros((3, 2)), "n": np.int64(3)})

    with pytest.raises(ndfeed.SchemaError, match=r"s\.npz: 'n' is a scalar"):
        ndfeed.open(tmp_path, sample="row")
    assert len(ndfeed.open(tmp_path, sample="row", fields="x")) == 3


def test_fields_of_one_length_are_chosen_at_open(tmp_path):
    """Train and test in one archive, as Keras ships MNIST."""
    save(
        tmp_path,
        mnist={"x_train": np.zeros((6, 2)), "y_train": np.arange(6), "x_test": np.zeros((2, 2))},
    )
    ds = ndfeed.open(tmp_path / "mnist.npz", fields=("x_train", "y_train"))

    assert len(ds) == 6
    assert list(ds.fields) == ["x_train", "y_train"]
    whole = ndfeed.open(tmp_path / "mnist.npz")
    assert len(whole) == 1
    assert "fields=" in repr(whole)


def test_a_bare_array_and_one_called_data_are_one_field(tmp_path):
    """A folder where some files were saved with np.save and others with np.savez."""
    save(tmp_path, a=np.arange(3), b={"data": np.arange(3, 6)})

    assert ndfeed.open(tmp_path, sample="row")[[4, 0]]["data"].tolist() == [4, 0]


def test_byte_order_alone_is_no_difference(tmp_path):
    """Files of two machines hold one field."""
    save(tmp_path, a=np.arange(3, dtype="<i4"), b=np.arange(3, 6, dtype=">i4"))
    batch = ndfeed.open(tmp_path, sample="row")[[5, 0, 3]]["data"]

    assert batch.tolist() == [5, 0, 3]
    assert batch.dtype == np.dtype("i4")


def test_dict_of_sources_stays_aligned(tmp_path):
    """Features in one place, labels in another: row i of one belongs to row i of the other."""
    save(tmp_path, **{f"f__{i}": np.full((4, 2), i) for i in range(3)}, labels=np.arange(12))
    ds = ndfeed.open({"image": tmp_path / "f", "label": tmp_path / "labels.npy"})

    assert list(ds.fields) == ["image", "label"]
    assert len(ds) == 12
    assert ds[9]["image"].tolist() == [2, 2]
    assert ds[9]["label"] == 9


def test_in_a_dict_the_count_settles_what_a_sample_is(tmp_path):
    """Three files of four rows beside three labels can only be three samples."""
    save(tmp_path, **{f"f__{i}": np.full((4, 2), i) for i in range(3)}, labels=np.arange(3))
    ds = ndfeed.open({"image": tmp_path / "f", "label": tmp_path / "labels.npy"})

    assert len(ds) == 3
    assert ds.fields["image"].shape == (4, 2)


def test_in_a_dict_two_fitting_readings_are_refused(tmp_path):
    """One row a file is as many rows as files, and not the same shape."""
    save(tmp_path, **{f"{k}__{i}": np.zeros((1, 2)) for i in range(3) for k in "fg"})

    with pytest.raises(ndfeed.AmbiguousError, match="two ways"):
        ndfeed.open({"f": tmp_path / "f", "g": tmp_path / "g"})
    ds = ndfeed.open({"f": tmp_path / "f", "g": tmp_path / "g"}, sample={"f": "row", "g": "file"})
    assert ds.fields["f"].shape == (2,)
    assert ds.fields["g"].shape == (1, 2)


def test_sources_of_different_lengths_are_refused(tmp_path):
    """A missing label must not shift all the others."""
    save(tmp_path, x=np.zeros((4, 2)), y=np.zeros(5))

    with pytest.raises(ndfeed.SchemaError, match="'x' has 4, 'y' has 5"):
        ndfeed.open({"x": tmp_path / "x.npy", "y": tmp_path / "y.npy"})


def test_names_in_a_dict(tmp_path):
    """A bare array takes the key, named ones come below it."""
    save(tmp_path, x=np.zeros(3), y={"a": np.zeros(3), "b": np.zeros(3)})
    ds = ndfeed.open({"one": tmp_path / "x.npy", "two": tmp_path / "y.npz"})

    assert list(ds.fields) == ["one", "two/a", "two/b"]


def test_two_sources_of_one_field_are_refused(tmp_path):
    """One would hide the other."""
    save(tmp_path, x={"y": np.zeros(3)}, y=np.ones(3))

    with pytest.raises(ndfeed.SchemaError, match=r"field 'a/y' comes from two sources; rename one"):
        ndfeed.open({"a": tmp_path / "x.npz", "a/y": tmp_path / "y.npy"})


def test_a_dataset_may_be_a_source(tmp_path):
    """A raw file beside .npy ones needs a dtype of its own."""
    save(tmp_path, y=np.arange(4))
    np.arange(8, dtype="<u2").tofile(tmp_path / "x.bin")
    tokens = ndfeed.open(tmp_path / "x.bin", dtype="<u2", shape=2)
    ds = ndfeed.open({"x": tokens, "y": tmp_path / "y.npy"})

    assert ds[3]["x"].tolist() == [6, 7]
    assert ds[3]["y"] == 3


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"sample": "rows"}, ValueError, "sample must be one of"),
        ({"shape": (2,)}, ValueError, "needs dtype="),
        ({"dtype": "f4"}, ValueError, r"x\.npy: already has dtype <f8"),
        ({"dtype": "O"}, ValueError, "plain element type"),
        ({"dtype": "f4", "shape": (-1,)}, ValueError, "positive whole numbers"),
        ({"fields": ("y",)}, ndfeed.FieldError, "no field 'y'; the fields are 'data'"),
        ({"sample": {"x": "row"}}, TypeError, "only where the source is one"),
    ],
)
def test_wrong_arguments_fail_at_once(tmp_path, options, error, match):
    """Nothing waits for epoch 3."""
    save(tmp_path, x=np.zeros((3, 2)))

    with pytest.raises(error, match=match):
        ndfeed.open(tmp_path / "x.npy", **options)


def test_sums_of_several_kinds_say_so(tmp_path):
    """Windows and rows are not rows; what maps add to a sum says nothing about samples."""
    np.save(tmp_path / "x.npy", np.arange(40.0).reshape(8, 5))
    rows = ndfeed.open(tmp_path / "x.npy")
    windows = rows.windows(3)
    crops = rows.crops({"data": (2,)}, grid=0).select("data")

    assert "samples are of several kinds (3 consecutive rows" in repr(windows + rows)
    assert "samples are of several kinds (" in repr(windows + crops + windows)
    assert "a sample is a window of rows (" in repr(windows + rows.windows(2))
    assert "a sample is a window of rows (" in repr(windows.map(dict) + rows.windows(2))
    assert "a sample is a row of axis 0 (" in repr(rows + rows.take([1]))
