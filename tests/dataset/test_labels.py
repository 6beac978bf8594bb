"""Labels from file names, mappings, tables and arrays, through every view and every loader."""

import contextlib
import csv
import datetime
import gzip
import json
import os
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ndfeed
from ndfeed.dataset.label_tables import open_label_table
from ndfeed.dataset.row_selection import PartNumbers
from ndfeed.loading.pool_worker import can_travel, make_job

KINDS = ("cat", "dog", "eel")


@pytest.fixture
def pets(tmp_path):
    """Nine files of four rows each, in a folder for each kind."""
    for kind in KINDS:
        (tmp_path / "pets" / kind).mkdir(parents=True)
        for i in range(3):
            value = 10 * KINDS.index(kind) + i
            np.save(tmp_path / "pets" / kind / f"{kind}{i}.npy", np.full((4, 2), value, np.int32))
    return tmp_path / "pets"


@pytest.fixture(params=["row", "file"])
def ds(pets, request):
    return ndfeed.open(pets, sample=request.param)


def true_codes(batch):
    """The kind of every sample, from its values."""
    values = np.asarray(batch["data"])
    return values.reshape(len(values), -1)[:, 0] // 10


def write_csv(path, header, rows):
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    return path


@pytest.fixture
def table(tmp_path):
    """A table of all pets, in no order, with some that have no file."""
    rows = [(f"{kind}{i}.npy", kind.upper(), i / 2, i) for kind in KINDS for i in range(5)]
    return write_csv(tmp_path / "pets.csv", ("name", "kind", "weight", "litter"), rows[::-1])


def same_labels(ds, field="label"):
    batch = ds[:]
    np.testing.assert_array_equal(batch[field], true_codes(batch))
    assert batch[field].dtype == np.int64


# Sources


def test_folders_are_classes(ds):
    """The layout of ImageFolder, for arrays."""
    made = ds.with_labels(ndfeed.folder_name)

    assert made.classes == {"label": KINDS}
    assert made.fields["label"].shape == ()
    assert "label is one of 3 classes: 'cat', 'dog', 'eel'" in repr(made)
    same_labels(made)


def test_a_function_may_return_numbers_and_arrays(ds):
    """Their dtype is kept."""
    made = ds.with_labels(lambda path: np.float32(Path(path).stem[-1]), field="number")
    made = made.with_labels(lambda path: np.full(3, len(path), np.uint8), field="vector")

    values = np.asarray(ds[:]["data"]).reshape(len(ds), -1)[:, 0]
    batch = made[:]
    assert batch["number"].dtype == np.float32
    np.testing.assert_array_equal(batch["number"], values % 10)
    assert made.fields["vector"].shape == (3,)
    assert batch["vector"].dtype == np.uint8
    assert made.classes == {}


NAMES = {
    "path": lambda path, root: path,
    "path object": lambda path, root: Path(path),
    "path within the folder": lambda path, root: os.path.relpath(path, root),
    "path within a folder above": lambda path, root: os.path.relpath(path, root.parent),
    "path from here": lambda path, root: os.path.relpath(path),
    "path without suffix": lambda path, root: os.path.relpath(path, root)[:-4],
    "file name": lambda path, root: os.path.basename(path),
    "file name without suffix": lambda path, root: Path(path).stem,
}


@pytest.mark.parametrize("name", NAMES)
def test_files_may_be_named_in_any_way(ds, pets, name, monkeypatch):
    """Tables come with whatever their author found natural."""
    monkeypatch.chdir(pets / "cat")
    labels = {NAMES[name](path, pets): ndfeed.folder_name(path) for path in ds.files}

    same_labels(ds.with_labels(labels))


def test_a_name_may_have_dots_and_two_suffixes(tmp_path):
    """Medical identifiers have many dots; compressed files have two suffixes."""
    for name in ("1.2.840", "1.2.841"):
        with gzip.open(tmp_path / f"{name}.npy.gz", "wb") as file:
            np.save(file, np.arange(3))
    ds = ndfeed.open(tmp_path, sample="file")

    assert ds.with_labels({"1.2.840": 5, "1.2.841": 7})[:]["label"].tolist() == [5, 7]


def test_one_way_of_naming_for_all(ds):
    """Never per name: a name that fits in another way would hide a mistake."""
    labels = dict.fromkeys(ds.files, "x")
    first = next(iter(labels))
    del labels[first]
    labels[os.path.basename(first)] = "y"

    with pytest.raises(ndfeed.SchemaError, match="1 of 9 files have no label, compared by path"):
        ds.with_labels(labels)


@pytest.mark.parametrize("suffix", ["csv", "tsv"])
def test_a_table_is_joined_on_the_file_name(ds, table, suffix):
    """The key is found, since only one column has names of files."""
    if suffix == "tsv":
        text = table.read_text(encoding="utf-8").replace(",", "\t")
        table = table.with_suffix(".tsv")
        table.write_text(text, encoding="utf-8")
    made = ds.with_labels(table, column="kind")
    made = made.with_labels(table, column="weight", field="weight", key="name")
    made = made.with_labels(table, column="litter", field="litter")

    same_labels(made)
    batch = made[:]
    number = np.asarray(batch["data"]).reshape(len(ds), -1)[:, 0] % 10
    assert made.classes == {"label": ("CAT", "DOG", "EEL")}
    assert batch["weight"].dtype == np.float64
    assert batch["litter"].dtype == np.int64
    np.testing.assert_array_equal(batch["weight"], number / 2)
    np.testing.assert_array_equal(batch["litter"], number)


def test_two_columns_need_no_names(ds, tmp_path):
    """A table of names and labels is clear, wherever its columns stand."""
    rows = [(ndfeed.folder_name(path), Path(path).stem) for path in ds.files]
    path = write_csv(tmp_path / "two.csv", ("kind", "id"), sorted(set(rows)))

    same_labels(ds.with_labels(path, key="id"))
    same_labels(ds.with_labels(path, column="kind"))
    same_labels(ds.with_labels(str(path)))


def test_codes_with_leading_zeros_are_text(ds, tmp_path):
    """``007`` is a name; as the number 7 it would be the same as ``7``."""
    rows = [(Path(path).stem, f"00{i}") for i, path in enumerate(dict.fromkeys(ds.files))]
    made = ds.with_labels(write_csv(tmp_path / "t.csv", ("id", "code"), rows), column="code")

    assert made.classes["label"][:2] == ("000", "001")


def test_datasets_of_one_table_share_their_codes(ds, table):
    """What is trained on some of the files is tested on others."""
    eels = ds.take([i for i, code in enumerate(true_codes(ds[:])) if code == 2])
    made = eels.with_labels(table, column="kind")

    assert made.classes == {"label": ("CAT", "DOG", "EEL")}
    same_labels(made)


def test_only_files_of_the_view_need_labels(ds, table):
    """Others are not read."""
    cats = ds.take([i for i, code in enumerate(true_codes(ds[:])) if code == 0])

    same_labels(cats.with_labels({f"cat{i}": "cat" for i in range(3)}))


ARRAYS = {
    "list of numbers": lambda codes: codes.tolist(),
    "array": lambda codes: codes,
    "big-endian": lambda codes: codes.astype(">i8"),
    "list of text": lambda codes: [KINDS[code] for code in codes],
    "array of text": lambda codes: np.array(KINDS)[codes],
    "tuple of scalars": lambda codes: tuple(codes),
}


@pytest.mark.parametrize("kind", ARRAYS)
def test_one_label_for_each_sample(ds, kind):
    """As predictions of another model come."""
    view = ds.take(np.arange(len(ds))[::-2])
    for one in (ds, view):
        made = one.with_labels(ARRAYS[kind](true_codes(one[:]).astype(np.int64)))

        same_labels(made)
        same_labels(made.take([3, 0]))


def test_arrays_of_numbers_keep_dtype_and_shape(ds):
    """A label may be a vector."""
    labels = np.random.default_rng(0).random((len(ds), 5)).astype(np.float16)
    made = ds.with_labels(labels)

    assert made.fields["label"] == ndfeed.Field("label", np.dtype("f2"), (5,), "<f2")
    np.testing.assert_array_equal(made[:]["label"], labels)


def test_classes_fix_the_codes(ds):
    """In their order; names without a sample are allowed."""
    names = ("eel", "dog", "cat", "fox")
    made = ds.with_labels(ndfeed.folder_name, classes=names)

    np.testing.assert_array_equal(made[:]["label"], 2 - true_codes(ds[:]))
    assert made.classes == {"label": names}
    coded = ds.with_labels(true_codes(ds[:]), classes=KINDS)
    assert coded.classes == {"label": KINDS}
    same_labels(ds.with_labels([KINDS[c] for c in true_codes(ds[:])], classes=KINDS))


def test_numbers_in_a_table_are_text_for_classes(ds, table):
    """A class may be called 0."""
    made = ds.with_labels(table, column="litter", classes=("2", "1", "0", "3", "4"))

    number = np.asarray(ds[:]["data"]).reshape(len(ds), -1)[:, 0] % 10
    np.testing.assert_array_equal(made[:]["label"], 2 - number)


def write_parquet(path, **columns):
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pytest.importorskip("pyarrow").table(columns), path)
    return path


def test_parquet_files(ds, tmp_path):
    """Dtypes are those of the columns."""
    pyarrow = pytest.importorskip("pyarrow")
    stems = [f"{kind}{i}" for kind in KINDS for i in range(3)]
    path = write_parquet(
        tmp_path / "t.parquet",
        id=stems,
        kind=pyarrow.array([stem[:3] for stem in stems]).dictionary_encode(),
        small=pyarrow.array(range(9), pyarrow.int16()),
        vector=[[i, i + 0.5] for i in range(9)],
        day=[datetime.date(2020, 1, 1)] * 9,
    )
    made = ds.with_labels(path, column="kind")
    made = made.with_labels(path, column="small", field="small")
    made = made.with_labels(path, column="vector", field="vector")

    same_labels(made)
    batch = made[:]
    number = np.asarray(batch["data"]).reshape(len(ds), -1)[:, 0]
    np.testing.assert_array_equal(batch["small"], number // 10 * 3 + number % 10)
    assert batch["small"].dtype == np.int16
    np.testing.assert_array_equal(batch["vector"][:, 1], batch["small"] + 0.5)
    with pytest.raises(ndfeed.SchemaError, match=r"t\.parquet: no column 'x'; the columns are"):
        ds.with_labels(path, column="x")
    with pytest.raises(
        ndfeed.SchemaError, match=r"t\.parquet: column 'day' is date32\[day\], neit"
    ):
        ds.with_labels(path, column="day")
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ndfeed.FormatError, match=r"t\.parquet: not a Parquet file"):
        ds.with_labels(path, column="kind")


def test_parquet_without_pyarrow(ds, tmp_path, monkeypatch):
    """The line that installs it."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "t.parquet").write_bytes(b"")

    with pytest.raises(ModuleNotFoundError, match=r"pip install 'ndfeed\[tables\]'"):
        ds.with_labels(tmp_path / "t.parquet")


# Views


def scale(batch):
    return batch | {"twice": batch["data"] * 2}


VIEWS = {
    "itself": lambda ds: ds,
    "take": lambda ds: ds.take(np.arange(len(ds))[::-1]),
    "mask": lambda ds: ds.take(np.arange(len(ds)) % 3 > 0),
    "split": lambda ds: ds.split(0.5, seed=3)[1],
    "map": lambda ds: ds.map(scale),
    "map and take": lambda ds: ds.map(scale).take([3, 1]),
    "sum": lambda ds: ds + ds.take([2, 0]),
    "sum of maps": lambda ds: ds.map(scale).select("data", "label") + ds.select("data", "label"),
    "memory": lambda ds: ds.take([3, 3, 1, 2, 0]).in_memory(),
    "pickled": lambda ds: pickle.loads(pickle.dumps(ds)),
    "select": lambda ds: ds.select("label", "data"),
    "dict": lambda ds: ndfeed.open({"a": ds.take([3, 1])}).rename(
        {"a/data": "data", "a/label": "label"}
    ),
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("before", ["itself", "take", "map", "memory", "split"])
@pytest.mark.parametrize("source", ["function", "array"])
def test_every_view_carries_labels_and_classes(ds, view, before, source):
    """Both before and after they are added."""
    first = VIEWS[before](ds)
    kinds = [KINDS[code] for code in true_codes(first[:])]
    made = first.with_labels(ndfeed.folder_name if source == "function" else kinds, classes=KINDS)
    seen = VIEWS[view](made)

    same_labels(seen)
    assert seen.classes == {"label": KINDS}
    for one in (pickle.loads(pickle.dumps(seen)), seen.take([1, 0])):
        same_labels(one)
        assert one.classes == {"label": KINDS}


def test_classes_follow_their_field(ds):
    """To another name, and away with it."""
    made = ds.with_labels(ndfeed.folder_name)

    assert made.rename({"label": "y"}).classes == {"y": KINDS}
    assert made.select("data").classes == {}
    assert made.map(scale).select("data").classes == {}
    assert ndfeed.open({"a": made}).classes == {"a/label": KINDS}
    assert ndfeed.open({"a": made.select("label")}).classes == {"a": KINDS}


def test_sums_must_agree_on_classes(ds):
    """Code 1 must not be a dog here and an eel there."""
    one, other = (ds.with_labels(ndfeed.folder_name, classes=c) for c in (KINDS, KINDS[::-1]))

    with pytest.raises(ndfeed.SchemaError, match=r"classes of 'label': expected .* pass the same"):
        one + other
    with pytest.raises(ndfeed.SchemaError, match=r"classes of 'label': expected .*, found none"):
        one + ds.with_labels(true_codes(ds[:]).astype(np.int64))
    nothing = ds.take([]).with_labels(ndfeed.folder_name)
    assert (nothing + one).classes == (one + nothing).classes == {"label": KINDS}


def test_labels_do_not_change_the_fingerprint(ds):
    """A run resumes with better labels: row 7 is row 7."""
    made = ds.with_labels(ndfeed.folder_name)

    assert made.fingerprint == ds.fingerprint
    assert (made + made).fingerprint == (ds + ds).fingerprint
    assert made.take([3]).fingerprint == ds.take([3]).fingerprint
    assert made.in_memory().fingerprint == ds.fingerprint
    array = ndfeed.open(np.arange(4))
    assert array.with_labels([1, 2, 3, 4]).fingerprint == array.fingerprint
    assert list(made.files) == list(ds.files)


def test_an_earlier_map_does_not_see_labels(ds):
    """It may return other fields than it got."""
    made = ds.map(lambda batch: {"mean": np.asarray(batch["data"]).mean() + 0 * true_codes(batch)})
    made = made.with_labels(ndfeed.folder_name).map(lambda batch: {"n": batch["label"]})

    np.testing.assert_array_equal(made[:]["n"], true_codes(ds[:]))


def test_labels_of_files_take_no_memory_per_sample(tmp_path):
    """A billion rows in a file, one label."""
    for name in "ab":
        with (tmp_path / f"{name}.bin").open("wb") as file:
            file.truncate(1 << 32)
    ds = ndfeed.open(tmp_path, dtype="uint8", sample="row")
    made = ds.with_labels({"a": 3, "b": 5})

    assert len(made) == 1 << 33
    assert made[[0, (1 << 32) - 1, 1 << 32, -1]]["label"].tolist() == [3, 3, 5, 5]
    assert isinstance(made.groups[-1].rows, PartNumbers)
    assert made.groups[-1].table.owner.size <= 4096
    assert len(pickle.dumps(made)) < 20_000
    assert (made + made)[[0, 1 << 32, 1 << 33, -1]]["label"].tolist() == [3, 5, 3, 5]
    some = ds.take(slice(7, 1 << 32)).with_labels({"a": 3})
    assert some[[0, -1]]["label"].tolist() == [3, 3]
    with pytest.raises(ndfeed.SchemaError, match=r"1 of 2 files have no label.*'b'"):
        ds.take(slice(7, (1 << 32) + 1)).with_labels({"a": 3})


# Loaders

LOADERS = {
    "one thread": {"threads": 1},
    "threads": {"threads": 3, "shuffle": True},
    "processes": {"processes": 2, "shuffle": True},
}


@pytest.mark.parametrize("way", LOADERS)
@pytest.mark.parametrize("mapped", [False, True])
def test_loaders_deliver_labels(ds, way, mapped):
    """Each with its sample, in any order and any process."""
    made = ds.with_labels(ndfeed.folder_name)
    with ndfeed.loader(made.map(scale) if mapped else made, 5, **LOADERS[way]) as loader:
        batches = list(loader)

    assert sum(len(batch["label"]) for batch in batches) == len(ds)
    for batch in batches:
        np.testing.assert_array_equal(batch["label"], true_codes(batch))


def test_processes_find_the_labels_of_a_sum(ds):
    """Labels of several datasets are in several memories; all of them are found."""
    made = ds.with_labels(ndfeed.folder_name)
    made = made + made.take([2, 1]) + made.take([0])

    assert can_travel(made)
    sent = pickle.loads(pickle.dumps(make_job(made, None))).ds
    np.testing.assert_array_equal(sent[:]["label"], true_codes(made[:]))
    with ndfeed.loader(made, 5, processes=2) as loader:
        for batch in loader:
            np.testing.assert_array_equal(batch["label"], true_codes(batch))


def test_torch_delivers_labels(ds):
    """As int64, which losses take."""
    torch = pytest.importorskip("torch")
    made = ds.with_labels(ndfeed.folder_name)
    with ndfeed.torch.loader(made, 4, shuffle=True) as loader:
        for batch in loader:
            assert batch["label"].dtype == torch.int64
            np.testing.assert_array_equal(batch["label"], true_codes(batch))


def test_labels_are_packed(ds, tmp_path):
    """As any field."""
    ndfeed.pack(ds.take(np.arange(len(ds))[::-1]).with_labels(ndfeed.folder_name), tmp_path / "p")

    same_labels(ndfeed.open(tmp_path / "p"))


def test_an_interrupted_pack_is_resumed_with_the_same_labels_only(ds, tmp_path):
    """A plan is known by what it writes, also by what is in memory."""

    def plan(labels, target):
        ndfeed.pack(ds.with_labels(labels), tmp_path / target)
        manifest = json.loads((tmp_path / target / "ndfeed.json").read_text(encoding="utf-8"))
        return manifest["source"]["packs"][0]["plan"]

    labels = np.arange(len(ds))
    assert plan(labels, "a") == plan(labels.tolist(), "b")
    assert plan(labels, "c") != plan(labels[::-1], "d")


# Errors


def test_missing_and_doubled_names_are_listed_at_once(ds, tmp_path):
    """One run shows all there is to repair; ten of each, and how many."""
    rows = [("cat0", 1), ("cat1", 2), ("cat0", 1), ("cat2", "")]
    path = write_csv(tmp_path / "t.csv", ("id", "y"), rows)

    with pytest.raises(ndfeed.SchemaError) as caught:
        ds.with_labels(path)
    said = str(caught.value)
    assert "t.csv: 7 of 9 files have no label, compared by file name without suffix: " in said
    assert "'cat2', 'dog0', 'dog1', 'dog2', 'eel0'" in said
    assert "1 name has several labels: 'cat0'" in said
    assert "\n" not in said


def test_long_lists_are_cut(tmp_path):
    """A million names would bury the message."""
    for i in range(14):
        np.save(tmp_path / f"{i:02}.npy", np.zeros(2))
    ds = ndfeed.open(tmp_path, sample="file")

    with pytest.raises(ndfeed.SchemaError, match=r"13 of 14 files .* '01', .*'10' and 3 more; "):
        ds.with_labels({"00": 1})


def test_names_of_other_files(ds):
    """The usual mistake is another spelling: both are shown."""
    with pytest.raises(ndfeed.SchemaError, match="no file has a label: names are such as 'Cat_0'"):
        ds.with_labels({"Cat_0": 1})
    with pytest.raises(ndfeed.SchemaError, match="no file has a label: there are no labels"):
        ds.with_labels({})


def test_names_that_several_files_have(pets):
    """The label of one must not become that of the other."""
    for kind in KINDS:
        np.save(pets / kind / "same.npy", np.zeros((4, 2), np.int32))
    ds = ndfeed.open([str(pets / kind / "same.npy") for kind in KINDS], sample="file")

    with pytest.raises(ndfeed.SchemaError, match=r"files share their file name: 'same\.npy'"):
        ds.with_labels({"same.npy": 1})


def test_a_function_without_an_answer(ds):
    """None is no label."""
    with pytest.raises(ndfeed.SchemaError, match=r"3 of 9 files have no label: '.*cat0\.npy'"):
        ds.with_labels(lambda path: None if "cat" in path else 1)


BAD = {
    "another length": (lambda ds, t: ds.with_labels([1, 2]), ValueError, "for each of .* got 2"),
    "no column": (
        lambda ds, t: ds.with_labels(t, column="age"),
        ndfeed.SchemaError,
        "no column 'age'; the columns are 'name', 'kind', 'weight', 'litter': .* column=",
    ),
    "no key": (
        lambda ds, t: ds.with_labels(t, column="kind", key="id"),
        ndfeed.SchemaError,
        "no column 'id'; .* key=",
    ),
    "several columns": (
        lambda ds, t: ds.with_labels(t),
        ndfeed.SchemaError,
        "several columns may have the labels; the columns are",
    ),
    "unknown class": (
        lambda ds, t: ds.with_labels(ndfeed.folder_name, classes=["cat", "dog"]),
        ndfeed.SchemaError,
        "labels that are not in classes=: 'eel'; classes are 'cat', 'dog'",
    ),
    "codes beyond classes": (
        lambda ds, t: ds.with_labels(true_codes(ds[:]), classes=["a", "b"]),
        ValueError,
        r"codes must be in \[0, 2\), got 0 to 2",
    ),
    "classes twice": (
        lambda ds, t: ds.with_labels(ndfeed.folder_name, classes=["a", "a"]),
        ValueError,
        "classes must differ, got 'a' twice",
    ),
    "text and numbers": (
        lambda ds, t: ds.with_labels({p: i or "x" for i, p in enumerate(dict.fromkeys(ds.files))}),
        TypeError,
        "all be text or all be numbers, got 'x' and 1",
    ),
    "shapes": (
        lambda ds, t: ds.with_labels(lambda path: np.zeros(2 + ("cat" in path))),
        ValueError,
        r"one shape, got \(3,\) and \(2,\)",
    ),
    "objects": (
        lambda ds, t: ds.with_labels(lambda path: object()),
        TypeError,
        "a label cannot be read as an array",
    ),
    "dates": (
        lambda ds, t: ds.with_labels(lambda path: datetime.date(2020, 1, 1)),
        TypeError,
        "a label cannot be read as an array: date is no number",
    ),
    "masked values": (
        lambda ds, t: ds.with_labels(np.ma.array(range(len(ds)), mask=[True] * len(ds))),
        TypeError,
        "labels: masked values are no numbers",
    ),
    "a set": (lambda ds, t: ds.with_labels(set(range(len(ds)))), TypeError, "got a set"),
    "names of no text": (
        lambda ds, t: ds.with_labels({"cat0": 1}, match=lambda path: None),
        TypeError,
        "names of files, which match= may return, must be text, got None",
    ),
    "names of nothing": (
        lambda ds, t: ds.with_labels(ndfeed.folder_name, match=ndfeed.folder_name),
        ValueError,
        "match= is for labels in a table or a mapping",
    ),
    "a field that exists": (
        lambda ds, t: ds.with_labels(t, column="kind", field="data"),
        ValueError,
        "field 'data' exists; choose another name with field=",
    ),
    "column without a table": (
        lambda ds, t: ds.with_labels(ndfeed.folder_name, column="x"),
        ValueError,
        "column= and key= are for labels in a",
    ),
    "a number": (lambda ds, t: ds.with_labels(3), TypeError, "got int"),
    "no table": (
        lambda ds, t: ds.with_labels("labels.xlsx"),
        ndfeed.UnsupportedError,
        r"labels.xlsx: labels are read from \.csv",
    ),
    "no file": (lambda ds, t: ds.with_labels("none.csv"), ndfeed.MissingError, "no such file"),
    "memory": (
        lambda ds, t: ndfeed.open(np.arange(3)).with_labels(ndfeed.folder_name),
        ValueError,
        "samples in memory have no files",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_wrong_labels_are_refused(ds, table, case):
    """Before anything is read."""
    call, error, said = BAD[case]

    with pytest.raises(error, match=said):
        call(ds, table)


TABLES = {
    "cells": ("a,b\n1,2\n3\n", "expected 2 cells in row 3, as in the first, found 1"),
    "empty": ("", "the table is empty"),
    "header": ("a,a\n1,2\n", "two columns have the same name: 'a'"),
    "quotes": ('a,b\n"1,2\n', "not a CSV table"),
}


@pytest.mark.parametrize("case", TABLES)
def test_damaged_tables_are_refused(ds, tmp_path, case):
    """With the file first."""
    text, said = TABLES[case]
    (tmp_path / "t.csv").write_text(text, encoding="utf-8")

    with pytest.raises(ndfeed.Error, match=rf"t\.csv: {said}"):
        ds.with_labels(tmp_path / "t.csv")


@given(st.binary(max_size=200))
def test_any_bytes_are_a_table_or_an_error_of_ours(tmp_path_factory, data):
    """Never a traceback of a parser."""
    folder = tmp_path_factory.mktemp("t")
    np.save(folder / "a.npy", np.zeros((2, 2)))
    (folder / "t.csv").write_bytes(data)
    ds = ndfeed.open(folder / "a.npy")

    with contextlib.suppress(ndfeed.Error):
        ds.with_labels(folder / "t.csv")


def test_tables_are_utf8(ds, tmp_path):
    """With or without a mark at the start, as Excel writes it."""
    rows = "\n".join(f"{Path(path).stem},ä" for path in dict.fromkeys(ds.files))
    (tmp_path / "t.csv").write_bytes(f"id,y\n{rows}\n".encode("utf-8-sig"))
    assert ds.with_labels(tmp_path / "t.csv", key="id").classes == {"label": ("ä",)}

    (tmp_path / "t.csv").write_bytes(b"id,y\ncat0,\xe4\n")
    with pytest.raises(ndfeed.FormatError, match=r"t\.csv at byte 10: .* must be UTF-8"):
        ds.with_labels(tmp_path / "t.csv")


# Any labels


@given(data=st.data())
def test_any_text_comes_back(tmp_path_factory, data):
    """Whatever classes are called, and whichever samples are chosen."""
    folder = tmp_path_factory.mktemp("any")
    counts = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=5))
    for i, count in enumerate(counts):
        np.save(folder / f"{i}.npy", np.full((count, 2), i))
    names = data.draw(st.lists(st.text(), min_size=len(counts), max_size=len(counts)))
    ds = ndfeed.open(folder, sample="row")
    rows = data.draw(st.lists(st.integers(0, max(sum(counts) - 1, 0)), max_size=8))
    view = ds.take(rows) if sum(counts) else ds
    made = view.with_labels(dict(zip(map(str, range(len(counts))), names, strict=True)))

    batch = made[:]
    assert made.classes["label"] == tuple(sorted(set(names)))
    found = [made.classes["label"][code] for code in batch["label"]]
    assert found == [names[value] for value in batch["data"][:, 0]]


@given(
    st.lists(
        st.tuples(
            st.text(st.characters(codec="utf-8", exclude_characters="\0")),
            st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1),
        ),
        max_size=8,
    )
)
def test_any_table_is_read_as_it_was_written(tmp_path_factory, rows):
    """Quotes, separators, line breaks."""
    path = write_csv(tmp_path_factory.mktemp("t") / "t.csv", ("id", "y"), rows)
    table = open_label_table(path, as_text=True)

    assert table.texts("id") == [name.strip() for name, _ in rows]
    assert table.values("y") == [label.strip() or None for _, label in rows]


def test_an_index_without_a_name_is_no_key(tmp_path):
    """Pandas writes one, and its numbers look like the names of files."""
    for i in range(4):
        np.save(tmp_path / f"{i}.npy", np.zeros(3))
    table = tmp_path / "labels.csv"
    table.write_text(",file,y\n0,3.npy,30\n1,2.npy,20\n2,1.npy,10\n3,0.npy,0\n")
    ds = ndfeed.open(tmp_path / "*.npy", sample="file")

    assert ds.with_labels(table, column="y")[:]["label"].tolist() == [0, 10, 20, 30]
    table.write_text(",subject,y\n0,d,30\n1,c,20\n2,b,10\n3,a,0\n")
    with pytest.raises(ndfeed.SchemaError, match="no file has a label: names are such as"):
        ds.with_labels(table, column="y")


def test_names_may_be_a_part_of_the_path(tmp_path):
    """One row for each patient, several scans of each."""
    for patient in "ab":
        (tmp_path / patient).mkdir()
        for scan in range(2):
            np.save(tmp_path / patient / f"{scan}.npy", np.zeros(3))
    table = tmp_path / "patients.csv"
    table.write_text("patient;age\na;40\nb;50\nc;60\n")  # as spreadsheets write it in Europe
    ds = ndfeed.open(tmp_path / "*" / "*.npy", sample="file")
    found = ds.with_labels(table, column="age", field="age", match=ndfeed.folder_name)

    assert found[:]["age"].tolist() == [40, 40, 50, 50]
    ages = {"a": 1, "b": 2}
    assert ds.with_labels(ages, match=ndfeed.folder_name)[:]["label"].tolist() == [1, 1, 2, 2]
    with pytest.raises(ndfeed.SchemaError, match="'b'"):
        ds.with_labels({"a": 1}, match=ndfeed.folder_name)


def test_random_crops_take_labels_before_they_are_drawn(tmp_path):
    """Every epoch has other crops, so that a label for each would be that of another crop."""
    np.save(tmp_path / "x.npy", np.arange(8 * 400).reshape(8, 20, 20))
    ds = ndfeed.open(tmp_path / "x.npy")
    crops = ds.crops({"data": (4, 4)}, each=3)
    with pytest.raises(ValueError, match="of random crops"):
        crops.with_labels(np.repeat(np.arange(8), 3))
    with pytest.raises(ValueError, match="of random crops"):
        crops.with_origin()
    before = ds.with_labels(np.arange(8)).with_origin().crops({"data": (4, 4)}, each=3)
    for batch in ndfeed.loader(before, 5, shuffle=True):
        assert (batch["label"] == batch["data"][:, 0, 0] // 400).all()
        assert (batch["row"] == batch["label"]).all()


def test_two_labels_of_one_sample_are_refused(tmp_path):
    """The last one was that of both."""
    np.save(tmp_path / "x.npy", np.arange(10))
    twice = ndfeed.open(tmp_path / "x.npy").take([3, 3, 4])
    with pytest.raises(ValueError, match="have two different labels"):
        twice.with_labels([1, 2, 5])
    assert twice.with_labels([1, 1, 5])[:]["label"].tolist() == [1, 1, 5]


def test_labels_of_chosen_crops_take_memory_for_these_alone(tmp_path):
    """A volume has millions of possible crops; also through views, packs and a dict."""
    np.save(tmp_path / "x.npy", np.arange(2 * 30**3, dtype=np.int32).reshape(2, 30, 30, 30))
    at = [[1, 3, 4, 5], [0, 20, 2, 1], [1, 0, 0, 0], [1, 3, 4, 5]]
    crops = ndfeed.open(tmp_path / "x.npy").crops({"data": (4, 4, 4)}, at=at)
    ds = crops.with_labels([7, 8, 9, 7])
    assert ds.groups[-1].table.length.sum() < 1000
    for one in (ds, pickle.loads(pickle.dumps(ds)), ds.in_memory(), ndfeed.open({"c": ds})):
        field = "c/label" if "c/label" in one.names else "label"
        assert one[:][field].tolist() == [7, 8, 9, 7]
        assert one.take([2, 0])[:][field].tolist() == [9, 7]
    assert ndfeed.pack(ds, tmp_path / "p", progress=False)[:]["label"].tolist() == [7, 8, 9, 7]


NUMBERS = {
    "19 digits": (["9223372036854775807", "9223372036854775806", "-1"], np.int64),
    "decimal comma": (["0,5", "1,25", "3"], np.float64),
    "floats": (["1e5", ".5", "-3"], np.float64),
}


@pytest.fixture
def three(tmp_path):
    """Three files, and a function that writes their labels into a table."""
    (tmp_path / "three").mkdir()
    for name in "abc":
        np.save(tmp_path / "three" / f"{name}.npy", np.zeros(2))

    def write(cells, separator=",", more=()):
        rows = [f"{name}{separator}{cell}" for name, cell in zip("abc", cells, strict=True)]
        text = "\n".join([f"id{separator}y", *rows, *more])
        (tmp_path / "t.csv").write_text(text, encoding="utf-8")
        return tmp_path / "t.csv"

    return ndfeed.open(tmp_path / "three", sample="file"), write


@pytest.mark.parametrize("case", NUMBERS)
def test_numbers_in_tables_are_exact(three, case):
    """Two long numbers stay two, and half a kilo is no class called 0,5."""
    ds, write = three
    cells, dtype = NUMBERS[case]
    made = ds.with_labels(write(cells, ";" if case == "decimal comma" else ","))

    assert made[:]["label"].dtype == dtype
    assert made[:]["label"].tolist() == [dtype(cell.replace(",", ".")) for cell in cells]


def test_numbers_that_no_dtype_holds_are_names(three):
    """As floats, different ones would be the same."""
    ds, write = three
    cells = ["92233720368547758070", "92233720368547758071", "9" * 5000]
    made = ds.with_labels(write(cells))

    assert [made.classes["label"][code] for code in made[:]["label"]] == cells


@pytest.mark.parametrize("missing", ["", "NA", "nan", "N/A", "NULL", "None"])
def test_what_stands_for_no_number_is_no_label(three, missing):
    """It used to make classes of all other numbers."""
    ds, write = three
    for others in (["1", "2"], ["0.5", "2"]):
        with pytest.raises(ndfeed.SchemaError, match=r"1 of 3 files have no label, .*: 'c'"):
            ds.with_labels(write([*others, missing]))
    if missing:  # a name among names
        assert missing in ds.with_labels(write(["x", "y", missing])).classes["label"]


def test_rows_without_a_name_are_of_no_file(three, tmp_path):
    """Spreadsheets save empty rows as commas."""
    ds, write = three
    for more in ([",", " , ", ","], [",7", ",8"]):
        assert ds.with_labels(write(["1", "2", "3"], more=more))[:]["label"].tolist() == [1, 2, 3]
    path = write_parquet(tmp_path / "t.parquet", id=["a", None, "b", None, "c"], y=range(5))
    assert ds.with_labels(path)[:]["label"].tolist() == [0, 2, 4]


def test_lists_with_empty_cells(three, tmp_path):
    """The error is one of ours."""
    ds, _ = three
    path = write_parquet(tmp_path / "t.parquet", id=list("abc"), y=[[1, 2], [None, 3], [4, 5]])
    with pytest.raises(ndfeed.SchemaError, match=r"t\.parquet: lists of column 'y' have empty"):
        ds.with_labels(path)


class Series:
    """What pandas has: values and their index."""

    def __init__(self, values, index):
        self.values, self.index = np.array(values, object), np.array(index)

    def __len__(self):
        return len(self.values)

    def __iter__(self):
        return iter(self.values)

    def __array__(self, dtype=None, copy=None):
        return self.values

    def to_dict(self):
        return dict(zip(self.index.tolist(), self.values.tolist(), strict=True))


def test_an_index_of_labels_is_not_ignored(three):
    """Labels would silently be those of other files."""
    ds, _ = three
    by_name = Series([10, 20, 30], ["c", "a", "b"])

    for values in ([10, 20, 30], ["x", "y", "z"]):
        for index in (["c", "a", "b"], [2, 0, 1], [3, 4, 5]):
            with pytest.raises(TypeError, match=r"pass labels.to_dict\(\) to match them"):
                ds.with_labels(Series(values, index))
    assert ds.with_labels(by_name.to_dict())[:]["label"].tolist() == [20, 30, 10]
    assert ds.with_labels(Series(["x", "y", "z"], range(3)))[:]["label"].tolist() == [0, 1, 2]
