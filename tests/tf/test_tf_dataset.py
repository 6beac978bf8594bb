"""``ndfeed.tf.dataset``: the batches of a loader, as TensorFlow has them."""

import gc
import itertools
import os
import weakref

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from growing import expected, write  # noqa: E402
from hypothesis import example, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from loader_contract import SHARES, ArgumentContract, EpochContract, Feed  # noqa: E402
from loading.making import (  # noqa: E402
    MADE,
    chained,
    compressed,
    eventually,
    images,
    labels,
    made,
    numbers,
    ragged,
    threads,
)
from tf_making import as_arrays, recorder, run, run_imported, same  # noqa: E402

import ndfeed  # noqa: E402
import ndfeed.tf  # noqa: E402
from ndfeed.tf.batch_format import BatchFormat  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.*Fortran")


@pytest.fixture(scope="module")
def ds(tmp_path_factory):
    return images(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="module", params=["several in a piece", "one by one"])
def handed_over(request, tmp_path_factory):
    """Images, and the memory with which their batches are handed to TensorFlow in that way."""
    shape = (80, 80, 3) if request.param == "one by one" else (4, 4, 3)
    return images(tmp_path_factory.mktemp("images"), shape=shape), "2MB"


class TestArguments(ArgumentContract):
    make = staticmethod(ndfeed.tf.dataset)
    listed = tuple  # TensorFlow takes a list for a tensor


class TfFeed(Feed):
    """A dataset with a ``State``, which the loop advances after each batch."""

    make = staticmethod(ndfeed.tf.dataset)

    def __init__(self, ds, batch_size, state=None, **arguments):
        self.state = ndfeed.tf.State()
        if state is not None:
            self.state.load_state_dict(state)
        self.arguments = ds, batch_size, arguments
        self.data = ndfeed.tf.dataset(ds, batch_size, state=self.state, **arguments)

    def __iter__(self):
        """Without a ``State``, which has a single position: that of the loop that counts."""
        if self.state is not None:
            ds, batch_size, arguments = self.arguments
            self.state, self.data = None, ndfeed.tf.dataset(ds, batch_size, **arguments)
        return iter(self.data)

    def epoch(self):
        return self.begin(None)[0]

    def begin(self, count):
        seen = []
        for batch in itertools.islice(self.data, count):
            seen.append(batch)
            self.state.advance()
        return seen, self.state.state_dict()

    def close(self):
        """A ``tf.data.Dataset`` ends with the last reference to it."""
        del self.data


class TestEpochs(EpochContract):
    feed = TfFeed
    package = ndfeed.tf
    errors = (tf.errors.OpError,)
    more = ("epochs", "state", "context")


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("name", MADE)
def test_batches_are_those_of_the_loader(tmp_path, name, shuffle):
    """Whatever the files are like: one order, one set of values, three epochs of them."""
    ds = made(tmp_path / "x", name)
    expected = ndfeed.loader(ds, 7, shuffle=shuffle, seed=2, ragged="pad")
    found = ndfeed.tf.dataset(ds, 7, shuffle=shuffle, seed=2, ragged="pad")

    for _ in range(3):
        same(found, expected)


@settings(max_examples=20)
@example(n=7, size=1, world=2, drop_last=False, epochs=2)  # an empty batch behind full ones
@given(**SHARES, epochs=st.integers(1, 3))
def test_any_size_any_rank_any_number_of_epochs(
    tmp_path_factory, n, size, world, drop_last, epochs
):
    """Short last batches, empty ones, ranks, chains: as the loader has them, and all counted."""
    ds = numbers(tmp_path_factory.mktemp("n"), n)
    for rank in range(world):
        words = {"shuffle": True, "shard": (rank, world), "drop_last": drop_last}
        loader = ndfeed.loader(ds, size, **words)
        found = ndfeed.tf.dataset(ds, size, epochs=epochs, **words)

        expected = [batch for _ in range(epochs) for batch in loader]
        assert found.cardinality() == len(expected)
        same(found, expected)


def test_element_spec_is_whole(ds):
    """Models are built by it: only what cannot be known is left open."""
    spec = {
        "image": tf.TensorSpec((None, 4, 4, 3), tf.uint8),
        "label": tf.TensorSpec((None,), tf.int64),
    }
    full = (tf.TensorSpec((25,), tf.int64), tf.TensorSpec((25, 4, 4, 3), tf.uint8))

    assert ndfeed.tf.dataset(ds, 32).element_spec == spec
    assert ndfeed.tf.dataset(ds, 25, fields=("label", "image")).element_spec == full
    dropped = ndfeed.tf.dataset(ds, 32, drop_last=True, fields=("label",))
    assert dropped.element_spec == (tf.TensorSpec((32,), tf.int64),)


def test_it_is_a_real_dataset_that_can_be_gone_on_with(ds):
    """Preprocessing in TensorFlow, behind ours: the number of batches stays known."""
    data = ndfeed.tf.dataset(ds, 10, fields=("image", "label"))
    doubled = data.map(lambda image, label: (tf.cast(image, tf.float32) / 255, 2 * label))

    assert isinstance(data, tf.data.Dataset)
    assert len(doubled) == 10
    assert [int(v) for _, label in doubled for v in label] == [2 * i for i in range(100)]


def test_maps_of_numpy_run_as_in_the_loader(ds):
    """With the same draws."""
    noisy = ds.map(
        lambda batch, rng: {"label": batch["label"], "z": rng.random(len(batch["label"]))}
    )

    same(ndfeed.tf.dataset(noisy, 8, shuffle=True), ndfeed.loader(noisy, 8, shuffle=True))
    assert ndfeed.tf.dataset(noisy, 8).element_spec["z"] == tf.TensorSpec((None,), tf.float64)


@pytest.mark.parametrize("size", [8, 33])
def test_maps_may_return_tensors(ds, size):
    """TensorFlow's own, or those of any framework that NumPy can look at."""
    mapped = ds.map(
        lambda batch: {
            "x": tf.cast(batch["label"], tf.float32)[:, None] * tf.ones((1, 12)),
            "label": batch["label"],
        }
    )
    data = ndfeed.tf.dataset(mapped, size, shuffle=True)

    assert data.element_spec["x"] == tf.TensorSpec((None, 12), tf.float32)
    for batch in data:
        np.testing.assert_array_equal(batch["x"][:, 3], batch["label"])


def scattered(batch, rng):
    n = len(batch["label"])
    return {"label": batch["label"], "z": rng.random((n, 3)), "by": np.full(n, os.getpid())}


@pytest.mark.parametrize("size", [8, 33])
def test_maps_run_in_processes(ds, size):
    """Not in this one; with what they draw, whether their batches are joined or not."""
    mapped = ds.map(scattered)
    data = ndfeed.tf.dataset(mapped, size, shuffle=True, processes=2, memory="10KB")
    loader = ndfeed.loader(mapped.select("label", "z"), size, shuffle=True)

    for _ in range(2):
        found = [as_arrays(batch) for batch in data]
        assert os.getpid() not in chained([batch.pop("by") for batch in found])
        same(found, loader)


def test_small_batches_of_maps_are_handed_over_together(tmp_path):
    """Of any size, also where a last one is short: as the loader has them."""
    mapped = numbers(tmp_path, 1001).map(lambda batch: {"x": batch["data"] / 2})
    for epochs, drop_last in [(1, False), (2, False), (2, True)]:
        words = {"shuffle": True, "drop_last": drop_last}
        loader = ndfeed.loader(mapped, 4, **words)
        data = ndfeed.tf.dataset(mapped, 4, epochs=epochs, **words)

        same(data, [batch for _ in range(epochs) for batch in loader])
        options = data.passes.loader.request.options
        full = bool(drop_last)
        form = BatchFormat(mapped, options, "ragged", 4, full=full, joint=True)
        given = list(data.passes.arrays(form))
        assert len(given) < len(loader)


def test_the_next_epoch_is_made_while_one_is_used(ds):
    """Nobody waits for threads to begin anew: what comes first is there already."""
    for epochs in (1, 2):
        data = ndfeed.tf.dataset(ds, 10, shuffle=True, epochs=epochs)
        batches = iter(data)
        for _ in range(10):
            next(batches)
        runtime = data.passes.loader._runtimes.every[0]

        assert eventually(lambda runtime=runtime: runtime.timing().batches >= 20)


def test_it_works_inside_a_tf_function(ds):
    """Where the loop itself is in the graph."""
    data = ndfeed.tf.dataset(ds, 8, shuffle=True)

    @tf.function
    def total(data):
        found = tf.constant(0, tf.int64)
        for batch in data:
            found += tf.reduce_sum(batch["label"])
        return found

    assert total(data) == total(data) == 4950


def test_fit_sees_other_epochs_each_with_all_rows(ds):
    """``model.fit(data, epochs=3)``: every epoch whole, none like another."""
    data = ndfeed.tf.dataset(ds, 10, shuffle=True)
    model = recorder()
    model.fit(data, epochs=3, verbose=0, shuffle=False)
    seen = model.seen

    epochs = [chained(seen[i : i + 10]) for i in (0, 10, 20)]
    loader = ndfeed.loader(ds, 10, shuffle=True)
    assert epochs == [labels(loader) for _ in range(3)]


def test_repeating_for_ever(ds):
    """``epochs=None``, for ``steps_per_epoch``."""
    data = ndfeed.tf.dataset(ds, 30, shuffle=True, epochs=None)
    loader = ndfeed.loader(ds, 30, shuffle=True)

    assert data.cardinality() == tf.data.INFINITE_CARDINALITY
    same(data.take(11), [batch for _ in range(3) for batch in loader][:11])


def test_iter_alone_begins_nothing(ds):
    """Keras makes iterators that it does not use."""
    data = ndfeed.tf.dataset(ds, 10, shuffle=True)
    iter(data)
    loader = ndfeed.loader(ds, 10, shuffle=True)

    assert labels(data) == labels(loader)


def test_a_pass_left_early_counts_as_begun(ds):
    """As with the loader; also where TensorFlow had asked for all of it already."""
    data = ndfeed.tf.dataset(ds, 10, shuffle=True)
    next(iter(data))
    loader = ndfeed.loader(ds, 10, shuffle=True)
    loader.epoch = 1

    assert labels(data) == labels(loader)


def test_iterators_are_independent(handed_over):
    """As those of any other ``tf.data.Dataset``: each is an epoch, whole, whoever else reads."""
    ds, memory = handed_over
    data = ndfeed.tf.dataset(ds, 10, shuffle=True, memory=memory)
    loader = ndfeed.loader(ds, 10, shuffle=True)
    epochs = [labels(loader) for _ in range(4)]
    first = iter(data)
    seen = labels([next(first)])
    second = iter(data)
    seen_too = labels([next(second), next(second)])

    assert (seen + labels(first), seen_too + labels(second)) == (epochs[0], epochs[1])
    left, right = zip(*tf.data.Dataset.zip((data, data)), strict=True)
    assert sorted([labels(left), labels(right)]) == sorted([epochs[2], epochs[3]])


def test_many_passes_at_a_time(tmp_path):
    """Threads of TensorFlow ask at once: no sample is lost, and none comes twice."""
    data = ndfeed.tf.dataset(numbers(tmp_path, 3000), 20, shuffle=True)
    several = tf.data.Dataset.range(4).interleave(
        lambda _: data, cycle_length=4, num_parallel_calls=4, deterministic=False
    )
    rows = np.concatenate([batch["data"].numpy() for batch in several])

    np.testing.assert_array_equal(np.bincount(rows), np.full(3000, 4))


def test_the_service_of_tf_data_in_this_process(handed_over):
    """It asks for passes from threads of its own, and for one it does not use."""
    code = """
import json, os, sys
import tensorflow as tf
import ndfeed, ndfeed.tf

service = tf.data.experimental.service
dispatcher = service.DispatchServer()
address = dispatcher.target.split("://")[1]
worker = service.WorkerServer(service.WorkerConfig(dispatcher_address=address))
data = ndfeed.tf.dataset(ndfeed.open(sys.argv[1]), 10, shuffle=True,
                         memory=sys.argv[2])
served = data.apply(service.distribute(service.ShardingPolicy.DYNAMIC, dispatcher.target))
print(json.dumps([sorted(v for batch in served for v in batch["label"].numpy().tolist())
                  for _ in range(2)]), flush=True)
os._exit(0)
"""
    ds, memory = handed_over

    assert run_imported(code, ds.files[0], memory)[0] == [list(range(100))] * 2


def test_validation_and_evaluation_beside_the_training(handed_over):
    """On the very dataset that is trained on, in the middle of an epoch: both are whole."""
    ds, memory = handed_over
    data = ndfeed.tf.dataset(ds, 10, shuffle=True, memory=memory)
    expected = ndfeed.loader(ds, 10, shuffle=True)
    model = recorder()
    other = recorder()
    evaluated = []

    class Evaluate(tf.keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 3:
                other.fit(data, verbose=0, shuffle=False)
                evaluated.append(sorted(chained(other.seen)))
                other.seen.clear()

    model.test_step = model.train_step
    model.fit(data, validation_data=data, epochs=2, verbose=0, shuffle=False,
              callbacks=[Evaluate()])  # fmt: skip
    epochs = [labels(expected) for _ in range(6)]
    passes = [chained(model.seen[i : i + 10]) for i in range(0, 40, 10)]

    assert passes == [epochs[0], epochs[2], epochs[3], epochs[5]]  # trained, validated, twice
    assert evaluated == [list(range(100))] * 2


def test_report_order_and_epoch(ds):
    """What a loader can say of itself, a dataset can as well."""
    data = ndfeed.tf.dataset(ds, 10, shuffle=True)
    assert (data.order, data.epoch) == (ndfeed.Exact(), 0)
    assert "nothing was read yet" in f"{data.report()}"
    first = labels(data)
    assert (data.epoch, data.report().rows) == (1, 100)
    list(data)
    data.epoch = 0
    assert labels(data) == first

    assert data.epoch == 1


def test_kept_batches_never_change(tmp_path):
    """TensorFlow sees the loader's own memory: it is not used again while it does."""
    rows = np.repeat(np.arange(64, dtype="<u4")[:, None], 1 << 18, axis=1)  # a megabyte each
    np.save(tmp_path / "x.npy", rows)
    del rows
    data = ndfeed.tf.dataset(ndfeed.open(tmp_path / "x.npy"), 4, shuffle=True, memory="40MB")
    kept = []
    for epoch in range(3):
        for i, batch in enumerate(data):
            if i % 5 == epoch:
                kept.append((batch["data"], batch["data"][:, 0].numpy()))

    assert len(kept) > 8
    for tensor, first in kept:
        assert (tensor.numpy() == first[:, None]).all()


def test_a_large_batch_is_not_copied(tmp_path):
    """The tensor is the memory that the file was read into."""
    np.save(tmp_path / "x.npy", np.arange(8 << 20, dtype="<i4").reshape(8, -1))
    data = ndfeed.tf.dataset(ndfeed.open(tmp_path / "x.npy"), 4, threads=1)
    tensor = next(iter(data))["data"]
    address = np.from_dlpack(tensor).__array_interface__["data"][0]

    lent = [one for one in gc.get_objects() if type(one).__name__ == "_Loan"]
    assert address in [loan.__array_interface__["data"][0] for loan in lent]


def test_graphs_hold_no_data(tmp_path):
    """Beyond 2 GB a graph with constants cannot be made at all; this file has no blocks."""
    path = tmp_path / "huge.npy"
    rows = np.lib.format.open_memmap(path, "w+", np.uint8, (3 << 20, 1024))
    rows[-1] = 7
    del rows
    data = ndfeed.tf.dataset(ndfeed.open(path), 16, fields=("data",), shuffle=True)

    @tf.function
    def last(data):
        found = tf.zeros((16, 1024), tf.uint8)
        for batch in data:
            found = batch[0]
        return found

    graph = last.get_concrete_function(data).graph.as_graph_def()
    assert graph.ByteSize() < 100_000
    end = ndfeed.tf.dataset(ndfeed.open(path).take(slice(-16, None)), 16)
    assert next(iter(end))["data"].numpy()[:, 0].tolist() == [0] * 15 + [7]


def test_memory_stays_within_what_was_given(tmp_path):
    """Data four times larger than ``memory``, in pieces and in large batches: over two epochs."""
    code = """
import json, sys
import tensorflow as tf, ndfeed, ndfeed.tf
def anonymous():
    with open("/proc/self/status") as status:
        found = dict(line.split(":", 1) for line in status)
    return (int(found["RssAnon"].split()[0]) + int(found["RssShmem"].split()[0])) * 1024
ds = ndfeed.open(sys.argv[1])
small = ndfeed.tf.dataset(ds.take(range(64)), 32, shuffle=True)
for _ in range(3): list(small)
del small
before, used = anonymous(), []
for size in (32, 128):  # a megabyte, and four
    data = ndfeed.tf.dataset(ds, size, shuffle=True, memory="64MB", epochs=2)
    peak = 0
    for batch in data: peak = max(peak, anonymous())
    used.append(peak - before)
    del data
print(json.dumps(used))
"""
    path = tmp_path / "x.npy"
    rows = np.lib.format.open_memmap(path, "w+", np.uint8, (8192, 32 << 10))
    rows[:] = 1
    del rows
    found, _ = run(code, path)

    assert max(found) < (64 << 20) + (24 << 20), found  # and what allocators keep


def test_a_changed_file_is_an_error_that_names_it(tmp_path):
    """Neither torn data nor the end of the process; what was read before is delivered."""
    ds = numbers(tmp_path, 50_000, width=64)
    data = ndfeed.tf.dataset(ds, 100)
    batches = iter(data)
    assert next(batches)["data"][0, 0] == 0
    np.save(tmp_path / "x.npy", np.zeros((50_000, 64), "<i8"))

    with pytest.raises(tf.errors.OpError, match=r"ChangedError.*x\.npy"):
        for _ in batches:
            pass


def test_an_error_of_a_map_is_raised(ds):
    """With what it said; the batches before it come first."""

    def broken(batch):
        if batch["label"][0] >= 50:
            raise ValueError("no more than fifty")
        return batch

    found = []
    with pytest.raises(tf.errors.OpError, match="no more than fifty"):
        found.extend(ndfeed.tf.dataset(ds.map(broken), 10))
    assert len(found) == 5


def test_a_map_that_makes_other_shapes_is_refused_in_its_batch(ds):
    """The shapes of all batches are promised beforehand, after a look at a few others."""
    grown = ds.map(lambda s: {"x": np.zeros(1 + (s["label"] == 51))}, batched=False)

    with pytest.raises(tf.errors.OpError, match=r"'x'.*give all samples one shape in map"):
        list(ndfeed.tf.dataset(grown, 10))


def test_bad_samples_can_be_skipped(tmp_path):
    """Then batches may be short anywhere."""
    ds, _ = compressed(tmp_path / "c", 4, 10)
    (tmp_path / "c" / "002.npz").unlink()
    data = ndfeed.tf.dataset(ds, 5, on_error="skip")

    assert data.element_spec["n"].shape.as_list() == [None]
    assert sum(len(batch["n"]) for batch in data) == 30
    assert sorted({row for row, _ in data.skipped}) == list(range(20, 30))
    assert all("002.npz" in problem for _, problem in data.skipped)
    assert data.report().skipped == 10


def test_threads_end_with_a_pass_that_is_left(ds):
    """Nothing of a dataset lives on when nobody can iterate it."""
    others = {*threads()}  # of tests before this one
    data = ndfeed.tf.dataset(ds, 2, shuffle=True, memory=5000).map(dict)
    batches = iter(data)
    next(batches)
    assert {*threads()} - others
    del batches, data

    assert eventually(lambda: gc.collect() is not None and not {*threads()} - others)


def in_a_closure(make):
    data = make()
    made = tf.data.Dataset.range(1).flat_map(lambda _: data)
    data = None
    return made


def in_an_element(make):
    return tf.data.Dataset.from_tensors(make()).flat_map(lambda data: data)


def out_of_a_function(make):
    return tf.function(lambda data: data.prefetch(1))(make())


def made_in_a_graph(make):
    return tf.data.Dataset.range(1).interleave(lambda _: make(), cycle_length=1)


@pytest.mark.parametrize("way", [in_a_closure, in_an_element, out_of_a_function, made_in_a_graph])
def test_graphs_keep_what_they_read_from(ds, way):
    """Nobody holds the dataset that was made; threads rest only while somebody may go on."""
    others = {*threads()}
    data = way(lambda: ndfeed.tf.dataset(ds, 10, shuffle=True, seed=4))
    gc.collect()

    same(data, ndfeed.loader(ds, 10, shuffle=True, seed=4))
    assert eventually(lambda: gc.collect() is not None and not {*threads()} - others)
    assert len(list(data)) == 10


@pytest.mark.parametrize("n", [0, 3])
def test_no_batches_end_even_if_repeated_for_ever(tmp_path, n):
    np.savez(tmp_path / "x.npz", x=np.zeros((n, 2)))
    ds = ndfeed.open(tmp_path / "x.npz")

    assert list(ndfeed.tf.dataset(ds, 4, drop_last=True, epochs=None)) == []


def test_a_process_ends_with_a_pass_under_way(tmp_path):
    """Without a hang or a crash."""
    code = """
import sys, tensorflow as tf, ndfeed, ndfeed.tf
batches = iter(ndfeed.tf.dataset(ndfeed.open(sys.argv[1]), 4, epochs=None, shuffle=True))
for _ in range(30): batch = next(batches)
print(1)
"""
    images(tmp_path)

    assert run(code, tmp_path / "images.npz")[0] == 1


# Ragged samples.


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    return ragged(tmp_path_factory.mktemp("texts"), [3, 1, 4, 0, 5, 9, 2])


def test_ragged_samples_are_ragged_tensors(texts):
    """Without padding, and with their type known beforehand."""
    data = ndfeed.tf.dataset(texts, 3, shuffle=True, fields=("n", "x"))
    n, x = data.element_spec

    assert (n.shape.as_list(), n.dtype) == ([None], tf.int64)
    assert x == tf.RaggedTensorSpec((None, None), tf.float32, 1, tf.int64)
    for numbers_, values in data:
        expected = texts.read(numbers_.numpy())["x"]
        assert values.to_list() == [one.tolist() for one in expected]


def test_ragged_samples_can_be_padded(texts):
    """As the loader pads them."""
    data = ndfeed.tf.dataset(texts, 3, ragged="pad")

    assert data.element_spec["x"] == tf.TensorSpec((None, None), tf.float32)
    assert data.element_spec["x_length"] == tf.TensorSpec((None,), tf.int64)
    same(data, ndfeed.loader(texts, 3, ragged="pad"))
    lengths = ndfeed.tf.dataset(texts, 7, ragged="pad", fields=("x_length",))
    assert next(iter(lengths))[0].numpy().tolist() == [3, 1, 4, 0, 5, 9, 2]


def test_what_is_ragged_inside_must_be_padded(tmp_path):
    """A ragged tensor has one length a sample here."""
    ds = ragged(tmp_path, [2, 3], shape=lambda n: (2, n))

    with pytest.raises(ValueError, match=r"'x'.*ragged=\"pad\""):
        ndfeed.tf.dataset(ds, 2)
    padded = next(iter(ndfeed.tf.dataset(ds, 2, ragged="pad")))
    assert padded["x"].shape == (2, 2, 3)


# Types.


@pytest.mark.parametrize(
    "dtype",
    [
        *("?", "i1", "<i2", ">i4", "<i8", "u1", ">u2", "<u4", "<u8", "<f2", "<f4", ">f8", "<c8"),
        *("<c16", "S5", "<U3", "bfloat16", "float8_e4m3fn"),
    ],
)
def test_types_that_tensorflow_has(tmp_path, dtype):
    """Values as NumPy has them; text as bytes of UTF-8."""
    raw = np.arange(24, dtype="u1").reshape(6, 4)
    if dtype.startswith(("b", "float")):
        size = 2 if dtype == "bfloat16" else 1
        raw.tofile(tmp_path / "x.bin")
        ds = ndfeed.open(tmp_path / "x.bin", dtype=dtype, shape=(4 // size,))
    else:
        np.save(tmp_path / "x.npy", (raw % 7).astype(dtype))
        ds = ndfeed.open(tmp_path / "x.npy")
    expected = ds[:]["data"]
    found = next(iter(ndfeed.tf.dataset(ds, 6)))["data"].numpy()

    if expected.dtype.kind in "SU":
        text = expected.astype("S") if expected.dtype.kind == "U" else expected
        assert found.tolist() == text.tolist()
    else:
        assert found.dtype == expected.dtype
        assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("dtype", ["M8[s]", "m8[ms]", "V3", "<f16"])
def test_types_that_tensorflow_lacks_are_refused(tmp_path, dtype):
    """At once, by field, with a remedy; others of the same file can be had."""
    np.savez(tmp_path / "x.npz", bad=np.zeros(4, dtype), good=np.arange(4))
    ds = ndfeed.open(tmp_path / "x.npz", sample="row")

    with pytest.raises(ndfeed.SchemaError, match=r"'bad'.*TensorFlow cannot hold; leave it out"):
        ndfeed.tf.dataset(ds, 2)
    assert len(list(ndfeed.tf.dataset(ds, 2, fields=("good",)))) == 2


# Wrong arguments.


@pytest.mark.parametrize(
    ("words", "error", "match"),
    [
        ({"fields": ("imago",)}, ndfeed.FieldError, "no field 'imago'; the fields are 'image'"),
        ({"fields": 3}, TypeError, "tuple of names"),
        ({"fields": {"image"}}, TypeError, "which a set does not have"),
        ({"ragged": "list"}, ValueError, "ragged must be one of 'ragged', 'pad', got 'list'"),
        ({"epochs": 0}, ValueError, r"epochs must be in \[1, "),
        ({"epochs": 1.5}, TypeError, "epochs must be a whole number"),
        ({"batch_size": 0}, ValueError, "batch_size must be at least 1"),
        ({"memory": 10}, ValueError, "memory must hold a batch"),
        ({"shard": (2, 2)}, ValueError, r"rank must be in \[0, 2\)"),
    ],
)
def test_wrong_words_are_refused_at_once(ds, words, error, match):
    """Not in the middle of a training."""
    with pytest.raises(error, match=match):
        ndfeed.tf.dataset(ds, **({"batch_size": 10} | words))


def test_only_a_dataset_will_do():
    with pytest.raises(TypeError, match=r"call ndfeed\.open first"):
        ndfeed.tf.dataset("images", 10)


def test_large_batches_and_small_ones_are_the_same(tmp_path):
    """Small ones are handed over several at a time, large ones one by one."""
    ds = numbers(tmp_path, 3000, width=500)
    small = ndfeed.tf.dataset(ds, 100, shuffle=True)
    large = ndfeed.tf.dataset(ds, 1500, shuffle=True)

    rows = [np.concatenate([b["data"].numpy() for b in data]) for data in (small, large)]
    np.testing.assert_array_equal(*rows)
    np.testing.assert_array_equal(
        rows[0], next(iter(ndfeed.loader(ds, 3000, shuffle=True)))["data"]
    )


@pytest.mark.parametrize("batched", [True, False])
def test_a_map_that_leaves_ragged_samples_as_they_are(tmp_path, batched):
    """Their second axis is known to be of one length, so they are ragged tensors as before."""
    ds = ragged(tmp_path, [5, 2, 7, 3, 3, 3], shape=lambda n: (n, 3))
    mapped = ds.map(lambda batch: batch, batched=batched)

    for form in ("ragged", "pad"):
        data = ndfeed.tf.dataset(mapped, 3, ragged=form)
        expected = ndfeed.tf.dataset(ds, 3, ragged=form)
        assert data.element_spec == expected.element_spec
        for found, wanted in zip(data, expected, strict=True):
            for name, values in wanted.items():
                if isinstance(values, tf.RaggedTensor):
                    assert found[name].to_list() == values.to_list()
                else:
                    np.testing.assert_array_equal(found[name], values)


def test_padded_shapes_are_known_before_anything_is_read(texts):
    """So that models are built and functions traced once."""
    data = ndfeed.tf.dataset(
        texts, 2, ragged="pad", pad_to=16, fields=({"text": "x"}, "x_length"), drop_last=True
    )

    assert data.element_spec[0]["text"].shape == (2, 16)
    assert data.element_spec[1].shape == (2,)
    with pytest.raises(ValueError, match='pad_to and pad_value are for ragged="pad"'):
        ndfeed.tf.dataset(texts, 2, pad_to=16)


def test_ragged_tensors_in_any_structure(texts):
    """They are made behind the generator, and go to their place in the nest."""
    expected = [batch["x"] for batch in ndfeed.loader(texts, 2)]
    for nest, take in (
        ("x", lambda batch: batch),
        (("x",), lambda batch: batch[0]),
        ({"a": ["x", "x"]}, lambda batch: batch["a"][1]),
    ):
        found = [take(batch) for batch in ndfeed.tf.dataset(texts, 2, fields=nest)]

        assert all(isinstance(one, tf.RaggedTensor) for one in found)
        assert [one.to_list() for one in found] == [[x.tolist() for x in b] for b in expected]


@pytest.mark.filterwarnings("ignore:The model does not have any trainable weights")
def test_fit_takes_inputs_by_name_and_weights(tmp_path):
    """(x, y, weight), x a dict for the inputs of a model: weights that are 0 count for nothing."""
    inputs = {name: tf.keras.Input((1,), name=name) for name in ("a", "b")}
    model = tf.keras.Model(inputs, tf.keras.layers.Add()([inputs["a"], inputs["b"]]))
    model.compile(loss="mae")
    n = np.arange(20, dtype=np.float32)[:, None]
    np.savez(tmp_path / "x.npz", x=n, z=2 * n, y=3 * n + 1, w=(n[:, 0] < 10).astype(np.float32))
    ds = ndfeed.open(tmp_path / "x.npz", sample="row")
    fields = ({"b": "z", "a": "x"}, "y", "w")
    data = ndfeed.tf.dataset(ds, 5, fields=fields)

    assert model.fit(data, verbose=0, shuffle=False).history["loss"][0] == pytest.approx(0.5)
    assert (
        model.predict(ndfeed.tf.dataset(ds, 5, fields={"b": "z", "a": "x"}), verbose=0)[
            :, 0
        ].tolist()
        == (3 * n[:, 0]).tolist()
    )


# Files that come


def data_of(batches):
    """The values of all batches, those of each epoch in order."""
    return sorted(value for batch in batches for value in batch["data"].numpy().tolist())


def folder_dataset(folder, size=5, **words):
    return ndfeed.tf.dataset(ndfeed.open(folder, sample="row"), size, shuffle=True, **words)


def test_the_next_pass_has_the_files_there_are_then(tmp_path):
    """Loops, fit and functions of TensorFlow: with the number of batches and the shapes of now."""
    write(tmp_path, 10, 20, 30)
    data = folder_dataset(tmp_path, 4)
    assert data.element_spec["data"].shape == (4,)
    assert data_of(data) == expected(10, 20, 30)
    np.save(tmp_path / "005.npy", np.arange(3))
    assert data.refresh() == 3
    assert data.refresh() == 0
    assert len(data) == 4
    assert data.element_spec["data"].shape == (None,)
    found = list(data)
    assert data_of(found) == [0, 1, 2, *expected(10, 20, 30)]
    numpy = ndfeed.loader(ndfeed.open(tmp_path, sample="row"), 4, shuffle=True)
    numpy.epoch = 1
    assert [batch["data"].numpy().tolist() for batch in found] == [
        batch["data"].tolist() for batch in numpy
    ]
    assert data_of(data.map(lambda batch: batch)) == [0, 1, 2, *expected(10, 20, 30)]
    assert data.epoch == 3

    @tf.function
    def total(batches):
        return batches.reduce(np.int64(0), lambda sum_, batch: sum_ + tf.reduce_sum(batch["data"]))

    assert int(total(data)) == 3 + sum(expected(10, 20, 30))
    with pytest.raises(RuntimeError, match="would run once, when it is traced; call it outside"):
        tf.function(data.refresh)()


def test_a_pass_in_progress_ends_as_it_began(tmp_path):
    """Or takes in what is new from its next epoch on, if it has several."""
    write(tmp_path, 10, 20, 30)
    one, chain, endless = (folder_dataset(tmp_path, epochs=epochs) for epochs in (1, 3, None))
    begun = [iter(data) for data in (one, chain, endless)]
    found = [[next(batches)] for batches in begun]
    write(tmp_path, 5, 40)
    for data in (one, chain, endless):
        assert data.refresh() == 8
    assert data_of([*found[0], *begun[0]]) == expected(10, 20, 30)
    assert data_of(one) == expected(5, 10, 20, 30, 40)
    old, new = expected(10, 20, 30), expected(5, 10, 20, 30, 40)
    rest = [*found[1], *begun[1]]
    assert data_of(rest[:3]) == old
    # TensorFlow prefetches, and had perhaps begun the second epoch, or the third.
    assert data_of(rest[3:]) in (sorted(new + new), sorted(old + new), sorted(old + old))
    rest = [*found[2], *itertools.islice(begun[2], 20)]
    assert data_of(rest[:3]) == old
    assert any(data_of(rest[start : start + 4]) == new for start in (3, 6, 9))
    assert len(chain) == 12


def test_what_was_derived_before_says_that_it_is_too_short(tmp_path):
    """TensorFlow was told how many batches there are; it would leave out the rest in silence."""
    write(tmp_path, 10, 20, 30)
    data, endless = folder_dataset(tmp_path), folder_dataset(tmp_path, epochs=None)
    derived, forever = (one.map(lambda batch: batch) for one in (data, endless))
    chain = folder_dataset(tmp_path, epochs=2).map(lambda batch: batch)
    batches = iter(chain)
    assert data_of(derived) == expected(10, 20, 30)
    write(tmp_path, 5)
    data.refresh()
    endless.refresh()
    with pytest.raises(tf.errors.OpError, match="4 batches are left of the pass, and this data"):
        list(derived)
    assert data_of(data.map(lambda batch: batch)) == expected(5, 10, 20, 30)
    assert data_of(forever.take(4)) == expected(5, 10, 20, 30)
    assert len(list(batches)) == 6

    full = folder_dataset(tmp_path, 4)
    derived = full.map(lambda batch: batch)
    (tmp_path / "030.npy").unlink()
    np.save(tmp_path / "007.npy", np.arange(3))
    assert full.refresh(missing="skip") == 3
    with pytest.raises(tf.errors.OpError, match="15 samples are not a multiple of batch_size 4"):
        list(derived)
    assert len(list(full)) == 4


def test_a_chain_that_grew_within_says_that_it_is_too_short(tmp_path):
    """From the epoch on that would not be delivered whole."""
    write(tmp_path, 10, 20, 30)
    data = folder_dataset(tmp_path, epochs=3)
    batches = iter(data.map(lambda batch: batch))
    found = [next(batches)]
    write(tmp_path, 40)
    data.refresh()
    with pytest.raises(tf.errors.OpError, match=r"batches are left of the pass, .* made for"):
        found += batches
    assert data_of(data)[-1] == 163


def test_threads_and_memory_of_the_data_before_are_released(tmp_path):
    """A dataset that follows a folder for weeks has those of one loader."""
    write(tmp_path, 10)
    data = folder_dataset(tmp_path)
    before = None
    for number in range(20, 30):
        list(data)
        gone, before = before, weakref.ref(data.passes.loader)
        write(tmp_path, number)
        data.refresh()
        gc.collect()
        assert gone is None or gone() is None


@pytest.mark.parametrize("epochs", [1, 3])
def test_epochs_of_a_mixture_may_end_in_a_short_batch(tmp_path, epochs):
    """Also those after a first one whose batches are all full."""
    sources = {}
    for name, first in (("a", 0), ("b", 3)):
        (tmp_path / name).mkdir()
        write(tmp_path / name, *range(first, first + 3))
        sources[name] = ndfeed.open(tmp_path / name, sample="row")
    ds = ndfeed.mix(sources, weights={0: [3, 1], 1: [1, 1], 2: [5, 1]})
    loader = ndfeed.loader(ds, 8, shuffle=True)
    numpy = [batch["data"].tolist() for _ in range(3) for batch in loader]
    assert [len(batch) for batch in numpy] == [8, 8, 8, 8, 8, 8, 6]
    data = ndfeed.tf.dataset(ds, 8, shuffle=True, epochs=epochs)
    found = [batch["data"].numpy().tolist() for _ in range(3 // epochs) for batch in data]
    assert found == numpy
    assert data.element_spec["data"].shape == (None,)
    whole = ndfeed.tf.dataset(ds, 8, shuffle=True, drop_last=True)
    assert whole.element_spec["data"].shape == (8,)
