"""Under ``tf.distribute``: every row once in an epoch, whoever reads it, and nobody warns."""

import pytest

tf = pytest.importorskip("tensorflow")

from loading.making import chained, images, labels  # noqa: E402
from tf_making import run, run_workers  # noqa: E402

import ndfeed  # noqa: E402
import ndfeed.tf  # noqa: E402

MIRRORED = """
import json, sys
import tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
import ndfeed, ndfeed.keras, ndfeed.tf

ds = ndfeed.open(sys.argv[1])
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
found = {"replicas": strategy.num_replicas_in_sync}


def each(data):
    for batch in data:
        local = strategy.experimental_local_results(batch["label"])
        yield [one.numpy().tolist() for one in local]


plain = strategy.experimental_distribute_dataset(
    ndfeed.tf.dataset(ds, 10, shuffle=True, seed=1, drop_last=True))
found["plain"] = [list(each(plain)) for _ in range(2)]
made = strategy.distribute_datasets_from_function(
    lambda context: ndfeed.tf.dataset(ds, 10, shuffle=True, seed=1, context=context))
found["made"] = list(each(made))

seen = []
with strategy.scope():
    try:
        ndfeed.tf.dataset(ds, 9)
    except ValueError as error:
        found["refused"] = str(error)

    class Model(tf.keras.Model):
        def build(self, shape):
            self.w = self.add_weight(shape=())
        def call(self, x):
            return self.w * tf.cast(x[:, None], tf.float32)
        def train_step(self, batch):
            x, y = batch
            done = tf.py_function(lambda y: seen.extend(y.numpy().tolist()) or 0.0, [y], tf.float32)
            self(x)
            return {"loss": tf.ensure_shape(done, ())}

    model = Model()
    model.compile()
    state = ndfeed.tf.State()
    data = ndfeed.tf.dataset(ds, 10, shuffle=True, seed=1, fields=("label", "label"), state=state)
model.fit(data, epochs=2, verbose=0, shuffle=False, callbacks=[ndfeed.keras.Resume(state)])
found["fit"] = seen
print(json.dumps(found))
"""

WORKER = """
import json, sys
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
import ndfeed, ndfeed.tf

ds = ndfeed.open(sys.argv[1])
found = {"replicas": strategy.num_replicas_in_sync, "rows": [], "sums": []}
with strategy.scope():
    try:
        ndfeed.tf.dataset(ds, 8)
    except ValueError as error:
        found["refused"] = str(error)
    try:
        strategy.distribute_datasets_from_function(
            lambda context: ndfeed.tf.dataset(ds, 9, context=context))
    except ValueError as error:
        found["odd"] = str(error)
data = strategy.distribute_datasets_from_function(
    lambda context: ndfeed.tf.dataset(ds, 8, shuffle=True, seed=1, drop_last=True, context=context))


@tf.function
def step(batch):
    def each(label):
        return tf.distribute.get_replica_context().all_reduce("sum", tf.reduce_sum(label))
    return strategy.run(each, args=(batch["label"],))


for epoch in range(2):
    for batch in data:
        found["rows"].append(strategy.experimental_local_results(batch["label"])[0].numpy().tolist())
        found["sums"].append(int(strategy.experimental_local_results(step(batch))[0]))
own = ndfeed.tf.dataset(ds, 4, shard=(strategy.cluster_resolver.task_id, 2))
shared = strategy.experimental_distribute_dataset(own)
found["own"] = [v for b in shared
                for v in strategy.experimental_local_results(b["label"])[0].numpy().tolist()]
print(json.dumps(found))
"""

OUTSIDE = """
import json, sys
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
import ndfeed, ndfeed.tf

ds = ndfeed.open(sys.argv[1])
found = {}
for name, n, size, words in (("all", 100, 8, {}), ("odd", 97, 10, {}), ("one", 100, 100, {}),
                             ("dropped", 97, 10, {"drop_last": True}),
                             ("everything", 20, 5, {"shard": (0, 1)})):
    data = ndfeed.tf.dataset(ds.take(range(n)), size, shuffle=True, seed=1, **words)
    data = strategy.experimental_distribute_dataset(data.map(lambda batch: batch["label"]))
    found[name] = [[strategy.experimental_local_results(batch)[0].numpy().tolist()
                    for batch in data] for epoch in range(2)]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    return images(folder), folder / "images.npz"


def whole(ds, size, epochs, **words):
    loader = ndfeed.loader(ds, size, shuffle=True, seed=1, **words)
    return [labels([batch]) for _ in range(epochs) for batch in loader]


def complaints(log):
    """What TensorFlow says of sharding; an iterator that is cancelled has such a name."""
    return [
        line
        for line in log.lower().splitlines()
        if "shard" in line.replace("multideviceiteratorgetnextfromshard", "")
    ]


def test_replicas_of_one_worker_share_batches(source):
    """The strategy splits what is one batch of the loader; also in ``fit``."""
    ds, path = source
    found, log = run(MIRRORED, path)
    expected = whole(ds, 10, 2)

    assert found["replicas"] == 2
    assert [chained(step) for epoch in found["plain"] for step in epoch] == expected
    assert [len(part) for part in found["plain"][0][0]] == [5, 5]
    assert [chained(step) for step in found["made"]] == expected[:10]
    assert found["refused"] == (
        "batch_size must be a multiple of 2, the replicas that share a batch, got 9; use 8"
    )
    # Two replicas note their halves in either order.
    seen = [sorted(found["fit"][i : i + 10]) for i in range(0, 200, 10)]
    assert seen == [sorted(batch) for batch in expected]
    assert not complaints(log)


def test_workers_read_their_own_parts(source):
    """Two real processes: global batches are those of one loader, sums of both are one."""
    ds, path = source
    (first, first_log), (second, second_log) = run_workers(WORKER, 2, path)
    expected = whole(ds, 8, 2, drop_last=True)

    assert first["replicas"] == second["replicas"] == 2
    both = [a + b for a, b in zip(first["rows"], second["rows"], strict=True)]
    assert both == expected
    assert first["sums"] == second["sums"] == [sum(batch) for batch in expected]
    assert sorted(first["own"] + second["own"]) == list(range(100))
    assert "distribute_datasets_from_function" in first["refused"]
    assert "multiple of 2" in first["odd"]
    assert not complaints(first_log + second_log)


def test_workers_divide_a_dataset_that_was_made_outside_of_the_scope(source):
    """Nobody said whose part it is: each sample goes to one worker, not to all of them."""
    ds, path = source
    (first, first_log), (second, second_log) = run_workers(OUTSIDE, 2, path)

    for name, n, size, drop_last in (
        ("all", 100, 8, False),
        ("odd", 97, 10, False),
        ("one", 100, 100, False),
        ("dropped", 97, 10, True),
    ):
        expected = whole(ds.take(range(n)), size, 2, drop_last=drop_last)
        both = zip(chained(first[name]), chained(second[name]), strict=True)
        assert [a + b for a, b in both] == expected
    # With shard=(0, 1) each worker asked for everything.
    for found in (first, second):
        assert [sorted(chained(epoch)) for epoch in found["everything"]] == [[*range(20)]] * 2
    assert not complaints(first_log + second_log)


def test_a_context_and_a_shard_are_one_too_many(source):
    """Both say who reads what."""
    with pytest.raises(ValueError, match="leave out shard"):
        ndfeed.tf.dataset(source[0], 8, shard=(0, 1), context=tf.distribute.InputContext(1, 0, 1))
