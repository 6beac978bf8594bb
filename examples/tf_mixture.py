"""How do I mix several datasets in TensorFlow, and resume in the middle of an epoch?

By hand it is ``tf.data.Dataset.sample_from_datasets``: proportions hold on average only, each
dataset needs a shuffle buffer of its own, and a checkpoint of the iterator holds these buffers.
``ndfeed.mix`` has exact proportions in every batch, and its state says in a few numbers where each
dataset stands.
"""

import numpy as np
import tensorflow as tf
from side_by_side import compare, start

import ndfeed
import ndfeed.tf

BATCH = 32
NAMES, SHARES = ("web", "code"), (3, 1)


def sampled(arrays):
    """Batches as people write them."""
    parts = [tf.data.Dataset.from_tensor_slices(one).shuffle(len(one)) for one in arrays]
    weights = [share / sum(SHARES) for share in SHARES]
    mixed = tf.data.Dataset.sample_from_datasets(parts, weights, seed=0)
    return mixed.batch(BATCH).prefetch(tf.data.AUTOTUNE)


def count_code(batches):
    """Return the least and the most samples of the second dataset in a full batch."""
    full = (batch.numpy() for batch in batches if len(batch) == BATCH)
    counts = [int((one[:, 0] < 0).sum()) for one in full]
    return min(counts), max(counts)


def resume(mixed, path):
    """Stop after three batches, and go on from the checkpoint with a new dataset."""

    def make():
        state = ndfeed.tf.State()
        words = {"shuffle": True, "fields": "x", "state": state}
        return state, ndfeed.tf.dataset(mixed, BATCH, **words), tf.train.Checkpoint(data=state)

    state, data, checkpoint = make()
    batches = iter(data)
    for _ in range(3):
        next(batches)
        state.advance()
    saved = checkpoint.save(path)
    rest = np.concatenate([batch.numpy() for batch in batches])

    _, later, checkpoint = make()
    checkpoint.restore(saved)
    found = np.concatenate([batch.numpy() for batch in later])
    assert np.array_equal(found, rest)
    return len(found), state.state_dict()["more"]["sources"]


def main(folder, samples):
    count = samples // sum(SHARES)
    arrays = []
    for name, share, sign in zip(NAMES, SHARES, (1, -1), strict=True):
        rows = np.arange(1, share * count * 64 + 1, dtype=np.float32).reshape(-1, 64)
        arrays.append(sign * rows)
        np.save(folder / f"{name}.npy", arrays[-1])

    sources = {name: ndfeed.open({"x": folder / f"{name}.npy"}) for name in NAMES}
    mixed = ndfeed.mix(sources, weights=SHARES)
    ours = ndfeed.tf.dataset(mixed, BATCH, shuffle=True, fields="x")
    ways = {"sample_from_datasets": sampled(arrays), "ndfeed.mix": ours}
    compare("two datasets, three to one", ways)
    for name, way in ways.items():
        least, most = count_code(way)
        print(f"  {name}: {least} to {most} of {BATCH} samples of a batch are of {NAMES[1]!r}")
    left, sources = resume(mixed, str(folder / "checkpoint"))
    print(f"  resumed at {sources}: the same {left:,} samples follow")


if __name__ == "__main__":
    start(main, samples=6_400)
