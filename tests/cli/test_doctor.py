"""The verdict: from rates to what limits and what helps, with numbers."""

import math

import pytest

from ndfeed.cli import doctor
from ndfeed.cli.doctor import Remedy, Stage, Trial


def test_a_stage_could_give_what_its_time_says():
    """Four threads that spend two of eight seconds with a stage could do it four times as often."""
    found = doctor.stages_of({"read": 2.0, "inflate": 5.0, "copy": 1.0}, rows=1000, threads=4)

    assert found == [Stage("read", 2000.0), Stage("inflate", 800.0), Stage("copy", 4000.0)]


def test_stages_that_take_no_time_are_left_out():
    """They limit nothing, and their rates would be noise."""
    found = doctor.stages_of({"order": 0.001, "copy": 1.0, "transform": 0.0}, rows=10, threads=1)

    assert [one.name for one in found] == ["copy"]
    assert doctor.stages_of({"copy": 1.0}, rows=0, threads=1) == []


STAGES = [
    Stage("disk", 50.0),
    Stage("cache", 10.0),
    Stage("inflate", 100.0),
    Stage("copy", 900.0),
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
    """The disk only where every epoch comes from it; a warm one is part of other stages."""
    assert doctor.limiting(STAGES + changed, disk=disk) == limit


def test_nothing_measured_limits_nothing():
    """A dataset may hold nothing but empty arrays."""
    assert doctor.limiting([Stage("disk", 1.0)], disk=False) is None


@pytest.mark.parametrize(
    ("nbytes", "room", "cold", "counts"),
    [(10, 20, True, False), (30, 20, True, True), (30, 20, False, False)],
)
def test_the_disk_counts_for_what_does_not_fit(nbytes, room, cold, counts):
    """What fits into memory is read from it once."""
    assert doctor.disk_counts(nbytes, room, cold=cold) == counts


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

    assert doctor.remedies(trials, base) == [
        Remedy("pack", "ndfeed pack a b", 100.0, 900.0),
        Remedy("threads", "threads=1", 100.0, 150.0),
    ]
    assert [one.gain for one in doctor.remedies(trials, base)] == [9.0, 1.5]
    every = [one.name for one in doctor.remedies(trials, base, most=9)]
    assert every == ["pack", "threads", "batch size"]
    assert doctor.remedies(trials, Trial("as it is", "", 1000.0)) == []
    assert doctor.remedies(trials, Trial("as it is", "", 0.0)) == []


def test_a_remedy_gains_no_more_than_the_disk_lets_through():
    """Inflated files are larger: where the disk limits, packing can be a loss."""
    base = Trial("as it is", "", 100.0, disk=50.0)
    trials = [
        Trial("pack", "ndfeed pack a b", 900.0, disk=40.0),
        Trial("threads", "threads=4", 200.0, disk=50.0),
        Trial("memory", "ds.in_memory()", 400.0, disk=math.inf),
        Trial("blocks", "shuffle=ndfeed.Blocks()", 100.0, disk=150.0),
    ]

    assert [(one.name, one.gain) for one in doctor.remedies(trials, base)] == [
        ("memory", 8.0),
        ("blocks", 2.0),
    ]
