"""Epochs of batches: the same for the same seed whatever makes them, and never changed later."""

import gc
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from children import examples, run
from hypothesis import given, settings
from hypothesis import strategies as st
from loader_contract import ArgumentContract, IteratorContract
from loading.making import (
    LARGE,
    MADE,
    assert_same,
    chained,
    compressed,
    doubled,
    epoch_of,
    eventually,
    large_rows,
    made,
    noisy,
    numbers,
    rows_of,
    threads,
)

import ndfeed
from ndfeed.loading.runtime import Runtime

pytestmark = pytest.mark.filterwarnings("ignore:.*Fortran")
each_dataset = pytest.mark.parametrize("name", MADE)


class TestArguments(ArgumentContract):
    pass


def cold(ds):
    """Have the system forget the files, as far as it lets go of them."""
    for path in ds.files:
        if os.path.exists(path):
            fd = os.open(path, os.O_RDONLY)
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


# The same seed, the same batches.


@each_dataset
@pytest.mark.parametrize("shuffle", [False, True])
def test_what_makes_batches_does_not_show_in_them(tmp_path, name, shuffle):
    """Threads, memory and a cold disk belong to the machine; batches to the data and the seed."""
    ds = made(tmp_path / "x", name)
    one_batch = max(-(-ds.nbytes * 5 // max(len(ds), 1)), 1)
    expected = epoch_of(ds, shuffle=shuffle, seed=7, threads=1)
    for options in (
        {"threads": 2},
        {"threads": 8},
        {"memory": one_batch, "threads": 2},
        {"memory": 3 * one_batch + 40},
        {},
    ):
        assert_same(epoch_of(ds, shuffle=shuffle, seed=7, **options), expected)
    cold(ds)

    assert_same(epoch_of(ds, shuffle=shuffle, seed=7), expected)


@each_dataset
def test_in_sequence_batches_are_what_the_dataset_reads(tmp_path, name):
    """The dataset is the oracle: rows 0 to 4, 5 to 9, and so on."""
    ds = made(tmp_path / "x", name)
    expected = [ds.read(np.arange(i, min(i + 5, len(ds)))) for i in range(0, len(ds), 5)]

    assert_same(epoch_of(ds), expected)


@each_dataset
@pytest.mark.parametrize("batch_size", [1, 4, 100])
def test_shuffled_batches_have_every_sample_once(tmp_path, name, batch_size):
    """Nothing lost, nothing twice; also where files are decoded whole, or views are permuted."""
    ds = made(tmp_path / "x", name)
    found = epoch_of(ds, batch_size, shuffle=True, seed=1)

    assert len(found) == -(-len(ds) // batch_size)
    for field in ds.fields:
        samples = [np.asarray(one).tobytes() for batch in found for one in batch[field]]
        expected = [np.asarray(one).tobytes() for one in ds[:][field]]
        assert sorted(samples) == sorted(expected)


@pytest.mark.parametrize("name", ["one npy", "many npy of rows", "an npy a sample", "in memory"])
def test_an_exact_shuffle_is_its_order(tmp_path, name):
    """Batch k holds positions k * size on, of the permutation for this seed and epoch."""
    ds = made(tmp_path / "x", name)
    with ndfeed.loader(ds, 7, shuffle=True, seed=5) as loader:
        assert loader.order == ndfeed.Exact()
        for epoch in range(2):
            rows = ndfeed.Exact().begin(len(ds), 5, epoch).rows(0, len(ds))
            for k, batch in enumerate(loader):
                assert_same(batch, ds.read(rows[7 * k : 7 * k + 7]))


@each_dataset
def test_batches_are_private_writable_contiguous_native(tmp_path, name):
    """Frameworks take them as they are, and transforms write to them."""
    ds = made(tmp_path / "x", name)
    for batch in epoch_of(ds, shuffle=True):
        for values in batch.values():
            for array in values if isinstance(values, list) else [values]:
                assert array.flags.c_contiguous
                assert array.flags.writeable
                assert array.dtype.isnative
                array[...] = 0

    first = epoch_of(ds, shuffle=True)
    assert any(np.any(v) for batch in first for vs in batch.values() for v in vs) or len(ds) < 2


@pytest.mark.parametrize("name", ["one npy", "many deflated npz of rows", "a selection"])
@pytest.mark.parametrize("function", [doubled, noisy])
def test_processes_make_the_same_batches_as_threads(tmp_path, name, function):
    """Where a map runs is for the machine to say, also for one that draws random numbers."""
    ds = made(tmp_path / "x", name).map(function)
    expected = epoch_of(ds, shuffle=True, seed=3, threads=1)

    assert_same(epoch_of(ds, shuffle=True, seed=3, processes=2), expected)
    assert_same(epoch_of(ds, shuffle=True, seed=3, processes=1, threads=4), expected)


def test_large_batches_through_processes_are_the_same(tmp_path):
    """These go through shared memory, small ones through a pipe."""
    ds = large_rows(tmp_path, 40).map(noisy)
    expected = epoch_of(ds, 8, shuffle=True, threads=1)

    assert_same(epoch_of(ds, 8, shuffle=True, processes=2), expected)


@pytest.mark.parametrize(
    "order", [ndfeed.Blocks(rows=4, window=2), ndfeed.Windows(files=2), ndfeed.Exact()], ids=str
)
@each_dataset
def test_any_order_goes_with_any_data(tmp_path, name, order):
    """An order object forces one, whatever the files would suggest."""
    ds = made(tmp_path / "x", name)
    found = epoch_of(ds, shuffle=order, seed=2, threads=2)
    field = next(iter(ds.fields))

    assert_same(epoch_of(ds, shuffle=order, seed=2, threads=1), found)
    samples = [np.asarray(one).tobytes() for batch in found for one in batch[field]]
    assert sorted(samples) == sorted(np.asarray(one).tobytes() for one in ds[:][field])


def test_seeds_and_epochs_differ(tmp_path):
    """A shuffle that is the same twice is none."""
    ds = numbers(tmp_path, 50)
    with ndfeed.loader(ds, 10, shuffle=True) as loader:
        epochs = [tuple(rows_of(loader)) for _ in range(3)]
    other = tuple(rows_of(epoch_of(ds, 10, shuffle=True, seed=1)))

    assert len({*epochs, other}) == 4
    assert all(sorted(rows) == list(range(50)) for rows in [*epochs, other])


def test_another_process_finds_the_same_order(tmp_path):
    """Nothing of the order hangs on a process: not hashes, not addresses."""
    ds = numbers(tmp_path, 30)
    code = """
    ds = ndfeed.open(args[0])
    for batch in ndfeed.loader(ds, 7, shuffle=True, seed=11):
        print(*batch["data"])
    """
    printed = run(code, tmp_path / "x.npy").split()

    assert list(map(int, printed)) == rows_of(epoch_of(ds, 7, shuffle=True, seed=11))


# Ranks, resume: through the loader itself, what tests/order holds for the arithmetic.


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    """Datasets of 0 to 40 rows, raw and compressed."""
    folder = tmp_path_factory.mktemp("sets")
    raw = numbers(folder, 40)
    (folder / "z").mkdir()
    for i in range(0, 40, 4):
        np.savez_compressed(folder / "z" / f"{i:02}.npz", data=np.arange(i, i + 4))
    return raw, ndfeed.open(folder / "z", sample="row")


shuffles = st.sampled_from(
    [False, True, ndfeed.Blocks(rows=3, window=2), ndfeed.Windows(files=2), ndfeed.Exact()]
)
worlds = st.integers(1, 4)
sizes = st.integers(1, 9)


def of_ranks(ds, size, world, state=None, take=None, **options):
    """Per rank the rows of every batch, up to ``take`` of them, and the state after that."""
    found, states = [], []
    for rank in range(world):
        with ndfeed.loader(ds, size, shard=(rank, world), **options) as loader:
            if state is not None:
                loader.load_state_dict(state)
            batches = iter(loader)
            own = [rows_of([b]) for _, b in zip(range(take or 10**9), batches, strict=False)]
            states.append(json.dumps(loader.state_dict()))
            found.append(own)
    return found, states


def together(ranks):
    """Global batches: those of all ranks, one behind the other."""
    return [chained(parts) for parts in zip(*ranks, strict=True)]


@given(
    n=st.integers(0, 40),
    size=sizes,
    world=worlds,
    drop_last=st.booleans(),
    shuffle=shuffles,
    coded=st.booleans(),
)
@settings(max_examples=examples(200))
def test_ranks_together_see_every_row_once(sets, n, size, world, drop_last, shuffle, coded):
    """No gap, no duplicate, and as many batches on every rank: else one waits for ever."""
    ds = sets[coded].take(slice(0, n))
    options = {"drop_last": drop_last, "shuffle": shuffle, "threads": 1}
    ranks, _ = of_ranks(ds, size, world, **options)
    alone, _ = of_ranks(ds, size * world, 1, **options)

    assert len({len(own) for own in ranks}) == 1
    assert together(ranks) == alone[0]
    every = chained(alone[0])
    if drop_last:
        assert all(len(batch) == size for own in ranks for batch in own)
        assert len(set(every)) == len(every) == n - n % (size * world)
    else:
        assert sorted(every) == list(range(n))


@given(
    n=st.integers(1, 40),
    size=sizes,
    world=worlds,
    other_size=sizes,
    other_world=worlds,
    drop_last=st.booleans(),
    shuffle=shuffles,
    coded=st.booleans(),
    taken=st.integers(0, 12),
    epoch=st.integers(0, 3),
)
@settings(max_examples=examples(200))
def test_what_is_left_is_exact_for_any_ranks(
    sets, n, size, world, other_size, other_world, drop_last, shuffle, coded, taken, epoch
):
    """Left at any batch, taken up by other ranks and batch sizes: the rest, in the same order."""
    ds = sets[coded].take(slice(0, n))
    options = {"shuffle": shuffle, "seed": 9, "threads": 1}
    start = {**ndfeed.loader(ds, 1, **options).state_dict(), "epoch": epoch}
    whole = chained(of_ranks(ds, 1, 1, start, **options)[0][0])
    take = min(taken, n // (size * world))
    had, states = of_ranks(ds, size, world, start, take, drop_last=drop_last, **options)
    assert len(set(states)) == 1
    if not take:
        states[0] = json.dumps(start)
        had = []
    done = chained(together(had))
    rest, _ = of_ranks(
        ds, other_size, other_world, json.loads(states[0]), drop_last=drop_last, **options
    )
    left = chained(together(rest))

    assert done == whole[: len(done)]
    assert left == whole[len(done) :][: len(left)]
    missing = n - len(done) - len(left)
    assert missing == ((n - len(done)) % (other_size * other_world) if drop_last else 0)
    assert len({len(own) for own in rest}) == 1


@pytest.mark.parametrize("shuffle", [True, False, ndfeed.Windows(files=2)], ids=str)
def test_a_kept_global_batch_size_keeps_global_batches(sets, shuffle):
    """From four ranks of 2 to two of 4, or one of 8: every optimiser step sees the same samples."""
    ds = sets[1]
    whole, _ = of_ranks(ds, 8, 1, shuffle=shuffle)
    had, states = of_ranks(ds, 2, 4, take=2, shuffle=shuffle)
    for size, world in [(8, 1), (4, 2), (1, 8)]:
        rest, _ = of_ranks(ds, size, world, json.loads(states[0]), shuffle=shuffle)

        assert together(had) + together(rest) == whole[0]


# Kept batches.


def test_kept_batches_never_change(tmp_path):
    """A thousand of them, of memory that would be used again if it could."""
    ds = numbers(tmp_path, 64, width=LARGE // 8 // 16)
    kept = []
    with ndfeed.loader(ds, 16, shuffle=True, memory="1MB", threads=2) as loader:
        while len(kept) < 1000:
            kept += list(loader)
        epochs = [ndfeed.Exact().begin(64, 0, e).rows(0, 64).tolist() for e in range(loader.epoch)]
    expected = chained(epochs)

    assert rows_of(kept) == expected
    assert all((batch["data"] == batch["data"][:, :1]).all() for batch in kept)


def test_a_kept_part_of_a_batch_never_changes(tmp_path):
    """A slice, and a tensor over one, hold the memory that they show."""
    torch = pytest.importorskip("torch")
    ds = numbers(tmp_path, 64, width=LARGE // 8 // 16)
    slices, tensors, copies = [], [], []
    with ndfeed.loader(ds, 16, shuffle=True, memory="1MB", threads=2) as loader:
        for _ in range(50):
            for batch in loader:
                part = batch["data"][3:5, ::7]
                copies.append(part.copy())
                slices.append(part)
                tensors.append(torch.from_numpy(batch["data"])[3:5, ::7])
                del batch, part

    for copied, part, tensor in zip(copies, slices, tensors, strict=True):
        np.testing.assert_array_equal(part, copied)
        np.testing.assert_array_equal(tensor.numpy(), copied)


def test_dropped_batches_give_their_memory_back(tmp_path):
    """New memory for every batch costs page faults: more than the copy itself."""
    ds = large_rows(tmp_path, 64)
    with ndfeed.loader(ds, 8, shuffle=True, threads=2, memory="2MB") as loader:
        for _ in range(20):
            for batch in loader:
                del batch

        assert loader.report().buffers <= loader.report().depth + 4


def test_a_kept_label_does_not_keep_images(tmp_path):
    """Labels are collected over an epoch to be scored; the images must not pile up behind them."""
    ds = large_rows(tmp_path, 64)
    labels = []
    with ndfeed.loader(ds, 8, threads=1, memory="2MB") as loader:
        for _ in range(10):
            for batch in loader:
                labels.append(batch["label"])
                del batch

        assert loader.report().buffers <= loader.report().depth + 4
    assert np.concatenate(labels).tolist() == list(range(64)) * 10


def test_batches_outlive_their_loader(tmp_path):
    """Kept by whoever has them, not by whoever made them."""
    kept = epoch_of(large_rows(tmp_path, 16), 8)
    gc.collect()

    assert rows_of(kept, "image") == list(range(16))


# Fields.


def test_fields_make_tuples_in_their_order(tmp_path):
    """What Keras and plain training loops take apart."""
    ds = large_rows(tmp_path, 6)
    batches = epoch_of(ds, 4, fields=("label", "image"))

    assert all(isinstance(batch, tuple) for batch in batches)
    assert [batch[0].tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5]]
    assert [batch[1].shape for batch in batches] == [(4, LARGE // 16), (2, LARGE // 16)]
    assert epoch_of(ds, 4, fields=["label"])[1][0].tolist() == [4, 5]


def test_fields_behind_a_map_are_what_it_makes(tmp_path):
    """Learned from the first sample, before an epoch is begun."""
    ds = numbers(tmp_path, 6).map(lambda b: {"sum": b["data"] + 1, "data": b["data"]})

    assert epoch_of(ds, 6, fields=("sum",))[0][0].tolist() == [1, 2, 3, 4, 5, 6]
    with pytest.raises(ndfeed.FieldError, match="no field 'x'; the fields are 'sum', 'data'"):
        ndfeed.loader(ds, 2, fields=("x",))


# Lengths, and numbers of epochs.


@pytest.mark.parametrize(
    ("n", "size", "drop", "count"),
    [(10, 3, False, 4), (10, 3, True, 3), (9, 3, True, 3), (2, 3, True, 0), (2, 3, False, 1)],
)
def test_len_is_the_batches_of_an_epoch(tmp_path, n, size, drop, count):
    """Progress bars and schedulers ask for it."""
    with ndfeed.loader(numbers(tmp_path, n), size, drop_last=drop) as loader:
        assert len(loader) == count
        assert len(list(loader)) == count


def test_a_batch_size_beyond_the_data_is_one_batch(tmp_path):
    """A common way to say “all of it”; memory need only hold what there is."""
    ds = numbers(tmp_path, 10, width=100)

    assert rows_of(epoch_of(ds, 10**9)) == list(range(10))
    assert rows_of(epoch_of(ds, 100, memory="20kB")) == list(range(10))


def test_numbers_of_numpy_are_numbers(tmp_path):
    """They come out of configurations, of shapes and of generators; states stay JSON."""
    ds = numbers(tmp_path, 10)
    options = {"seed": np.int64(3), "threads": np.int64(2), "memory": np.int64(1 << 20)}
    with ndfeed.loader(ds, np.int64(4), shard=(np.int64(1), np.int64(2))) as loader:
        next(iter(loader))
        assert json.loads(json.dumps(loader.state_dict()))["samples"] == 8

    assert_same(epoch_of(ds, 4, shuffle=True, **options), epoch_of(ds, 4, shuffle=True, seed=3))


def test_each_loop_is_the_next_epoch(tmp_path):
    """`for epoch in range(k): for batch in loader` needs no set_epoch."""
    ds = numbers(tmp_path, 20)
    with ndfeed.loader(ds, 6, shuffle=True) as loader:
        for epoch in range(3):
            assert loader.epoch == epoch
            for batch in loader:
                assert loader.epoch == epoch
                assert len(batch["data"])
            assert loader.epoch == epoch + 1


def test_an_epoch_left_early_counts_as_begun(tmp_path):
    """The next loop goes on with the next one: no sample is seen twice in the same place."""
    ds = numbers(tmp_path, 20)
    with ndfeed.loader(ds, 6, shuffle=True) as loader:
        for _ in loader:
            break
        assert loader.epoch == 0
        second = rows_of(loader)
        assert loader.epoch == 2

    assert second == ndfeed.Exact().begin(20, 0, 1).rows(0, 20).tolist()


def test_the_epoch_can_be_set(tmp_path):
    """For those who count epochs themselves; the same one twice is the same order twice."""
    ds = numbers(tmp_path, 20)
    with ndfeed.loader(ds, 6, shuffle=True) as loader:
        loader.epoch = 5
        fifth = rows_of(loader)
        assert loader.epoch == 6
        loader.epoch = 5
        assert rows_of(loader) == fifth
        for _ in loader:
            break
        loader.epoch = 5
        assert rows_of(loader) == fifth

    assert fifth == ndfeed.Exact().begin(20, 0, 5).rows(0, 20).tolist()


@pytest.mark.parametrize("epoch", [-1, 1.0, "1", None, True])
def test_an_epoch_is_a_whole_number(tmp_path, epoch):
    """Said where it is set."""
    loader = ndfeed.loader(numbers(tmp_path, 4), 2)
    with pytest.raises((TypeError, ValueError), match="epoch must be"):
        loader.epoch = epoch


def test_an_epoch_set_inside_a_pass_comes_next(tmp_path):
    """Setting it says which one comes next, whole, whether the pass is left or finished."""
    ds = numbers(tmp_path, 20)
    fifth = ndfeed.Exact().begin(20, 0, 5).rows(0, 20).tolist()
    with ndfeed.loader(ds, 6, shuffle=True) as loader:
        batches = iter(loader)
        next(batches)
        loader.epoch = 5
        next(batches)
        del batches
        assert rows_of(loader) == fifth
    with ndfeed.loader(ds, 6, shuffle=True) as loader:
        for number, _ in enumerate(loader):
            if number == 1:
                loader.epoch = 5
        assert rows_of(loader) == fifth


def test_passes_in_several_threads_are_independent(tmp_path, monkeypatch):
    """TensorFlow runs each in a thread of its own: none may get what another is about to end."""
    end = Runtime.end

    def end_slowly(runtime):
        time.sleep(0.002)
        end(runtime)

    monkeypatch.setattr(Runtime, "end", end_slowly)
    with ndfeed.loader(numbers(tmp_path, 12), 4, threads=1) as loader:

        def read(_):
            return [rows_of(loader.at(0)) for _ in range(10)]

        with ThreadPoolExecutor(6) as pool:
            found = [rows for passes in pool.map(read, range(6)) for rows in passes]

    assert found == [list(range(12))] * 60


def test_a_share_that_changes_changes_the_files_that_are_decoded(tmp_path):
    """As where ranks are known only after the loader was made."""
    for i in range(8):
        np.savez_compressed(tmp_path / f"{i}.npz", data=np.arange(4) + 4 * i)
    ds = ndfeed.open(tmp_path, sample="row")
    order = ndfeed.Windows(files=2, ranks=4)
    late = ndfeed.loader(ds, 2, shuffle=order)
    next(iter(late))
    late.share = replace(late.share, rank=1, world=4)
    late.epoch = 0
    early = ndfeed.loader(ds, 2, shuffle=order, shard=(1, 4))

    assert rows_of(late) == rows_of(early)
    lanes = [one._setup.plan.lanes for one in (late, early, ndfeed.loader(ds, 2, shuffle=order))]
    assert lanes[0] == lanes[1] != lanes[2]


def test_threads_of_passes_end_with_them(tmp_path):
    """Each pass under way has some; behind them those of one rest, as behind any loop."""
    with ndfeed.loader(numbers(tmp_path, 400, width=8), 4, threads=2, memory="4KB") as loader:
        first, second = iter(loader), iter(loader)
        next(first), next(second)
        assert len(threads()) == 4
        del first
        assert eventually(lambda: len(threads()) == 2)
        assert len(list(second)) == 99
        assert sum(1 for _ in zip(loader, loader, strict=True)) == 100
        assert eventually(lambda: len(threads()) == 2)
        third = iter(loader)
        next(third), next(iter(loader))
        loader.close()
        with pytest.raises(RuntimeError, match="the loader was closed"):
            next(third)

    assert not threads()


class TestIterators(IteratorContract):
    """Of arrays."""


def test_a_pass_stays_at_its_end(tmp_path):
    """As iterators must."""
    with ndfeed.loader(numbers(tmp_path, 4), 4) as loader:
        batches = iter(loader)
        next(batches)
        for _ in range(3):
            with pytest.raises(StopIteration):
                next(batches)
        assert loader.epoch == 1
        assert iter(batches) is batches


@pytest.mark.parametrize("shuffle", [True, False, ndfeed.Blocks(), ndfeed.Windows()], ids=str)
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_nothing_to_read_is_an_epoch_of_no_batches(tmp_path, save, shuffle):
    """An empty split is legal, as are files without rows, and so are several epochs of them."""
    for rows in (0, 4):
        save(tmp_path / f"{rows}.npz", data=np.arange(rows))
    split = ndfeed.open(tmp_path / "4.npz", sample="row").take([])
    for ds in (split, ndfeed.open(tmp_path / "0.npz", sample="row")):
        with ndfeed.loader(ds, 4, shuffle=shuffle) as loader:
            assert [list(loader) for _ in range(3)] == [[], [], []]
            assert loader.epoch == 3
            assert len(loader) == 0


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("fields", [None, ("data",)])
def test_a_rank_without_samples_gets_an_empty_batch(tmp_path, batched, fields):
    """One sample for three ranks: all get a batch, of the same fields, types and shapes."""
    ds = numbers(tmp_path, 1, width=3).map(doubled, batched=batched)
    for rank in range(3):
        (batch,) = epoch_of(ds, 2, shard=(rank, 3), fields=fields)
        found = batch["data"] if fields is None else batch[0]

        assert found.shape == (int(rank == 0), 3)
        assert found.dtype == np.int64


# Compressed files of many rows.


def test_shuffling_compressed_rows_is_a_window_over_files(tmp_path):
    """Rows inside cannot be read alone; `order` says so, and two files are mixed at least."""
    ds, _ = compressed(tmp_path, files=6, rows=10)
    with ndfeed.loader(ds, 5, shuffle=True) as loader:
        assert isinstance(loader.order, ndfeed.Windows)
        assert "indows" in repr(loader)


@pytest.mark.parametrize("shuffle", [True, False, ndfeed.Windows(files=3)], ids=str)
@pytest.mark.parametrize("threads", [1, 4])
def test_a_stream_is_inflated_once_an_epoch(tmp_path, shuffle, threads):
    """Two members a file, ten files: twenty, whatever number of threads wants them."""
    ds, data = compressed(tmp_path, files=10, rows=40)
    with ndfeed.loader(ds, 7, shuffle=shuffle, threads=threads) as loader:
        found = np.concatenate([batch["x"][np.argsort(batch["n"])] for batch in loader])

        assert loader.report().streams == 20
    assert sorted(map(bytes, found)) == sorted(map(bytes, data))


def test_compressed_data_larger_than_memory_stays_within_it(tmp_path):
    """Files are let go once the window has passed them, and still inflated once each."""
    ds, data = compressed(tmp_path, files=20, rows=50, width=2000)  # 100 kB a file
    rows, order = [], ndfeed.Windows(files=3)
    with ndfeed.loader(ds, 10, shuffle=order, threads=2, memory="1MB") as loader:
        for batch in loader:
            assert loader.report().decoded <= 1_000_000
            np.testing.assert_array_equal(batch["x"], data[batch["n"]])
            rows += batch["n"].tolist()

        assert loader.report().streams == 40
    assert sorted(rows) == list(range(1000))


@pytest.mark.parametrize("shuffle", [True, ndfeed.Exact(), False], ids=str)
def test_memory_for_one_batch_is_enough(tmp_path, shuffle):
    """Slow, since files are inflated again and again, but right."""
    ds, data = compressed(tmp_path, files=8, rows=10, width=100)
    rows = []
    for batch in epoch_of(ds, 10, shuffle=shuffle, threads=2, memory=10 * 108):
        np.testing.assert_array_equal(batch["x"], data[batch["n"]])
        rows += batch["n"].tolist()

    assert sorted(rows) == list(range(80))


def test_resuming_inside_a_window_inflates_what_is_left(tmp_path):
    """Files that the window has passed are not touched again."""
    ds, _ = compressed(tmp_path, files=10, rows=20)
    order = ndfeed.Windows(files=2)
    with ndfeed.loader(ds, 10, shuffle=order) as loader:
        whole = list(loader)
    with ndfeed.loader(ds, 10, shuffle=order) as loader:
        loader.load_state_dict({**loader.state_dict(), "samples": 150})
        assert_same(list(loader), whole[15:])

        assert loader.report().streams <= 2 * 5
