"""``ndfeed.tf.fast_iterator``: TensorFlow's iterator with less Python per batch."""

import gc
import time
import weakref

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from loading.making import images, ragged  # noqa: E402
from tf_making import run, run_imported, same  # noqa: E402

import ndfeed  # noqa: E402
import ndfeed.tf  # noqa: E402


@pytest.fixture(scope="module")
def ds(tmp_path_factory):
    return images(tmp_path_factory.mktemp("images"))


def usual(data):
    """The elements as an iterator of TensorFlow's own has them."""
    return list(data.apply(lambda same: same.skip(0)))


@pytest.mark.parametrize("fields", [None, ("label", "image"), ("image",)])
@pytest.mark.parametrize("size", [1, 30, 100, 1000])
def test_elements_are_those_of_the_usual_iterator(ds, fields, size):
    data = ndfeed.tf.dataset(ds, size, fields=fields)
    expected = usual(data)

    found = list(data)

    assert [type(one) for one in found] == [type(one) for one in expected]
    assert all(list(a) == list(b) for a, b in zip(found, expected, strict=True) if fields is None)
    for one, other in zip(found, expected, strict=True):
        tf.nest.map_structure(np.testing.assert_array_equal, one, other)
        tf.nest.map_structure(lambda a, b: a.shape.assert_is_compatible_with(b.shape), one, other)


def test_names_come_in_the_order_of_the_dataset_not_of_the_alphabet(ds):
    turned = ds.map(lambda s: {"z": s["label"], "b": s["image"], "m": s["label"] * 2})

    for batch in ndfeed.tf.dataset(turned, 64):
        assert list(batch) == ["z", "b", "m"]
        np.testing.assert_array_equal(batch["m"], batch["z"] * 2)
        assert batch["b"].shape[1:] == (4, 4, 3)


def test_the_end_is_told_as_iterators_tell_it(ds):
    iterator = iter(ndfeed.tf.dataset(ds, len(ds)))
    next(iterator)

    with pytest.raises(StopIteration):
        next(iterator)
    with pytest.raises(StopIteration):
        next(iterator)
    with pytest.raises(tf.errors.OutOfRangeError):
        iterator.get_next()


def test_inside_and_outside_of_functions_in_turns(ds):
    """One pass, whoever asks: eagerly, in a function, in a loop of a graph, as an optional."""
    iterator = iter(ndfeed.tf.dataset(ds, 10, fields=("label",)))
    assert isinstance(iterator, tf.data.Iterator)

    @tf.function
    def one(source):
        return source.get_next()[0]

    @tf.function
    def the_rest(source):
        total = tf.constant(0, tf.int64)
        for (label,) in source:
            total += tf.reduce_sum(label)
        return total

    first, second = next(iterator)[0], one(iterator)
    third, fourth = iterator.get_next()[0], iterator.get_next_as_optional().get_value()[0]
    rest = the_rest(iterator)

    expected = [batch["label"] for batch in ndfeed.loader(ds, 10)]
    same([(first,), (second,), (third,), (fourth,)], [(label,) for label in expected[:4]])
    assert rest == sum(int(label.sum()) for label in expected[4:])
    assert list(iterator) == []


def test_numpy_iterators_and_signatures(ds):
    data = ndfeed.tf.dataset(ds, 25, fields=("label",), drop_last=True)
    same(data.as_numpy_iterator(), [(b["label"],) for b in ndfeed.loader(ds, 25, drop_last=True)])

    @tf.function(input_signature=[tf.data.IteratorSpec(data.element_spec)])
    def shape(source):
        return tf.shape(source.get_next()[0])

    assert shape(iter(data)) == 25


def test_ragged_batches_take_the_usual_way(tmp_path):
    data = ndfeed.tf.dataset(ragged(tmp_path, [3, 1, 4, 1, 5]), 2)

    for found, expected in zip(data, usual(data), strict=True):
        np.testing.assert_array_equal(found["n"], expected["n"])
        assert found["x"].to_list() == expected["x"].to_list()


def test_asynchronous_execution(ds):
    """Where operations end some time later, a pass still ends where it does."""
    code = """
import json, sys
import tensorflow as tf
import ndfeed.tf

tf.config.experimental.set_synchronous_execution(False)
data = ndfeed.tf.dataset(ndfeed.open(sys.argv[1]), 10)
print(json.dumps([[batch["label"].numpy().tolist() for batch in data] for _ in range(2)]))
"""
    found, _ = run_imported(code, ds.files[0])
    assert found == [np.arange(100).reshape(10, 10).tolist()] * 2


def test_devices_can_still_be_arranged_behind_the_import(ds):
    code = """
import json, sys
import tensorflow as tf
import ndfeed.tf

[cpu] = tf.config.list_physical_devices("CPU")
two = [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(cpu, two)
batch = next(iter(ndfeed.tf.dataset(ndfeed.open(sys.argv[1]), 4)))
print(json.dumps([len(tf.config.list_logical_devices("CPU")), batch["label"].numpy().tolist()]))
"""
    assert run(code, ds.files[0])[0] == [2, [0, 1, 2, 3]]


def test_a_pass_begins_sooner_than_one_of_from_generator(tmp_path):
    """Short epochs are many: TensorFlow made and optimized its wrapping anew for each of them."""
    np.save(tmp_path / "x.npy", np.zeros((60, 4), np.float32))
    data = ndfeed.tf.dataset(ndfeed.open(tmp_path / "x.npy", sample="row"), 4)
    wrapped = data.take(-1)  # the same batches, through what graphs need

    def took(dataset):
        began = time.perf_counter()
        next(iter(dataset))
        return time.perf_counter() - began

    took(data), took(wrapped)
    ours, theirs = [], []

    def sooner():
        """The best of several, and of more where the machine is busy with something else."""
        for _ in range(15):
            ours.append(took(data))
            theirs.append(took(wrapped))
        return min(ours) < 0.7 * min(theirs)

    assert any(sooner() for _ in range(10))


def test_iterators_of_a_loop_and_of_a_graph_share_the_epochs(tmp_path):
    """Whichever is asked next has the next epoch, and each goes on by itself."""
    np.save(tmp_path / "x.npy", np.arange(40))
    ds = ndfeed.open(tmp_path / "x.npy", sample="row")
    data = ndfeed.tf.dataset(ds, 8, shuffle=True, fields=("data",))
    loader = ndfeed.loader(ds, 8, shuffle=True, fields=("data",))
    epochs = [[batch[0].tolist() for batch in loader] for _ in range(4)]

    first, second = iter(data), iter(data.take(-1))
    begun = [next(first)[0].numpy().tolist(), next(second)[0].numpy().tolist()]
    rest = [[batch[0].numpy().tolist() for batch in one] for one in (first, second)]
    third = [batch[0].numpy().tolist() for batch in data]

    assert [[begun[at], *rest[at]] for at in range(2)] == epochs[:2]
    assert third == epochs[2]


def test_an_iterator_outlives_the_name_of_its_dataset(tmp_path):
    """Its passes are those of the dataset, which it keeps; what is left behind is let go of."""
    np.save(tmp_path / "x.npy", np.arange(4000).reshape(-1, 4))
    ds = ndfeed.open(tmp_path / "x.npy", sample="row")
    iterator = iter(ndfeed.tf.dataset(ds, 8, fields=("data",)))
    gc.collect()
    count = 1 + sum(1 for _ in [next(iterator)] for _ in iterator)
    left = iter(data := ndfeed.tf.dataset(ds, 8, fields=("data",)))
    next(left)
    gone = weakref.ref(data.passes)
    del left, data
    until = time.monotonic() + 100
    while gone() is not None and time.monotonic() < until:
        gc.collect()
        time.sleep(0.01)

    assert count == 125
    assert gone() is None
