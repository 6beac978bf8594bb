"""What goes wrong in a batch is raised at that batch with the file or row named, or left out."""

import os
import threading

import numpy as np
import pytest
from loading.making import (
    assert_same,
    chained,
    collect,
    compressed,
    damaged,
    doubled,
    epoch_of,
    eventually,
    large_rows,
    numbers,
    rows_of,
    threads,
)

import ndfeed

each_count = pytest.mark.parametrize("count", [1, 4], ids=["1 thread", "4 threads"])


def images(folder, n=24, compress=True):
    """A file a sample, each with its number."""
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    save = np.savez_compressed if compress else np.savez
    for i in range(n):
        save(folder / f"{i:03}.npz", image=rng.integers(0, 9, 300), data=np.full(4, i))
    return ndfeed.open(folder, sample="file")


# Errors of maps.


@each_count
@pytest.mark.parametrize("batch_size", [1, 5])
@pytest.mark.parametrize("bad", [0, 13, 39])
def test_an_error_of_a_map_is_raised_after_all_good_batches(tmp_path, count, batch_size, bad):
    """Batches before it are delivered, whichever was ready first; the rows are named."""

    def fails(batch):
        if bad in batch["data"]:
            raise LookupError("what is this")
        return batch

    ds = numbers(tmp_path, 40).map(fails)
    with ndfeed.loader(ds, batch_size, threads=count) as loader:
        good = []
        with pytest.raises(LookupError, match="what is this") as caught:
            collect(loader, good)
        assert loader.state_dict()["samples"] == len(good)

    first = bad // batch_size * batch_size
    assert good == list(range(first))
    rows = ", ".join(map(str, range(first, first + batch_size)))
    assert caught.value.__notes__ == [f"in map, in the batch of rows {rows}"]


def test_the_loader_goes_on_after_an_error(tmp_path):
    """With the next epoch, whole."""
    broken = [True]

    def fails(batch):
        if broken[0] and 13 in batch["data"]:
            raise LookupError("what is this")
        return batch

    with ndfeed.loader(numbers(tmp_path, 40).map(fails), 5, threads=2) as loader:
        for _ in range(3):
            with pytest.raises(LookupError, match="what is this"):
                list(loader)
            assert eventually(lambda: not threads())
        broken[0] = False

        assert rows_of(loader) == list(range(40))
        assert loader.epoch == 4


def test_an_error_for_one_sample_names_its_row(tmp_path):
    """The dataset's row, whatever the order of the epoch."""

    def fails(sample):
        if sample["data"] == 17:
            raise LookupError("what is this")
        return sample

    ds = numbers(tmp_path, 40).map(fails, batched=False)
    with (
        ndfeed.loader(ds, 5, shuffle=True) as loader,
        pytest.raises(LookupError, match="what is this") as caught,
    ):
        list(loader)

    assert "in map, at row 17" in caught.value.__notes__


@pytest.mark.parametrize("processes", [0, 1])
def test_an_error_for_one_sample_keeps_its_causes(tmp_path, processes):
    """What the function raised, from what: nothing of ours stands between."""

    def fails(sample):
        try:
            return {"data": {}[int(sample["data"])]}
        except KeyError as missing:
            raise LookupError("what is this") from missing

    ds = numbers(tmp_path, 8).map(fails, batched=False)
    with (
        ndfeed.loader(ds, 4, processes=processes) as loader,
        pytest.raises(LookupError, match="what is this") as caught,
    ):
        list(loader)
    with pytest.raises(LookupError, match="what is this") as alone:
        ds.read([2])

    assert vars(caught.value).keys() <= {"__notes__"}
    assert isinstance(alone.value.__cause__, KeyError)
    assert alone.value.__context__ is alone.value.__cause__
    if not processes:  # pickling an error loses its cause; the note has its traceback
        assert isinstance(caught.value.__cause__, KeyError)
        assert caught.value.__context__ is caught.value.__cause__


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit, StopIteration])
def test_unusual_errors_of_a_map_reach_the_consumer(tmp_path, error):
    """sys.exit() in a library's function ends no thread in silence, and no epoch early."""

    def fails(batch):
        if 13 in batch["data"]:
            raise error
        return batch

    with ndfeed.loader(numbers(tmp_path, 40).map(fails), 5, threads=2) as loader:
        batches = iter(loader)
        good = [next(batches) for _ in range(2)]
        assert rows_of(good) == list(range(10))
        with pytest.raises((error, RuntimeError), match=r"Stop|^$"):
            next(batches)
    assert loader.state_dict()["samples"] == 10


def test_a_map_that_ends_an_iteration_does_not_end_the_epoch_in_silence(tmp_path):
    """next() on something that is used up, inside a map: half an epoch would look like a whole."""
    ds = numbers(tmp_path, 40).map(lambda b: {"data": b["data"] + next(iter(()))})
    with ndfeed.loader(ds, 5) as loader, pytest.raises(RuntimeError, match="StopIteration"):
        list(loader)


@pytest.mark.parametrize(
    ("function", "error", "match"),
    [
        (lambda b: None, TypeError, "must return a dict of arrays, got NoneType"),
        (lambda b: b["data"], TypeError, "must return a dict of arrays, got ndarray"),
        (lambda b: {"data": b["data"][1:]}, ValueError, "each of 5 samples; 'data' has 4"),
        (lambda b: {"n": 5}, ValueError, "each of 5 samples; 'n' has one for all"),
        (lambda b: {"n": "hello"}, ValueError, "each of 5 samples; 'n' has"),
    ],
)
@pytest.mark.parametrize("processes", [0, 1])
def test_a_map_that_returns_something_else_is_told(tmp_path, function, error, match, processes):
    """At the batch, with the rows."""
    with (
        ndfeed.loader(numbers(tmp_path, 40).map(function), 5, processes=processes) as loader,
        pytest.raises(error, match=match) as caught,
    ):
        next(iter(loader))

    assert any("rows 0, 1, 2, 3, 4" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("batch_size", [3, 16])
def test_maps_may_change_their_input_and_return_views_of_it(tmp_path, batch_size):
    """Small batches are read together and cut: what one map does must not show in another's."""

    def changes(batch):
        batch["image"] *= 2
        batch["image"][:, 0] = batch["label"]
        return {"image": batch["image"][:, ::-1], "label": batch["label"][:]}

    for size in (40, 40_000):
        ds = large_rows(tmp_path / str(size), 32, size=size)
        for batch in epoch_of(ds.map(changes), batch_size, shuffle=True, threads=2):
            assert (batch["image"][:, :-1] == 2 * batch["label"][:, None]).all()
            assert (batch["image"][:, -1] == batch["label"]).all()


def test_several_maps_compose_as_in_the_dataset(tmp_path):
    """Batched and not, with a selection in between."""
    ds = large_rows(tmp_path, 20, size=40).map(doubled)
    ds = ds.map(lambda s: {"sum": s["image"].sum(), "label": s["label"]}, batched=False)
    ds = ds.select("sum").map(lambda b: {"sum": b["sum"] + 1})

    assert_same(epoch_of(ds, 6), [ds[i : min(i + 6, 20)] for i in range(0, 20, 6)])


# A batch that is ready is not held back.


@pytest.mark.parametrize("count", [1, 2])
def test_a_ready_batch_is_delivered_while_a_later_one_is_made(tmp_path, count):
    """Small batches are made several at a time; a slow map on one must not hold the others."""
    received = threading.Event()
    in_time = []

    def waits(batch):
        if batch["data"][0] == 10:
            in_time.append(received.wait(60))
        return batch

    with ndfeed.loader(numbers(tmp_path, 40).map(waits), 1, threads=count) as loader:
        for batch in loader:
            if batch["data"][0] == 5:
                received.set()

    assert in_time == [True]


# Damaged files.


def truncate(path):
    path.write_bytes(path.read_bytes()[:-10])


def rewrite(path):
    np.savez(path, image=np.zeros(300, int), data=np.zeros(4, int))


KINDS = {
    "damaged": (damaged, ndfeed.FormatError),
    "cut short": (truncate, ndfeed.ChangedError),
    "deleted": (lambda path: path.unlink(), ndfeed.MissingError),
    "changed": (rewrite, ndfeed.ChangedError),
    "a folder": (lambda path: (path.unlink(), path.mkdir()), ndfeed.Error),
}


def opened_again(ds, kind="damaged"):
    """What is damaged was so before it was indexed: writing to it afterwards would be a change."""
    if kind != "damaged":
        return ds
    sample = "file" if len(ds) == len(ds.files) else "row"
    return ndfeed.open([*ds.files], sample=sample, cache=False)


each_damage = pytest.mark.parametrize("kind", KINDS)


@each_damage
@each_count
@pytest.mark.parametrize("batch_size", [1, 4])
def test_a_bad_file_is_an_error_at_its_batch(tmp_path, kind, count, batch_size):
    """Not earlier, though it was asked for ahead with others; the error names the file."""
    ds = images(tmp_path / "x")
    bad = tmp_path / "x" / "013.npz"
    spoil, error = KINDS[kind]
    spoil(bad)
    ds = opened_again(ds, kind)
    with ndfeed.loader(ds, batch_size, threads=count) as loader:
        good = []
        with pytest.raises(error, match=r"013\.npz") as caught:
            collect(loader, good)
        assert eventually(lambda: not threads())

    assert caught.value.path == str(bad)
    assert good == list(range(13 // batch_size * batch_size))


@each_damage
@each_count
def test_a_bad_file_of_many_rows_is_an_error_at_its_batch(tmp_path, kind, count):
    """Decoded long before its batch comes; whoever decodes it says nothing until then."""
    ds, _ = compressed(tmp_path / "x", files=6, rows=10, width=100)
    spoil, error = KINDS[kind]
    spoil(tmp_path / "x" / "003.npz")
    ds = opened_again(ds, kind)
    with ndfeed.loader(ds, 4, threads=count) as loader:
        good = []
        with pytest.raises(error, match=r"003\.npz"):
            collect(loader, good, "n")

    assert good == list(range(28))


@each_damage
@each_count
def test_skip_leaves_out_what_cannot_be_read(tmp_path, kind, count):
    """Exactly that, in place; counted and listed with the reason."""
    ds = images(tmp_path / "x")
    for bad in (3, 13, 14):
        KINDS[kind][0](tmp_path / "x" / f"{bad:03}.npz")
    ds = opened_again(ds, kind)
    with ndfeed.loader(ds, 4, threads=count, on_error="skip") as loader:
        batches = list(loader)
        assert len(batches) == len(loader) == 6
        assert loader.report().skipped == 3
        skipped = sorted(loader.skipped)
        text = str(loader)

    assert [rows_of([batch]) for batch in batches] == [
        [0, 1, 2],
        [4, 5, 6, 7],
        [8, 9, 10, 11],
        [12, 15],
        [16, 17, 18, 19],
        [20, 21, 22, 23],
    ]
    assert [row for row, _ in skipped] == [3, 13, 14]
    assert all(f"{row:03}.npz" in words for row, words in skipped)
    assert "3 samples skipped" in text


@pytest.mark.parametrize("fields", [None, "x", ("x", "x")])
def test_the_first_sample_may_be_one_to_skip(fields):
    """Fields that were asked for are looked up in what the map makes of it, if it makes any."""

    def refuse_first(sample):
        if sample["x"] == 0:
            raise ValueError("bad")
        return sample

    ds = ndfeed.open({"x": np.arange(5)}).map(refuse_first, batched=False)
    with ndfeed.loader(ds, 3, fields=fields, on_error="skip") as loader:
        found = [batch["x"] if fields is None else batch for batch in loader]
    arrays = [one[0] if isinstance(one, tuple) else one for one in found]
    assert np.concatenate(arrays).tolist() == [1, 2, 3, 4]


def test_skip_leaves_out_all_rows_of_a_bad_file(tmp_path):
    """Rows compressed together are lost together; the others of their batches are not."""
    ds, data = compressed(tmp_path / "x", files=6, rows=10, width=100)
    damaged(tmp_path / "x" / "003.npz")
    ds = opened_again(ds)
    with ndfeed.loader(ds, 7, shuffle=True, threads=2, on_error="skip") as loader:
        batches = list(loader)
        assert sorted(row for row, _ in loader.skipped) == list(range(30, 40))

    assert len(batches) == 9
    found = np.concatenate([batch["n"] for batch in batches])
    assert sorted(found.tolist()) == [*range(30), *range(40, 60)]
    for batch in batches:
        np.testing.assert_array_equal(batch["x"], data[batch["n"]])


def test_skip_gives_every_rank_as_many_batches(tmp_path):
    """A rank with a bad file gets smaller batches, not fewer: else the others wait for ever."""
    ds = images(tmp_path / "x")
    for bad in (0, 1, 2, 3):
        damaged(tmp_path / "x" / f"{bad:03}.npz")
    ds = opened_again(ds)
    ranks = [epoch_of(ds, 4, shard=(rank, 3), on_error="skip") for rank in range(3)]

    assert [len(batches) for batches in ranks] == [2, 2, 2]
    assert ranks[0][0]["data"].shape == (0, 4)
    assert sorted(chained(map(rows_of, ranks))) == list(range(4, 24))


def test_skip_keeps_generators_where_they_were(tmp_path):
    """A sample's random numbers hang on its position, not on which others were left out."""

    def noisy(sample, rng):
        return {"data": sample["data"], "noise": rng.integers(0, 1 << 60)}

    plain = images(tmp_path / "x")
    ds = plain.map(noisy, batched=False)
    whole = {int(d[0]): n for b in epoch_of(ds, 5) for d, n in zip(*b.values(), strict=True)}
    damaged(tmp_path / "x" / "011.npz")
    ds = opened_again(plain).map(noisy, batched=False)
    for batch in epoch_of(ds, 5, on_error="skip"):
        for data, noise in zip(batch["data"], batch["noise"], strict=True):
            assert noise == whole.pop(int(data[0]))

    assert list(whole) == [11]


def fails_for(bad, error=ValueError):
    def fails(sample):
        if int(np.ravel(sample["data"])[0]) in bad:
            raise error("not this one")
        return sample

    return fails


@each_count
@pytest.mark.parametrize("bad", [{7}, {0, 1, 2, 3, 4}, {4, 5, 11}, set(range(12))], ids=str)
def test_skip_leaves_out_samples_that_a_map_refuses(tmp_path, count, bad):
    """Functions of single samples say by an error that a sample is no good."""
    ds = numbers(tmp_path, 12, width=2).map(fails_for(bad), batched=False)
    with ndfeed.loader(ds, 5, on_error="skip", threads=count) as loader:
        batches = list(loader)

        assert len(batches) == 3
        assert sorted(row for row, _ in loader.skipped) == sorted(bad)
    assert rows_of(batches) == [row for row in range(12) if row not in bad]
    assert all(batch["data"].shape[1:] == (2,) for batch in batches)


def test_skip_leaves_out_samples_that_a_map_refuses_with_one_of_our_errors(tmp_path):
    """A map that reads another dataset meets that one's bad files."""

    class Refused(ndfeed.Error):
        pass

    ds = numbers(tmp_path, 12).map(fails_for({7}, Refused), batched=False)
    with ndfeed.loader(ds, 5, on_error="skip") as loader:
        assert rows_of(loader) == [row for row in range(12) if row != 7]


def test_skip_leaves_out_the_right_sample_when_an_error_is_raised_again(tmp_path):
    """Some libraries raise one and the same error object every time."""
    same = ValueError("not this one")

    def fails(sample):
        if sample["data"] in (1, 8, 11):
            raise same
        return sample

    ds = numbers(tmp_path, 12).map(fails, batched=False)
    with ndfeed.loader(ds, 5, on_error="skip", threads=1) as loader:
        assert rows_of(loader) == [0, 2, 3, 4, 5, 6, 7, 9, 10]
        assert [row for row, _ in loader.skipped] == [1, 8, 11]


def test_skip_does_not_hide_errors_of_whole_batches(tmp_path):
    """Which sample was to blame nobody can tell."""
    ds = numbers(tmp_path, 12).map(lambda b: {"data": b["data"] / b["nothing"]})
    with ndfeed.loader(ds, 5, on_error="skip") as loader, pytest.raises(KeyError, match="nothing"):
        list(loader)


def test_skip_without_anything_bad_changes_nothing(tmp_path):
    """The same batches, and an empty list."""
    ds = images(tmp_path / "x")
    with ndfeed.loader(ds, 5, shuffle=True, on_error="skip") as loader:
        assert loader.skipped == ()
        assert_same(list(loader), epoch_of(ds, 5, shuffle=True))
        assert loader.skipped == ()
        assert loader.report().skipped == 0


def test_the_list_of_what_was_skipped_is_bounded(tmp_path):
    """A thousand are listed, all are counted: a broken disk must not fill memory."""
    ds = numbers(tmp_path, 1500).map(fails_for(set(range(1400))), batched=False)
    with ndfeed.loader(ds, 100, on_error="skip", threads=4) as loader:
        assert rows_of(loader) == list(range(1400, 1500))
        assert len(loader.skipped) == 1000
        assert loader.report().skipped == 1400


def test_an_error_is_not_changed_by_being_raised_in_two_epochs(tmp_path):
    """Notes belong to their batch: the same error object must not collect them for ever."""
    ds = images(tmp_path / "x")
    os.remove(tmp_path / "x" / "002.npz")
    with ndfeed.loader(ds, 5) as loader:
        for _ in range(3):
            with pytest.raises(ndfeed.MissingError, match=r"002\.npz") as caught:
                list(loader)

            assert len(getattr(caught.value, "__notes__", ())) <= 1
