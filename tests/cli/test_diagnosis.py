"""The verdict: from rates to what limits and what helps, with numbers."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ndfeed.cli import diagnosis
from ndfeed.cli.diagnosis import OrderTrial, Remedy, Stage, Trial
from ndfeed.order.mixing import Mixing


def test_a_stage_could_give_what_its_time_says():
    """Threads that spend a quarter of their time with a stage could do it four times as often."""
    found = diagnosis.compute_stages(
        {"read": 2.0, "inflate": 5.0, "copy": 1.0}, idle=0.0, loader=500.0
    )

    assert found == [
        Stage("read", 2000.0, 0.25, 500.0),
        Stage("inflate", 800.0, 0.625, 500.0),
        Stage("copy", 4000.0, 0.125, 500.0),
    ]


@given(
    st.dictionaries(st.sampled_from(["order", "read", "inflate", "copy"]), st.floats(0, 1e3)),
    st.floats(-1e-3, 1e3),
    st.floats(1e-3, 1e9),
)
def test_stages_add_up_to_the_loader(seconds, idle, loader):
    """None is slower than the loader it is part of, and the time of all is the loader's at most."""
    found = diagnosis.compute_stages(seconds, idle, loader)

    assert all(one.rows_per_second >= loader * (1 - 1e-9) for one in found)
    assert all(one.is_consistent for one in found)
    together = sum(1 / one.rows_per_second for one in found)
    assert together <= (1 + 1e-6) / loader
    idle_share = diagnosis.idle_share(seconds, idle)
    left_out = len(seconds) * 0.005
    total = sum(one.share for one in found) + idle_share
    assert not found or total == pytest.approx(1, abs=left_out + 1e-6)


def test_stages_that_take_no_time_are_left_out():
    """They limit nothing, and their rates would be noise."""
    found = diagnosis.compute_stages({"order": 0.001, "copy": 1.0, "transform": 0.0}, 0.0, 10.0)

    assert [one.name for one in found] == ["copy"]
    assert diagnosis.compute_stages({"copy": 1.0}, 0.0, loader=0.0) == []
    assert diagnosis.compute_stages({}, 0.0, 10.0) == []


STAGES = [
    Stage("disk", 50.0),
    Stage("inflate", 100.0, 0.9),
    Stage("copy", 900.0, 0.1),
    Stage("device", 800.0),
]


@pytest.mark.parametrize(
    ("changed", "disk", "limit"),
    [
        ([], False, "inflate"),
        ([], True, "disk"),
        ([Stage("transform", 20.0)], True, "transform"),
        ([Stage("device", 90.0)], False, "device"),
    ],
)
def test_the_slowest_stage_limits(changed, disk, limit):
    """The disk only where every epoch comes from it."""
    assert diagnosis.find_bottleneck(STAGES + changed, disk=disk) == limit


@pytest.mark.parametrize(
    ("name", "rate", "loader", "disk", "limit", "said"),
    [
        ("device", 800.0, 1200.0, False, None, "to the device"),
        ("device", 800.0, 850.0, False, "inflate", None),  # noise
        ("disk", 5300.0, 6300.0, True, None, "disk, cold"),
        ("disk", 5300.0, 6300.0, False, "inflate", "disk, cold"),  # no part of the verdict
        ("disk", 6300.0, 5300.0, True, "inflate", None),
    ],
)
def test_no_verdict_where_a_stage_is_slower_than_its_loader(name, rate, loader, disk, limit, said):
    """That cannot be, so it was measured wrongly, and no other stage is to blame for it."""
    stages = [Stage("inflate", 100.0, 0.9, 90.0), Stage(name, rate, None, loader)]
    doubts = diagnosis.list_doubts(stages, disk=disk)

    assert diagnosis.find_bottleneck(stages, disk=disk) == limit
    assert [text.split(" measured slower")[0] for text in doubts] == ([said] if said else [])


def test_threads_that_are_idle_limit_nothing():
    """Batches were ready: what takes them is slower. A device may limit nevertheless."""
    stages = diagnosis.compute_stages({"copy": 2.0}, idle=8.0, loader=100.0)
    idle = diagnosis.idle_share({"copy": 2.0}, 8.0)

    assert idle == 0.8
    assert diagnosis.find_bottleneck(stages, disk=False, idle=idle) is None
    (said,) = diagnosis.list_doubts(stages, disk=False, idle=idle)
    assert said.startswith("threads were idle 80% of the time")
    assert diagnosis.find_bottleneck(stages, disk=False, idle=0.3) == "copy"
    device = [*stages, Stage("device", 110.0, None, 100.0)]
    assert diagnosis.find_bottleneck(device, disk=False, idle=idle) == "device"
    assert diagnosis.list_doubts(device, disk=False, idle=idle) == []


def test_nothing_measured_limits_nothing():
    """A dataset may hold nothing but empty arrays."""
    assert diagnosis.find_bottleneck([Stage("disk", 1.0)], disk=False) is None


@pytest.mark.parametrize(
    ("nbytes", "room", "cold", "counts"),
    [(10, 20, True, False), (30, 20, True, True), (30, 20, False, False)],
)
def test_the_disk_counts_for_what_does_not_fit(nbytes, room, cold, counts):
    """What fits into memory is read from it once."""
    assert diagnosis.disk_counts(nbytes, room, cold=cold) == counts


def test_the_two_best_remedies():
    """Best first, one of each name, nothing that could be noise."""
    base = Trial("as it is", "", 100.0)
    trials = [
        Trial("threads", "threads=1", 150.0),
        Trial("threads", "threads=4", 130.0),
        Trial("pack", "ndfeed pack a b", 900.0),
        Trial("memory", "ds.in_memory()", 119.0),
        Trial("batch size", "batch_size=1024", 121.0),
    ]

    assert diagnosis.choose_remedies(trials, base) == [
        Remedy("pack", "ndfeed pack a b", 100.0, 900.0),
        Remedy("threads", "threads=1", 100.0, 150.0),
    ]
    assert [one.gain for one in diagnosis.choose_remedies(trials, base)] == [9.0, 1.5]
    every = [one.name for one in diagnosis.choose_remedies(trials, base, most=9)]
    assert every == ["pack", "threads", "batch size"]
    assert diagnosis.choose_remedies(trials, Trial("as it is", "", 1000.0)) == []
    assert diagnosis.choose_remedies(trials, Trial("as it is", "", 0.0)) == []


def test_a_remedy_gains_no_more_than_the_disk_lets_through():
    """Inflated files are larger: where the disk limits, packing can be a loss."""
    base = Trial("as it is", "", 100.0, disk=50.0)
    trials = [
        Trial("pack", "ndfeed pack a b", 900.0, disk=40.0),
        Trial("threads", "threads=4", 200.0, disk=50.0),
        Trial("memory", "ds.in_memory()", 400.0, disk=math.inf),
        Trial("blocks", "shuffle=ndfeed.Blocks()", 100.0, disk=150.0),
    ]

    assert [(one.name, one.gain) for one in diagnosis.choose_remedies(trials, base)] == [
        ("memory", 8.0),
        ("blocks", 2.0),
    ]


def order_trial(how, rate, ratio):
    """An order with a rate and a mixing; the rest does not matter here."""
    mixing = Mixing(how, 10_000, 256, 1, ratio, "block", 40, 9.0, 0.2, 0.0, None, 64)
    return OrderTrial(how, how, rate, mixing)


@pytest.mark.parametrize(
    ("others", "differ", "chosen"),
    [
        ([], False, None),
        ([("worse", 90.0, 0.1)], False, None),
        ([("hardly faster", 119.0, 0.1)], False, None),
        ([("faster", 121.0, 0.1)], True, "faster"),
        ([("better mixed", 50.0, 0.9)], True, None),  # worth showing, no reason to change
        ([("fastest", 305.0, 0.1), ("about as fast", 300.0, 0.4)], True, "about as fast"),
        ([("fastest", 500.0, 0.1), ("faster", 300.0, 0.4)], True, "fastest"),
    ],
)
def test_an_order_is_recommended_for_its_speed_only(others, differ, chosen):
    """At least 1.2 times that of ``shuffle=True``; of those about as fast, the best mixed."""
    trials = [order_trial("usual", 100.0, 0.5), *(order_trial(*one) for one in others)]
    found = diagnosis.choose_order(trials)

    assert diagnosis.orders_differ(trials) is differ
    assert (found and found.how) == chosen


@pytest.mark.parametrize(
    ("others", "chosen"),
    [
        ([("worse", 300.0, 0.1)], None),
        ([("hardly better", 300.0, 0.55)], None),
        ([("better mixed", 50.0, 0.9)], "better mixed"),
        ([("exact", 80.0, 1.0), ("wider", 120.0, 0.7)], "exact"),
        ([("exact", 80.0, 1.0), ("almost", 90.0, 0.95)], "almost"),
    ],
)
def test_an_order_for_sorted_files_mixes_best(others, chosen):
    """At least 1.2 times as well as ``shuffle=True``; of those about as well mixed, the fastest."""
    trials = [order_trial("usual", 100.0, 0.5), *(order_trial(*one) for one in others)]
    found = diagnosis.choose_better_mixed(trials)

    assert (found and found.how) == chosen


def test_without_orders_there_is_nothing_to_say():
    """As where samples are not shuffled, or a loaded machine delivered nothing."""
    assert diagnosis.choose_order([]) is None
    assert diagnosis.choose_better_mixed([]) is None
    assert not diagnosis.orders_differ([])
    assert order_trial("any", 5.0, 1.0).gain_over(order_trial("none", 0.0, 1.0)) == 0
