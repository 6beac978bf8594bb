"""Sorted orders: by value, ties by row, in stages that are shuffled."""

import itertools
import pickle

import numpy as np
import pytest
from children import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from loading.making import ragged
from order.known import Known, check_resume, rows_of

import ndfeed
from ndfeed.order.protocol import Progress
from ndfeed.order.sorted import Sorted

VALUES = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]

# Words, seed, epoch, and all rows.
GOLDEN = [
    ({}, 0, 0, [1, 3, 6, 0, 9, 2, 4, 8, 10, 7, 11, 5]),
    ({"reverse": True}, 1, 1, [5, 11, 7, 4, 8, 10, 2, 0, 9, 6, 1, 3]),
    ({"stages": 1}, 0, 0, [7, 6, 8, 0, 1, 9, 4, 2, 11, 5, 10, 3]),
    ({"stages": 3}, 0, 0, [6, 1, 0, 3, 8, 2, 4, 9, 10, 11, 5, 7]),
    ({"stages": 3}, 0, 1, [0, 6, 1, 3, 2, 9, 4, 8, 7, 5, 11, 10]),
    ({"stages": 5, "reverse": True}, 0, 0, [11, 5, 4, 7, 8, 10, 2, 9, 0, 3, 1, 6]),
]


def bound(values, **words):
    return Sorted(values, **words).bind(Known(len(values)))


@pytest.mark.parametrize(("words", "seed", "epoch", "rows"), GOLDEN)
def test_rows_are_frozen(words, seed, epoch, rows):
    """A resumed run relies on these: a change here breaks every state that was ever saved."""
    assert rows_of(bound(VALUES, **words), 12, seed, epoch, 12).tolist() == rows


@settings(max_examples=examples(2000), deadline=None)
@given(
    values=st.lists(st.integers(0, 9), min_size=1, max_size=40),
    reverse=st.booleans(),
    stages=st.one_of(st.none(), st.integers(1, 50)),
    seed=st.integers(-(2**70), 2**70),
    epoch=st.integers(0, 2**62),
    first=st.tuples(st.integers(1, 9), st.integers(1, 5)),
    second=st.tuples(st.integers(1, 9), st.integers(1, 5)),
    batches=st.integers(0, 9),
)
def test_stages_hold_the_sorted_rows(values, reverse, stages, seed, epoch, first, second, batches):
    """Every row once; each stage has those that belong there, and resumes into any world."""
    n = len(values)
    stages = None if stages is None else min(stages, n)
    order = bound(values, reverse=reverse, stages=stages)
    expected = sorted(range(n), key=lambda row: (-values[row] if reverse else values[row], row))
    found = rows_of(order, n, seed, epoch, n).tolist()
    if stages is None:
        assert found == expected
    else:
        count = min(stages, n)
        bounds = [at * n // count for at in range(count + 1)]
        for begin, end in itertools.pairwise(bounds):
            assert sorted(found[begin:end]) == sorted(expected[begin:end])
    check_resume(order, n, seed, epoch, first, second, batches)


def test_by_length_and_by_field(tmp_path):
    """Short texts first, or by any number that samples have."""
    ds = ragged(tmp_path / "r", [5, 2, 9, 2, 7])
    with ndfeed.loader(ds, 2, shuffle=Sorted(lengths="x")) as loader:
        assert [row for batch in loader for row in batch["n"].tolist()] == [1, 3, 0, 4, 2]
    with ndfeed.loader(ds, 2, shuffle=Sorted("n", reverse=True)) as loader:
        assert [row for batch in loader for row in batch["n"].tolist()] == [4, 3, 2, 1, 0]
    names = np.array(list("badce"))
    with ndfeed.loader(ds, 2, shuffle=Sorted(names)) as loader:
        assert [row for batch in loader for row in batch["n"].tolist()] == [1, 0, 3, 2, 4]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Sorted(), "Sorted takes values or lengths"),
        (lambda: Sorted("a", lengths="b"), "Sorted takes values or lengths"),
        (lambda: Sorted(lengths=[1, 2]), "lengths must be the name of a field, got list"),
        (lambda: Sorted([1.0, np.nan]), "must have an order, got nan for sample 1; replace"),
        (lambda: Sorted([[1]]), "one value for each sample"),
        (lambda: Sorted([object()]), r"numbers or text, got object; .*astype\(str\)"),
        (lambda: Sorted(np.ma.masked_equal([1, 2], 2)), "some are masked"),
        (lambda: Sorted([1], stages=0), "stages must be at least 1"),
        (lambda: bound([1, 2]).bind(Known(3)), "one for each of 3 samples, got 2"),
        (lambda: bound([1, 2], stages=3), "stages must be at most the number of samples, 2, got 3"),
    ],
)
def test_what_has_no_order_is_refused(make, text):
    """At construction, or as soon as the data are known."""
    with pytest.raises((ValueError, TypeError), match=text):
        make()


def test_a_state_of_other_values_is_refused():
    """The same values by another scale are the same order."""
    one = bound([1, 2, 3])

    assert bound([10, 20, 30]).resume(Progress(one.spec(), 0, 1, {})) is not None
    assert bound([1, 3, 2]).resume(Progress(one.spec(), 0, 1, {})) is None
    assert bound([1, 2, 3], stages=1).resume(Progress(one.spec(), 0, 1, {})) is None
    assert pickle.loads(pickle.dumps(one)) == Sorted([1, 2, 3])
    assert one == bound([1, 2, 3])
