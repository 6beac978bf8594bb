"""How do I train on rare classes as often as on common ones?

The usual way is ``WeightedRandomSampler`` with one over the size of each class. It draws with
replacement: batches are balanced on average only, and after an epoch some samples have not come
while others came several times. It also knows no ranks and does not resume. ``ndfeed.Balanced``
has every class equally often in every batch, each by permutation, and ``ndfeed.Weighted`` draws as
the sampler does; both are divided among ranks and resume in the middle of an epoch.
"""

import json

import numpy as np
import torch
from side_by_side import start

import ndfeed.torch

BATCH = 30
SHARES = [0.9, 0.08, 0.02]


def uneven(batches):
    """Return how far classes are apart in a batch, on average, and how many samples came."""
    labels, rows = zip(*((label.numpy(), row.numpy()) for label, row in batches), strict=True)
    counts = np.array([np.bincount(one, minlength=3) for one in labels if len(one) == BATCH])
    apart = (counts.max(axis=1) - counts.min(axis=1)).mean()
    return apart, len(np.unique(np.concatenate(rows)))


def with_sampler(ds, label):
    """Batches as people write them."""
    weights = 1 / np.bincount(label)[label]
    sampler = torch.utils.data.WeightedRandomSampler(weights, len(label))
    loader = torch.utils.data.DataLoader(ndfeed.torch.dataset(ds), BATCH, sampler=sampler)
    return ((batch["label"], batch["row"]) for batch in loader)


def resume_on_two_ranks(ds, order):
    """Stop one rank in the middle of an epoch, and continue with two: no draw is lost."""
    alone = ndfeed.torch.loader(ds, BATCH, shuffle=order, fields="row")
    batches = iter(alone)
    for _ in range(5):
        next(batches)
    saved = json.dumps(alone.state_dict())
    expected = torch.cat(list(batches))

    ranks = [
        ndfeed.torch.loader(ds, BATCH // 2, shuffle=order, fields="row", shard=(rank, 2))
        for rank in range(2)
    ]
    for rank in ranks:
        rank.load_state_dict(json.loads(saved))
    found = torch.cat([part for parts in zip(*ranks, strict=True) for part in parts])
    assert found.equal(expected)
    return len(found)


def main(folder, samples):
    torch.manual_seed(0)
    label = np.random.default_rng(0).choice(3, samples, p=SHARES)
    np.savez(folder / "data.npz", label=label, row=np.arange(samples), x=np.zeros((samples, 8)))
    ds = ndfeed.open(folder / "data.npz")

    orders = {
        "ndfeed.Weighted": ndfeed.Weighted(1 / np.bincount(label)[label]),
        "ndfeed.Balanced": ndfeed.Balanced("label"),
    }
    ways = {"WeightedRandomSampler": with_sampler(ds, label)}
    for name, order in orders.items():
        ways[name] = ndfeed.torch.loader(ds, BATCH, shuffle=order, fields=("label", "row"))
    print(f"batches of {BATCH} from classes of {np.bincount(label).tolist()} samples")
    for name, batches in ways.items():
        apart, seen = uneven(batches)
        print(f"  {name:25} classes differ by {apart:4.1f} in a batch, {seen:,} samples came")
        assert name != "ndfeed.Balanced" or apart == 0
    for name, order in orders.items():
        rest = resume_on_two_ranks(ds, order)
        print(f"  {name:25} resumed on two ranks: the same {rest:,} draws")


if __name__ == "__main__":
    start(main, samples=3_000)
