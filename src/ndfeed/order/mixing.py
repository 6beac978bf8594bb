"""How well an order mixes, as one number in ``(0, 1]``: 1 is an exact shuffle.

The worst case is that all rows of a part are alike, as in files sorted by class. Then rows of
one batch that come from one part say the same thing twice. With q the probability that two
rows of a batch are of the same part, the mean of a batch of b rows varies like
``1/b + (1 - 1/b) * q``. ``mixing`` is that of an exact shuffle divided by that of the order:
at 0.5 a batch of 256 is worth one of about 128 from an exact shuffle, if rows are that alike.
Data whose parts are mixed in themselves lose nothing, whatever the number.

For a window, q is counted from what each part gives to a slot, or to as many slots as a batch
fills, averaged over the epoch: its first slot and its last are less even than those between.
"""

import numpy as np
from numpy.typing import NDArray

from ndfeed.order.permutation import Ints
from ndfeed.order.window import Windowed

_LOOKED_AT = 64  # stretches of an epoch that stand for all of it


def ratio(b: int, q: float, exact: float) -> float:
    """The variance of a batch's mean under an exact shuffle, over that under an order."""
    return min((1 + (b - 1) * exact) / (1 + (b - 1) * q), 1.0)


def alike(amounts: Ints) -> float:
    """The probability that two different rows are of one part, given each part's rows."""
    x = amounts.astype(np.float64)
    total = float(x.sum())
    return float((x * (x - 1)).sum()) / (total * (total - 1)) if total > 1 else 1.0


def mixing_of(walk: Windowed, batch_size: int, exact: float) -> float:
    """The mixing of a window. A batch is taken to lie inside a slot, or to fill several."""
    b = min(batch_size, walk.n)
    if b < 2:
        return 1.0
    slots = min(max(round(b * walk.slots / walk.n), 1), walk.slots)
    at, stands_for = _sample(walk.slots - slots + 1)
    amounts = [walk.amounts(int(slot), slots) for slot in at]
    weights = stands_for * [float(a.sum()) for a in amounts]
    same = np.array([alike(a) for a in amounts])
    return ratio(b, float((weights * same).sum() / weights.sum()), exact)


def _sample(slots: int) -> tuple[Ints, NDArray[np.float64]]:
    """Slots from all of an epoch, more of them near its ends, and how many each stands for."""
    near = 1 << np.arange(slots.bit_length(), dtype=np.int64)
    even = np.linspace(0, slots - 1, _LOOKED_AT).astype(np.int64)
    at = np.unique(np.clip(np.concatenate((even, near, slots - 1 - near)), 0, slots - 1))
    edges = np.concatenate(([-0.5], (at[1:] + at[:-1]) / 2, [slots - 0.5]))
    return at, np.diff(edges)
