"""How an order differs from a true shuffle: statistics, each as a normal deviate.

Every statistic here is about normal with mean 0 and deviation 1 if the orders are those of a
true shuffle. ``perm(positions, n, key)`` is what is judged.
"""

import math
from itertools import pairwise

import numpy as np


def chi(counts, expected, freedom):
    """Deviate of a chi-square sum (Wilson and Hilferty)."""
    x = float(((counts - expected) ** 2 / expected).sum())
    return ((x / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom))


def bins(values, size, count=64):
    """Deviate of values that should be uniform in [0, size)."""
    size = int(size)
    count = min(count, size)
    edges = np.array([size * i // count for i in range(count + 1)])
    got = np.bincount(np.searchsorted(edges, values, side="right") - 1, minlength=count)
    return chi(got, np.diff(edges) / size * len(values), count - 1)


def places(perm, n, keys):
    """Does every position go to every row equally often?"""
    counts = np.zeros((n, n))
    for key in keys:
        counts[np.arange(n), perm(np.arange(n), n, key)] += 1
    yield f"places n={n}", chi(counts, len(keys) / n, (n - 1) ** 2)


def orders(perm, n, keys):
    """Are all n! orders equally likely?"""
    weights = n ** np.arange(n)
    rows = perm(np.tile(np.arange(n), len(keys)), np.full(n * len(keys), n), np.repeat(keys, n))
    _, counts = np.unique(rows.reshape(-1, n) @ weights, return_counts=True)
    total = math.factorial(n)
    counts = np.concatenate((counts, np.zeros(total - len(counts))))
    yield f"orders n={n}", chi(counts, len(keys) / total, total - 1)


def cycles(perm, n, keys):
    """Fixed points, cycles and parity, each against its mean and variance."""
    fixed, found = [], []
    for key in keys:
        p = perm(np.arange(n), n, key)
        fixed.append((p == np.arange(n)).sum())
        found.append(cycle_count(p.tolist()))
    harmonic = sum(1 / i for i in range(1, n + 1))
    spread = harmonic - sum(1 / i**2 for i in range(1, n + 1))
    odd = (n - np.array(found)) % 2
    m = len(keys)
    yield f"fixed points n={n}", (np.mean(fixed) - 1) * math.sqrt(m)
    yield f"spread of fixed points n={n}", (np.var(fixed) - 1) * math.sqrt(m / 3)
    yield f"cycles n={n}", (np.mean(found) - harmonic) * math.sqrt(m / spread)
    yield f"odd n={n}", (np.mean(odd) - 0.5) * 2 * math.sqrt(m)


def cycle_count(p):
    """Cycles of a permutation given as a list."""
    seen, count = bytearray(len(p)), 0
    for i in range(len(p)):
        count += not seen[i]
        while not seen[i]:
            seen[i] = 1
            i = p[i]
    return count


def halves(perm, n, keys):
    """Rows of one half of positions in one half of rows: of halves, and of odd and even ones."""
    h = n // 2
    spread = math.sqrt(h * h * (n - h) ** 2 / (n**2 * (n - 1)))
    for name, positions, chosen in (
        ("halves", np.arange(h), lambda rows: rows < h),
        ("parity", 2 * np.arange(h), lambda rows: rows % 2 == n % 2),
    ):
        z = [(chosen(perm(positions, n, key)).sum() - h * h / n) / spread for key in keys]
        yield f"{name} n={n}", np.mean(z) * math.sqrt(len(keys))
        yield f"spread of {name} n={n}", (np.mean(np.square(z)) - 1) * math.sqrt(len(keys) / 2)


def neighbours(perm, n, key, count=1 << 15):
    """Differences between rows of positions near each other, or one digit apart."""
    bits = (n - 1).bit_length()
    digit = 1 << bits // 2
    x = np.arange(min(count, n - 2 * digit))
    rows = perm(x, n, key)
    for lag in (1, 2, digit, digit + 1):
        moved = (perm(x + lag, n, key) - rows) % n
        yield f"lag {lag} n={n}", bins(moved - 1, n - 1)
        if n >= 1 << 20:
            yield f"lag {lag} low n={n}", bins(moved % digit, digit)
    corner = rows - perm(x + 1, n, key) - perm(x + digit, n, key) + perm(x + digit + 1, n, key)
    yield f"corners low n={n}", bins(corner % 64, 64)
    yield f"serial n={n}", np.corrcoef(rows[:-1], rows[1:])[0, 1] * math.sqrt(len(rows) - 1)


def pairs(perm, n, keys):
    """Where two near positions go over many keys: difference of rows, whole and by digit."""
    digit = 1 << (n - 1).bit_length() // 2
    m = len(keys)
    base = np.arange(m) * 7 % (n - 2 * digit)
    rows = {d: perm(base + d, np.full(m, n), keys) for d in (0, 1, digit, digit + 1)}
    for d in (1, digit, digit + 1):
        moved = (rows[d] - rows[0]) % n
        yield f"pair {d} n={n}", bins(moved - 1, n - 1)
        high = rows[d] // digit == rows[0] // digit
        yield f"pair {d} same high n={n}", rare(high, (digit - 1) / (n - 1))
        low = rows[d] % digit == rows[0] % digit
        yield f"pair {d} same low n={n}", rare(low, (n / digit - 1) / (n - 1))
        if n < 1 << 20:
            continue
        yield f"pair {d} low n={n}", bins(moved % digit, digit)
    if n < 1 << 20:  # so few that differences are not uniform in a true shuffle either
        return
    corner = rows[0] - rows[1] - rows[digit] + rows[digit + 1]
    yield f"pair corners n={n}", bins(corner % 64, 64)
    yield f"pair corners zero n={n}", rare(corner % digit == 0, 1 / digit)


def triples(perm, n, keys):
    """Where three positions go together."""
    m, i = len(keys), np.arange(n)
    apart = (i[:, None, None] != i[:, None]) & (i[:, None, None] != i) & (i[:, None] != i)
    for chosen in ((0, 1, 2), (0, 1, 4), (0, n // 2, n - 1)):
        a, b, c = (perm(np.full(m, at), np.full(m, n), keys) for at in chosen)
        counts = np.bincount((a * n + b) * n + c, minlength=n**3).reshape(n, n, n)[apart]
        yield f"triple {chosen} n={n}", chi(counts, m / len(counts), len(counts) - 1)


def rare(hits, chance):
    """Deviate of a count of events that should have a chance each; 0 if too few to tell."""
    expected = len(hits) * chance
    if expected < 20:
        return 0.0
    return (hits.sum() - expected) / math.sqrt(expected * (1 - chance))


def strangers(perm, n, keys):
    """Two orders of different keys share nothing."""
    x = np.arange(n)
    made = [perm(x, n, key) for key in keys]
    for k, (p, q) in enumerate(pairwise(made)):
        yield f"correlation {k} n={n}", np.corrcoef(p, q)[0, 1] * math.sqrt(n - 1)
        yield f"steps {k} n={n}", bins((p - q) % n, n)
