"""What orders say about how well they mix: what is counted, and what people read."""

import copy
import json
import pickle
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import ndfeed
from ndfeed.loading.order_mixing import measure_order
from ndfeed.order.epoch import Share
from ndfeed.order.mixing import Mixing, Parts, choose_batches, measure, mixing_ratio
from ndfeed.order.protocol import Plain

layouts = st.one_of(
    st.lists(st.integers(1, 200), min_size=12, max_size=120),
    st.builds(lambda files, rows: [rows] * files, st.integers(2, 300), st.integers(1, 300)),
)


def held(counts):
    """A dataset in memory, and the loader's idea of the rows of its files."""
    return ndfeed.open({"x": np.zeros(int(np.sum(counts)), np.uint8)}), np.asarray(counts, np.int64)


def mixing_of(order, counts, batch, world=1, seed=0):
    """The mixing on files of ``counts`` rows."""
    ds, counts = held(counts)
    share = Share(len(ds), batch, 0, world)
    return measure_order(order, counts if order.traits.by_file else None, ds, share, seed)


UNEVEN = np.random.default_rng(0).integers(5, 60, 120)
CASES = [
    (ndfeed.Blocks(rows=64, window=8), 64 * 120, 32, np.full(120, 64)),
    (ndfeed.Blocks(rows=64, window=8), 64 * 120, 256, np.full(120, 64)),
    (ndfeed.Blocks(rows=100, window=40), 100 * 45, 20, np.full(45, 100)),
    (ndfeed.Blocks(rows=10, window=100), 1000, 50, np.full(100, 10)),
    (ndfeed.Blocks(rows=100, window=1), 10_000, 50, np.full(100, 100)),
    (ndfeed.Windows(files=6), int(UNEVEN.sum()), 16, UNEVEN),
    (ndfeed.Windows(files=64), 1000, 32, np.ones(1000, np.int64)),
    (ndfeed.Sequential(), 10_000, 50, np.full(100, 100)),
]


def variance(rows, part, batch_size, rng):
    """Of a batch's distance from the mean of all, if every part has one value, drawn each time."""
    used = part[rows]
    rows = rows[: len(rows) // batch_size * batch_size].reshape(-1, batch_size)
    values = rng.standard_normal((200, part.max() + 1))
    return float(
        np.mean(
            [np.square(one[part[rows]].mean(axis=1) - one[used].mean()).mean() for one in values]
        )
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[2]}")
def test_mixing_is_what_a_simulation_finds(case):
    """Within a fifth and four standard errors, of several epochs."""
    order, n, batch_size, counts = case
    part = np.repeat(np.arange(len(counts)), counts)
    rng = np.random.default_rng(1)
    exact, ours = (
        sum(
            variance(one.begin(n, seed, 0, counts).rows(0, n), part, batch_size, rng)
            for seed in range(8)
        )
        for one in (ndfeed.Exact(), order)
    )

    found = mixing_of(order, counts, batch_size)

    assert found.ratio == pytest.approx(exact / ours, abs=0.2 * exact / ours + 4 * found.error)


@given(layouts, st.integers(1, 16), st.integers(2, 300), st.integers(0, 2**32))
def test_what_is_counted_of_files(counts, files, batch, seed):
    """Never more parts than there are, nor better than a true shuffle."""
    assume(sum(counts) >= batch)
    found = mixing_of(ndfeed.Windows(files), counts, batch, seed=seed)

    assert 0 < found.ratio <= 1
    assert (found.part, found.parts) == ("file", len(counts))
    assert 1 <= found.drawn <= min(batch, len(counts))


def test_a_wider_window_mixes_better():
    """Up to an exact shuffle, which has 1."""
    found = [mixing_of(ndfeed.Blocks(64, w), [10**5], 256).ratio for w in (1, 4, 32, 256, 1563)]

    assert found == sorted(found)
    assert found[0] < 0.02
    assert found[-1] == 1


@given(layouts, st.integers(2, 300), st.integers(0, 2**32))
def test_an_exact_shuffle_is_counted_as_one(counts, batch, seed):
    """Within five standard errors: the yardstick measures itself."""
    assume(sum(counts) >= 8 * batch)
    counts = np.asarray(counts, np.int64)
    n = int(counts.sum())
    batches = [
        ndfeed.Exact().begin(n, seed, epoch).rows(at, at + batch)
        for epoch, positions in choose_batches(n, batch)
        for at in positions
    ]
    found = measure(n, batches, Parts.listed("file", counts))

    assert 1 - found.ratio <= max(5 * found.error, 0.02)


@given(st.integers(0, 10**12), st.integers(1, 10**6), st.integers(1, 2000))
def test_batches_are_chosen_from_the_whole_epoch(n, batch, open_parts):
    """Full ones, no position twice, a bounded number of rows."""
    chosen = list(choose_batches(n, batch, open_parts))
    full = n // batch

    assert bool(chosen) == (full > 0)
    for _, positions in chosen:
        assert positions == sorted(set(positions))
        assert all(at % batch == 0 and 0 <= at <= n - batch for at in positions)
        assert len(positions) * batch <= max(1 << 16, batch)
        assert len(positions) <= 16


@pytest.fixture(scope="module")
def by_class(tmp_path_factory):
    """60 compressed files, each of one class of 100 samples, of which only the label matters."""
    folder = tmp_path_factory.mktemp("by_class")
    for i in range(60):
        np.savez_compressed(folder / f"{i:02d}.npz", y=np.full(100, i), x=np.zeros((100, 8)))
    return ndfeed.open(folder, sample="row")


def variance_of_means(ds, order, batch_size):
    """How far batches are from the mean of all samples, if every class has a value of its own."""
    values = np.random.default_rng(0).standard_normal((1000, 60))
    values -= values.mean(axis=1, keepdims=True)
    loader = ndfeed.loader(ds, batch_size, shuffle=order, drop_last=True)
    found = [
        np.square(values[:, batch["y"]].mean(axis=1)).mean() for _ in range(6) for batch in loader
    ]
    return float(np.mean(found))


@pytest.mark.parametrize("files", [3, 8, 20])
def test_files_sorted_by_class_lose_what_it_says(by_class, files):
    """Batches of a real loader vary by as much more, and as much as batches of ``worth`` rows."""
    order = ndfeed.Windows(files)
    mixing = ndfeed.loader(by_class, 50, shuffle=order).order.mixing
    ours = variance_of_means(by_class, order, 50)

    assert variance_of_means(by_class, ndfeed.Exact(), 50) / ours == pytest.approx(
        mixing.ratio, rel=0.15
    )
    assert variance_of_means(by_class, ndfeed.Exact(), mixing.worth) == pytest.approx(ours, rel=0.2)


def test_a_loader_tells_how_well_its_order_mixes(by_class):
    """The order is the one that was asked for in every other respect."""
    order = ndfeed.Windows(6)
    loader = ndfeed.loader(by_class, 64, shuffle=order)
    mixing = loader.order.mixing

    assert loader.order == order
    assert hash(loader.order) == hash(order)
    assert isinstance(loader.order, ndfeed.Windows)
    assert f"{loader.order}" == f"{order}" == "Windows(files=6)"
    assert loader.order.spec() == order.spec()
    assert pickle.dumps(loader.order) == pickle.dumps(order)
    assert pickle.loads(pickle.dumps(loader.order)) == copy.deepcopy(loader.order) == order
    assert isinstance(mixing, Mixing)
    assert (mixing.order, mixing.rows, mixing.batch) == ("Windows(files=6)", 6000, 64)
    assert (mixing.part, mixing.parts, mixing.reach) == ("file", 60, 0.1)
    assert mixing.ratio == pytest.approx(0.09, abs=0.02)
    assert mixing.worth == round(64 * mixing.ratio) == 6
    assert loader.order.mixing is mixing  # measured once


def test_an_order_that_no_loader_uses_says_where_to_look():
    """It knows no data."""
    with pytest.raises(AttributeError, match=r"read loader\.order\.mixing of a loader"):
        _ = ndfeed.Blocks().mixing


def test_nothing_is_measured_until_it_is_read(by_class, monkeypatch):
    """Epochs begin only when batches or the mixing are asked for."""
    begun = []
    begin = ndfeed.Windows.begin
    monkeypatch.setattr(
        ndfeed.Windows, "begin", lambda *a, **more: begun.append(a) or begin(*a, **more)
    )
    loader = ndfeed.loader(by_class, 64, shuffle=True)
    report = loader.report()
    assert loader.order.spec()
    assert report.order == f"{loader.order}"
    assert not begun

    assert loader.order.mixing
    assert begun


def test_it_reads_as_a_sentence(by_class):
    """One that says what to do, and numbers for JSON."""
    mixing = ndfeed.loader(by_class, 64, shuffle=ndfeed.Windows(6)).order.mixing

    assert f"{mixing}" == (
        "a batch of 64 rows draws from about 7 of 60 files: if the rows of a file are alike, it is "
        "worth 6 rows of a true shuffle (0.10); shuffle=ndfeed.Exact() is 1.00"
    )
    found = json.loads(json.dumps(mixing.as_dict()))
    assert found["worth"] == 6
    assert found["text"] == f"{mixing}"
    assert found["by_file"] is None


@pytest.mark.parametrize(
    ("shuffle", "text"),
    [
        (ndfeed.Exact(), "a batch of 64 rows is as well mixed as by a true shuffle"),
        (ndfeed.Windows(60), "a batch of 64 rows is as well mixed as by a true shuffle"),
        (False, "stored next to each other: if those are alike, it is worth 1 row of a true"),
        (ndfeed.Blocks(20, 10), "draws from about 13 of 300 blocks: if the rows of a block"),
        (ndfeed.Blocks(1000, 3), "if only the rows of a file are alike, it is 0."),
    ],
)
def test_every_order_has_its_sentence(by_class, shuffle, text):
    """Blocks that are smaller than files are told apart from files."""
    loader = ndfeed.loader(by_class, 64, shuffle=shuffle)

    assert text in f"{loader.order.mixing}"


def test_ranks_are_told_together(by_class):
    """A gradient is that of the global batch. Changed ranks change what is said."""
    loader = ndfeed.loader(by_class, 16, shuffle=ndfeed.Windows(3, ranks=4), shard=(1, 4))
    mixing = loader.order.mixing

    assert (mixing.batch, mixing.ranks) == (64, 4)
    assert f"{mixing}".startswith("a batch of 64 rows on 4 ranks together draws from about 1")
    assert mixing.reach == pytest.approx(12 / 60)
    loader.share = Share(6000, 32, 0, 1)
    assert loader.order.mixing.batch == 32


def test_a_view_is_measured_as_it_is(by_class):
    """Rows that were permuted by hand are mixed already, whatever the order."""
    mixed = by_class.take(np.random.default_rng(0).permutation(6000))
    stored, permuted = (
        ndfeed.loader(ds, 50, shuffle=ndfeed.Blocks(10, 4)).order.mixing for ds in (by_class, mixed)
    )

    assert stored.ratio == permuted.ratio
    assert stored.by_file < 0.3
    assert permuted.by_file > 0.9


@pytest.mark.parametrize("order", [False, True, ndfeed.Blocks(), ndfeed.Windows()])
@pytest.mark.parametrize("n", [1, 2, 5])
def test_tiny_datasets_have_a_mixing(order, n):
    """Also where there are no two rows to compare, or one batch has all of them."""
    ds = ndfeed.open({"x": np.arange(n)})
    mixing = ndfeed.loader(ds, 8, shuffle=order).order.mixing

    assert mixing.ratio == 1
    assert mixing.worth == mixing.batch == n
    assert f"{mixing}".endswith("(1.00)")


def test_the_seed_of_a_state_is_the_one_that_is_measured(by_class):
    """A state brings its seed."""
    first, second = (ndfeed.loader(by_class, 50, shuffle=True, seed=seed) for seed in (1, 2))
    before = second.order.mixing
    second.load_state_dict(first.state_dict())

    assert second.order.mixing == first.order.mixing
    assert second.order.mixing is not before


def test_the_report_has_one_line_about_it(by_class):
    """Where rows are mixed among some files or blocks only; an exact shuffle has no need of it."""
    with ndfeed.loader(by_class, 64, shuffle=ndfeed.Windows(6)) as loader:
        next(iter(loader))
        report = loader.report()
    line = f"  mixing: {loader.order.mixing}"

    assert line in f"{report}".splitlines()
    assert json.loads(json.dumps(report.as_dict()))["mixing"]["worth"] == 6
    assert "in_use" not in report.as_dict()
    assert pickle.loads(pickle.dumps(report)).mixing is None
    assert pickle.loads(pickle.dumps(report)) == report
    for shuffle in (False, ndfeed.Exact(), ndfeed.Windows(60)):
        other = ndfeed.loader(by_class, 64, shuffle=shuffle).report()
        assert "mixing" not in f"{other}"
        assert other.as_dict()["mixing"] is None


@dataclass(frozen=True)
class Reversed(Plain):
    """An order of somebody's own: shuffled as far as anybody knows."""

    def begin(self, n, seed, epoch, counts=None):
        """Rows from the last to the first."""
        return self

    def rows(self, start, stop, step=1):
        """Rows at positions of an epoch of 6,000."""
        return 5999 - np.arange(start, stop, step)


def test_an_order_of_your_own_is_counted(by_class):
    """What it does to the files is seen in its batches: they are of one file, rarely of two."""
    mixing = measure_order(Reversed(), None, by_class, Share(6000, 50), 0)

    assert mixing.ratio == pytest.approx(1 / 50, rel=0.1)
    assert (mixing.part, mixing.parts, mixing.worth) == ("file", 60, 1)
    assert 1 <= mixing.drawn < 1.5


def test_a_ratio_is_that_of_variances():
    """At q = 1/32 a batch of 256 has the variance of one of about 28."""
    assert mixing_ratio(10**9, 256, 1 / 32, 0.0) == pytest.approx(1 / (1 + 255 / 32))
    assert mixing_ratio(1000, 256, 0.0, 0.5) == mixing_ratio(256, 256, 1.0, 1.0) == 1.0


def test_neighbours_are_looked_at_where_files_are_few():
    """Two long arrays, each in order: a batch has rows of both, each half of them alike."""
    a, b = (ndfeed.open({"n": np.arange(9000) + at}) for at in (0, 9000))
    both = ndfeed.mix({"a": a, "b": b}, weights=[1, 1])
    found = [ndfeed.loader(both, 64, shuffle=shuffle).order.mixing for shuffle in (False, True)]

    assert found[0].part == "run"
    assert found[0].worth <= 3
    assert found[1].is_exact


@pytest.mark.parametrize(("stages", "worth"), [(None, 1), (30, 10), (1, 64)])
def test_samples_by_value_are_said_to_be_alike(stages, worth):
    """Those next to each other in value, wherever they are stored."""
    values = np.random.default_rng(0).permutation(20_000)
    ds = ndfeed.open({"n": values})
    mixing = ndfeed.loader(ds, 64, shuffle=ndfeed.Sorted("n", stages=stages)).order.mixing

    assert mixing.part == "value"
    assert mixing.worth == pytest.approx(worth, rel=0.5)
    assert stages == 1 or "has rows of similar value" in f"{mixing}"
