"""The orders users choose from: frozen, checked when they are made, and told apart on resume.

Their mixing is what a simulation of the worst case finds.
"""

import json
import pickle

import numpy as np
import pytest

from ndfeed.order.orders import Blocks, Exact, Sequential, Windows
from ndfeed.order.protocol import Order, is_order

COUNTS = np.array([4, 0, 7, 1, 9, 3])

# Order, rows, seed, epoch, and the first rows.
GOLDEN = [
    (Sequential(), 10**6, 0, 0, [0, 1, 2, 3, 4, 5, 6, 7]),
    (Exact(), 8, 0, 0, [5, 0, 1, 6, 2, 4, 3, 7]),
    (Exact(), 10, 0, 0, [3, 0, 9, 4, 2, 7, 1, 6]),
    (Exact(), 10, 0, 1, [3, 4, 1, 0, 5, 2, 6, 9]),
    (Exact(), 10, 1, 0, [0, 2, 7, 5, 1, 6, 3, 8]),
    (Exact(), 10, -1, 0, [3, 5, 7, 0, 1, 9, 4, 2]),
    (Exact(), 512, 0, 0, [115, 307, 254, 180, 343, 118, 210, 130]),
    (Exact(), 513, 0, 0, [188, 111, 98, 331, 43, 487, 401, 308]),
    (Exact(), 10**6, 0, 0, [200019, 27345, 441214, 72632, 501028, 894005, 6125, 451580]),
    (Exact(), 10**6, 12345, 67, [119460, 41868, 653610, 311956, 682813, 931010, 705015, 210943]),
    (
        Exact(),
        2**32 - 1,
        0,
        0,
        [
            4164448479,
            2735535574,
            3686171942,
            1909737904,
            506016780,
            59984052,
            3697317071,
            573052918,
        ],
    ),
    (
        Exact(),
        2**32,
        0,
        0,
        [
            756913179,
            1482807485,
            2071894620,
            1572872785,
            666848325,
            1514100279,
            356300595,
            2404444246,
        ],
    ),
    (
        Exact(),
        10**12,
        0,
        0,
        [
            133454454376,
            286056394887,
            198264453418,
            517672714893,
            951198915137,
            338460687661,
            420354738683,
            428004636515,
        ],
    ),
    (
        Exact(),
        10**12,
        2**80,
        0,
        [
            128486955571,
            892947230444,
            145782897965,
            23346232691,
            683193849820,
            41346951945,
            487115970437,
            855565668760,
        ],
    ),
    (Blocks(), 10**6, 0, 0, [248188, 408059, 36414, 945585, 906803, 915040, 683146, 922319]),
    (
        Blocks(),
        10**10,
        0,
        0,
        [
            7789324668,
            1257564667,
            9067400766,
            9385295281,
            8354588211,
            3878475360,
            8922594442,
            8295682767,
        ],
    ),
    (Blocks(rows=4, window=3), 30, 0, 0, [16, 10, 19, 18, 9, 25, 17, 11]),
    (Blocks(rows=4, window=3), 30, 0, 1, [28, 29, 14, 17, 15, 13, 12, 22]),
    (Blocks(rows=1, window=1), 8, 7, 0, [5, 0, 1, 3, 2, 7, 6, 4]),
    (Blocks(rows=100, window=50), 10, 0, 0, [5, 7, 1, 2, 0, 9, 4, 6]),
    (Windows(files=2), 24, 0, 0, [23, 22, 21, 6, 9, 5, 8, 4]),
    (Windows(files=2), 24, 1, 3, [18, 15, 16, 17, 19, 14, 12, 20]),
    (Windows(), 24, 0, 0, [17, 3, 23, 4, 2, 21, 15, 18]),
]


@pytest.mark.parametrize(("order", "n", "seed", "epoch", "first"), GOLDEN)
def test_orders_are_frozen(order, n, seed, epoch, first):
    """A resumed run relies on these: a change here breaks every state that was ever saved."""
    assert order.begin(n, seed, epoch, COUNTS).rows(0, len(first)).tolist() == first


def test_an_order_is_frozen_to_its_end():
    """All of it, for a window over files."""
    rows = Windows(files=2).begin(24, 0, 0, COUNTS).rows(0, 24).tolist()

    assert rows == [
        23,
        22,
        21,
        6,
        9,
        5,
        8,
        4,
        7,
        10,
        2,
        3,
        11,
        18,
        14,
        20,
        17,
        0,
        12,
        1,
        15,
        19,
        13,
        16,
    ]


@pytest.mark.parametrize("order", [Exact(), Blocks(8, 4), Windows(3)])
def test_seeds_and_epochs_have_orders_of_their_own(order):
    """Seed and epoch are no sum, and their order matters."""
    pairs = [(s, e) for s in range(6) for e in range(6)]
    counts = np.full(20, 10)
    made = {tuple(order.begin(200, s, e, counts).rows(0, 200).tolist()) for s, e in pairs}

    assert len(made) == len(pairs)


@pytest.mark.parametrize("order", [Blocks(5, 3), Windows(3)])
def test_every_row_can_stand_anywhere_it_may(order):
    """Over seeds, no row is tied to a place: the mean position of each is that of all."""
    n, seeds, counts = 60, 1500, np.full(12, 5)
    position = np.empty((seeds, n))
    for seed in range(seeds):
        position[seed, order.begin(n, seed, 0, counts).rows(0, n)] = np.arange(n)
    z = (position.mean(axis=0) - (n - 1) / 2) / (position.std() / np.sqrt(seeds))

    assert np.abs(z).max() < 4.5


@pytest.mark.parametrize("order", [Sequential(), Exact(), Blocks(), Windows()])
def test_orders_are_values(order):
    """Equal to their like, hashable, and the same after pickling or JSON."""
    assert isinstance(order, Order)
    assert pickle.loads(pickle.dumps(order)) == order == type(order)()
    assert len({order, type(order)()}) == 1
    assert json.loads(json.dumps(order.spec())) == order.spec()


def test_specs():
    """What a saved state says of its order."""
    assert Sequential().spec() == {"kind": "sequential"}
    assert Exact().spec() == {"kind": "exact"}
    assert Blocks(np.int64(10), 2).spec() == {"kind": "blocks", "rows": 10, "window": 2}
    assert Windows(5).spec() == {"kind": "windows", "files": 5}
    assert json.dumps(Blocks(np.int64(10)).spec())


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Blocks(rows=0), ValueError, "rows must be at least 1, got 0"),
        (lambda: Blocks(window=-1), ValueError, "window must be at least 1, got -1"),
        (lambda: Windows(0), ValueError, "files must be at least 1, got 0"),
        (lambda: Blocks(rows=1.5), TypeError, "rows must be an integer, got 1.5"),
        (lambda: Windows(True), TypeError, "files must be an integer, got True"),
        (lambda: Windows().begin(5, 0, 0), ValueError, "needs counts, the rows of each file"),
        (lambda: Windows().begin(5, 0, 0, np.array([2, 2])), ValueError, "5 in all, got 4"),
        (lambda: Windows().begin(1, 0, 0, np.array([2, -1])), ValueError, "none below 0"),
        (lambda: Exact().begin(-1, 0, 0), ValueError, r"n must be in \[0, 2\*\*62\], got -1"),
        (lambda: Exact().begin(2**63, 0, 0), ValueError, r"n must be in \[0, 2\*\*62\]"),
        (lambda: Exact().begin(5, 0.5, 0), TypeError, "integer"),
    ],
)
def test_wrong_arguments_are_refused(make, error, message):
    """At construction, or when the epoch begins."""
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize("order", [Sequential(), Exact(), Windows(files=3), Windows(files=50)])
@pytest.mark.parametrize("files", [1, 2, 20])
def test_no_more_files_are_in_use_than_an_order_says(order, files):
    """Memory is set aside for so many decoded files: those between their first and last row."""
    rows = 7
    n = files * rows
    counts = np.full(files, rows)
    file = order.begin(n, 3, 1, counts).rows(0, n) // rows
    uses = [np.flatnonzero(file == one) for one in range(files)]
    open_at = [sum(use[0] <= at <= use[-1] for use in uses) for at in range(n)]

    assert max(open_at) <= order.parts_in_use(files, rows) <= files


def test_what_orders_need_of_files():
    """A loader asks these instead of which order it is."""
    orders = [Sequential(), Exact(), Blocks(rows=10, window=4), Windows(files=3)]

    assert [one.traits.shuffled for one in orders] == [False, True, True, True]
    assert [one.traits.by_file for one in orders] == [False, False, False, True]
    assert [one.traits.by_part for one in orders] == [False, False, True, True]
    assert [one.traits.open_parts for one in orders] == [1, 1, 4, 3]
    assert [one.parts_in_use(100, 5) for one in orders] == [2, 100, 8, 4]
    assert [one.lanes([0], 2) for one in orders] == [()] * 4
    assert Windows(ranks=4).lanes([1], 2) == [1, 3]
    assert all(map(is_order, orders))
    assert not any(map(is_order, [True, False, None, "exact", Sequential]))
