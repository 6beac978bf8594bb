"""How do several workers of a strategy train on compressed .npz files?

Two processes under ``MultiWorkerMirroredStrategy``, each with its own ``TF_CONFIG``, run an epoch
in step and sum their gradients. By hand, files are divided among workers: the one with fewer
samples continues with empty batches until the other is done, and samples are mixed only with those
of the same worker. With ndfeed each worker gets its part of every global batch, whatever the files.

Compressed files are decompressed by every worker that needs a row of them, so pack them once.
"""

import json
import os
import socket
import subprocess
import sys
from contextlib import ExitStack

import numpy as np
from side_by_side import compare, start

import ndfeed

BATCH, EACH, WORKERS = 160, 50, 2  # samples of a global batch, samples in a file
WAYS = {
    "tf.data, files dealt out": "sharded",
    "ndfeed.tf.dataset": "npz",
    "ndfeed.tf.dataset, packed": "packed",
}


def make(folder, samples):
    rng = np.random.default_rng(0)
    (folder / "npz").mkdir()
    for i in range(0, samples, EACH):
        image = rng.integers(0, 64, (min(EACH, samples - i), 32, 32, 3), np.uint8)
        label = np.arange(i, i + len(image))
        np.savez_compressed(folder / "npz" / f"{i:09}.npz", image=image, label=label)
    ndfeed.pack(ndfeed.open(folder / "npz", sample="row"), folder / "packed")


# In each worker.


def sharded(tf, paths, context):
    """Return the usual way: every other file, interleaved and shuffled in a buffer."""

    def load(path):
        with np.load(path.decode()) as arrays:
            return arrays["image"], arrays["label"]

    def rows(path):
        image, label = tf.numpy_function(load, [path], (tf.uint8, tf.int64))
        shaped = tf.ensure_shape(image, (None, 32, 32, 3)), tf.ensure_shape(label, (None,))
        return tf.data.Dataset.from_tensor_slices(shaped)

    files = tf.data.Dataset.from_tensor_slices(paths)
    mine = files.shard(context.num_input_pipelines, context.input_pipeline_id).shuffle(len(paths))
    mixed = mine.interleave(rows, num_parallel_calls=tf.data.AUTOTUNE, deterministic=False)
    size = context.get_per_replica_batch_size(BATCH)
    return mixed.shuffle(10 * EACH).batch(size).prefetch(tf.data.AUTOTUNE)


def dataset(tf, way, folder, context):
    """Return one worker's part, as the strategy requests it."""
    if way == "sharded":
        paths = sorted(os.path.join(folder, "npz", name) for name in os.listdir(f"{folder}/npz"))
        return sharded(tf, paths, context)
    import ndfeed.tf  # noqa: PLC0415 - not needed by the process that starts the workers

    ds = ndfeed.open(os.path.join(folder, way), sample="row" if way == "npz" else "auto")
    return ndfeed.tf.dataset(ds, BATCH, shuffle=True, fields=("image", "label"), context=context)


def work(folder):
    """Train one epoch with each requested way, and reply with the labels seen by this worker."""
    import tensorflow as tf  # noqa: PLC0415 - not needed by the process that starts the workers

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        weight = tf.Variable(tf.zeros((32 * 32 * 3, 1)))

    @tf.function
    def step(batch):
        def each(image, label):
            x = tf.cast(tf.reshape(image, (-1, 32 * 32 * 3)), tf.float32) / 255
            with tf.GradientTape() as tape:
                error = tf.matmul(x, weight)[:, 0] - tf.cast(label, tf.float32)
                loss = tf.reduce_sum(error**2) / BATCH
            replica = tf.distribute.get_replica_context()
            weight.assign_sub(1e-4 * replica.all_reduce("sum", tape.gradient(loss, weight)))

        strategy.run(each, args=batch)

    data = {
        way: strategy.distribute_datasets_from_function(
            lambda context, way=way: dataset(tf, way, folder, context)
        )
        for way in WAYS.values()
    }
    for line in sys.stdin:
        seen = []
        for batch in data[line.strip()]:
            step(batch)
            seen += [one.numpy() for one in strategy.experimental_local_results(batch[1])]
        print(json.dumps(np.concatenate(seen).tolist()), flush=True)


# In the process that starts them.


class Epochs:
    """Epochs of all workers together: the labels that each of them saw."""

    def __init__(self, workers, way):
        self.workers, self.way = workers, way

    def __iter__(self):
        for worker in self.workers:
            print(self.way, file=worker.stdin, flush=True)
        for worker in self.workers:
            yield np.array(json.loads(worker.stdout.readline()))


def started(folder):
    """Start one process per worker; each knows the addresses of the others."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(WORKERS)]
        for one in sockets:
            one.bind(("localhost", 0))
        ports = [one.getsockname()[1] for one in sockets]
    cluster = {"worker": [f"localhost:{port}" for port in ports]}
    for index in range(WORKERS):
        config = {"cluster": cluster, "task": {"type": "worker", "index": index}}
        yield subprocess.Popen(
            [sys.executable, __file__, "--worker", folder],
            env=os.environ | {"TF_CONFIG": json.dumps(config), "TF_CPP_MIN_LOG_LEVEL": "3"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )


def main(folder, samples):
    make(folder, samples)
    workers = list(started(folder))
    try:
        ways = {name: Epochs(workers, way) for name, way in WAYS.items()}
        compare(f"{WORKERS} workers in step", ways)
    finally:
        for worker in workers:
            worker.stdin.close()
            worker.terminate()
            worker.wait()
            worker.stdout.close()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        work(sys.argv[2])
    else:
        start(main, samples=960)
