"""ndfeed.open: what it skips if told to, and arguments that it must not accept."""

import pickle
import warnings

import numpy as np
import pytest

import ndfeed
from ndfeed.errors import BadFilesError, FieldError, FormatError, MissingError, TruncatedError


@pytest.fixture
def folder(tmp_path):
    """Six files, of which number 2 is cut short and number 4 is empty."""
    path = tmp_path / "folder"
    path.mkdir()
    for i in range(6):
        np.save(path / f"{i}.npy", np.full((2, 3), i))
    whole = (path / "2.npy").read_bytes()
    (path / "2.npy").write_bytes(whole[:-5])
    (path / "4.npy").write_bytes(b"")
    return path


def opened(source, **options):
    """What is opened with ``on_error="skip"``, and the warnings."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        ds = ndfeed.open(source, sample="file", on_error="skip", **options)
    return ds, [str(one.message) for one in told]


@pytest.mark.parametrize("cache", [True, False])
def test_bad_files_are_skipped_listed_and_told_of(folder, cache):
    """Every time, whether or not the index of the others is kept."""
    for _ in range(3):
        ds, told = opened(folder, cache=cache)

        assert ds[:]["data"][:, 0, 0].tolist() == [0, 1, 3, 5]
        assert [type(error) for error in ds.skipped] == [TruncatedError, FormatError]
        assert [error.path for error in ds.skipped] == [str(folder / f"{i}.npy") for i in (2, 4)]
        assert len(told) == 1
        assert told[0].startswith("2 of 6 files cannot be read and are skipped (ds.skipped lists")
        assert str(folder / "2.npy") in told[0]


def test_what_was_skipped_goes_with_views_and_pickles(folder):
    """And a process that is sent the dataset has no need to warn again."""
    ds, _ = opened(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = pickle.loads(pickle.dumps(ds.take([1, 2])))

    assert [str(error) for error in again.skipped] == [str(error) for error in ds.skipped]
    assert again.fingerprint == ds.take([1, 2]).fingerprint


def test_files_that_were_mended_are_read_again(folder):
    """An index without them is not believed."""
    opened(folder)
    np.save(folder / "2.npy", np.full((2, 3), 2))
    (folder / "4.npy").unlink()
    ds, told = opened(folder)

    assert ds[:]["data"][:, 0, 0].tolist() == [0, 1, 2, 3, 5]
    assert ds.skipped == told == []


def test_skipping_once_does_not_skip_for_others(folder):
    """Whoever does not ask for it is told of all bad files, index or not."""
    opened(folder)

    with pytest.raises(BadFilesError, match="2 of 6 files cannot be used"):
        ndfeed.open(folder, sample="file")


def test_nothing_is_left_to_read(folder):
    """Then there is nothing to skip to."""
    with pytest.raises(BadFilesError, match="2 of 2 files"):
        opened([folder / "2.npy", folder / "4.npy"])
    with pytest.raises(MissingError, match=r"nowhere\.npy"):
        opened(folder / "nowhere.npy")


def test_nothing_is_skipped_where_all_is_well(tmp_path):
    """No warning, and an empty list."""
    np.save(tmp_path / "x.npy", np.zeros(3))
    ds, told = opened(tmp_path / "x.npy")

    assert ds.skipped == told == []


@pytest.mark.parametrize(
    ("options", "error", "problem"),
    [
        ({"cache": "/path"}, TypeError, "cache must be True or False, got '/path'"),
        ({"mapped": 1}, TypeError, "mapped must be True or False, got 1"),
        ({"verify": "yes"}, TypeError, "verify must be True or False, got 'yes'"),
        ({"on_error": "ignore"}, ValueError, 'on_error must be "raise" or "skip"'),
        ({"fields": {"data"}}, TypeError, "fields must be a list or tuple of names, got set"),
        ({"fields": {"data": "x"}}, TypeError, "fields must be a list or tuple of names, got dict"),
        ({"dtype": {"data": "f4"}, "shape": 3}, ValueError, "shape= is for raw files"),
    ],
)
def test_arguments_that_mean_nothing_are_refused(tmp_path, options, error, problem):
    """A folder given as cache= was taken for True."""
    np.save(tmp_path / "x.npy", np.zeros(3))

    with pytest.raises(error, match=problem):
        ndfeed.open(tmp_path / "x.npy", **options)


def test_what_np_load_returns_is_no_source(tmp_path):
    """The path is what is wanted."""
    np.savez(tmp_path / "x.npz", x=np.zeros(3))
    np.save(tmp_path / "x.npy", np.zeros(3))

    with np.load(tmp_path / "x.npz") as archive, pytest.raises(TypeError, match="pass the path"):
        ndfeed.open(archive)
    with pytest.raises(TypeError, match="pass the path"):
        ndfeed.open(np.load(tmp_path / "x.npy", mmap_mode="r"))


def test_types_are_for_files_and_fields_that_are_there(tmp_path):
    """A dict of types must not be passed over in part."""
    np.save(tmp_path / "x.npy", np.zeros(3))
    ds = ndfeed.open(tmp_path / "x.npy")

    with pytest.raises(FieldError, match="no field 'z'; the fields are 'x', 'y'"):
        ndfeed.open({"x": ds, "y": tmp_path / "x.npy"}, dtype={"z": "f4"})
    with pytest.raises(ValueError, match="dtype= is for files"):
        ndfeed.open({"x": ds, "y": tmp_path / "x.npy"}, dtype={"x": "f4"})


def test_datasets_in_memory_still_list_the_files_that_were_skipped(tmp_path):
    """What was left out is left out there, too."""
    for i in range(3):
        np.save(tmp_path / f"{i}.npy", np.full(3, i))
    (tmp_path / "bad.npy").write_bytes(b"junk")
    with pytest.warns(UserWarning, match="1 of 4 files cannot be read"):
        ds = ndfeed.open(tmp_path, sample="file", on_error="skip")
    held = ds.in_memory()

    for view in (held, held.take([0]), held.map(dict), pickle.loads(pickle.dumps(held))):
        assert [str(error) for error in view.skipped] == [str(error) for error in ds.skipped]
    assert len((held + held).skipped) == 2
    assert len(held.skipped) == 1


def test_names_of_fields_are_not_nested_at_open(tmp_path):
    """Nests are for loaders; the answer was one of Python's own about hashing."""
    np.savez(tmp_path / "a.npz", x=np.arange(3), y=np.arange(3))

    with pytest.raises(TypeError, match=r"fields of open must be names, .* a loader's fields="):
        ndfeed.open(tmp_path / "a.npz", fields=({"a": "x"}, "y"))


def test_files_skipped_by_a_source_in_memory_stay_listed_in_a_dict(tmp_path):
    """They were lost with the files, and nobody learned that samples were missing."""
    for i in range(4):
        (tmp_path / "a").mkdir(exist_ok=True)
        np.savez(tmp_path / "a" / f"{i}.npz", x=np.full(3, i))
    (tmp_path / "a" / "2.npz").write_bytes(b"")
    np.save(tmp_path / "y.npy", np.arange(3))
    held = opened(tmp_path / "a")[0].in_memory()
    ds = ndfeed.open({"a": held, "y": tmp_path / "y.npy"}, sample={"y": "row"})

    for view in (ds, ds.take([0]), pickle.loads(pickle.dumps(ds))):
        assert [error.path for error in view.skipped] == [str(tmp_path / "a" / "2.npz")]


@pytest.mark.parametrize(
    ("argument", "text"),
    [
        ("cast", r"argument 'cast': write dtype=\{"),
        ("mmap_mode", "argument 'mmap_mode': .*mapped=False"),
        ("allow_pickle", "never unpickled"),
        ("feilds", "did you mean fields="),
    ],
)
def test_arguments_of_others_are_answered_with_ours(tmp_path, argument, text):
    """The error is Python's own, and says what to write instead."""
    np.save(tmp_path / "x.npy", np.arange(3))

    with pytest.raises(TypeError, match=text) as caught:
        ndfeed.open(tmp_path / "x.npy", **{argument: None})
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("open() got an unexpected keyword argument")


@pytest.mark.parametrize("name", ["file", "row"])
def test_the_origin_of_samples_is_a_field_of_with_origin(tmp_path, name):
    """Who asks for it by name learns how to get it."""
    np.save(tmp_path / "x.npy", np.arange(3))
    ds = ndfeed.open(tmp_path / "x.npy")

    with pytest.raises(ndfeed.FieldError, match=rf"no field '{name}'.*ds\.with_origin\(\) adds"):
        ndfeed.loader(ds, 2, fields=("data", name))
    assert len(next(iter(ndfeed.loader(ds.with_origin(), 2, fields=("data", name))))) == 2
