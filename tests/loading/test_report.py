"""What a loader says of itself: figures that add up, and one sentence that names the limit."""

import json
import time
from dataclasses import replace

import numpy as np
import pytest
from loading.making import LARGE, compressed, epoch_of, large_rows, numbers

import ndfeed
from ndfeed.files import process_server
from ndfeed.files.platform_calls import can
from ndfeed.loading.options import Options
from ndfeed.loading.report import Snapshot, make_report
from ndfeed.loading.timing import Timing
from ndfeed.order.epoch import Share


def test_before_during_and_after(tmp_path):
    """print(loader) works at any time, and says what it knows by then."""
    loader = ndfeed.loader(large_rows(tmp_path, 64), 8, shuffle=True, threads=2)
    before = str(loader)
    batches = iter(loader)
    next(batches)
    during = str(loader)
    for _ in batches:
        pass
    after = str(loader)
    loader.close()
    closed = str(loader)

    assert before.splitlines()[0] == "ndfeed.Loader: Exact(), 2 threads"
    assert "bottleneck: nothing was read yet" in before
    for text in (during, after, closed):
        assert "rows/s" in text
        assert "bottleneck: " in text
    assert "64 rows in 8 batches" in after
    assert after.splitlines()[1].split(" s:")[0] == closed.splitlines()[1].split(" s:")[0]


def test_figures_add_up(tmp_path):
    """Rows, bytes and batches are those of one pass, not of all since the beginning."""
    ds = large_rows(tmp_path, 64)
    with ndfeed.loader(ds, 8, threads=2) as loader:
        for _ in range(3):
            list(loader)
            report = loader.report()

            assert (report.rows, report.batches, report.nbytes) == (64, 8, ds.nbytes)
            assert report.threads == 2
            assert report.ready == 0
            assert report.batch_bytes == ds.nbytes // 8
            assert report.seconds > 0
            assert report.rows_per_second == 64 / report.seconds
            assert report.bytes_per_second == ds.nbytes / report.seconds
            assert sum(report.stages.values()) <= 2 * report.seconds
            assert 0 <= report.consumer_waiting <= report.seconds


def test_it_is_json(tmp_path):
    """For dashboards; a batch in, a stage in seconds each."""
    with ndfeed.loader(large_rows(tmp_path, 64), 8) as loader:
        early = loader.report().as_dict()
        list(loader)
        found = json.loads(json.dumps(loader.report().as_dict()))

    assert set(early) == set(found)
    assert json.dumps(early)
    assert set(found["stages"]) == {"order", "ahead", "read", "inflate", "copy", "transform"}
    assert found["rows"] == 64
    assert found["limit"]


def test_memory_that_is_in_use_can_be_seen(tmp_path):
    """Batches under way stay within what was allowed, the consumer's own counted in."""
    with ndfeed.loader(large_rows(tmp_path, 64), 8, memory=10 * 8 * LARGE // 4) as loader:
        batches = iter(loader)
        for _ in range(4):
            next(batches)
            report = loader.report()
            assert report.depth * report.batch_bytes <= report.memory
            assert report.ready <= report.depth
            assert report.memory == 10 * 8 * LARGE // 4


@pytest.mark.parametrize("processes", [0, 1])
def test_a_slow_transform_is_named(tmp_path, processes):
    """With the remedy: more processes, by number."""

    def slow(batch):
        time.sleep(0.02)
        return batch

    with ndfeed.loader(numbers(tmp_path, 40).map(slow), 4, processes=processes) as loader:
        list(loader)
        limit = loader.report().limit

    assert limit.startswith("your transform takes ")
    assert "% of the time; " in limit
    assert "processes=" in limit or "make it cheaper" in limit


def test_a_slow_consumer_is_named(tmp_path):
    """Then nothing here needs to be faster."""
    with ndfeed.loader(numbers(tmp_path, 40), 4) as loader:
        for _ in loader:
            time.sleep(0.1)
        limit = loader.report().limit

    assert limit.startswith("your code: batches were ready")


def test_inflating_is_named(tmp_path):
    """Packing undoes it once for all."""
    ds, _ = compressed(tmp_path, files=6, rows=400, width=2000)
    with ndfeed.loader(ds.select("x"), 100, threads=1) as loader:
        for _ in loader:
            pass
        report = loader.report()

    assert max(report.stages, key=report.stages.get) == "inflate"
    assert report.limit.startswith("decompressing takes ")
    assert "pack" in report.limit


def test_inflating_again_and_again_is_named_with_the_memory_it_needs(tmp_path, monkeypatch):
    """An exact shuffle of compressed rows with too little memory, and no disk to help out."""
    monkeypatch.setattr(can, "scratch", False)
    ds, _ = compressed(tmp_path, files=10, rows=50, width=2000)
    with ndfeed.loader(ds, 10, shuffle=ndfeed.Exact(), memory="150kB", threads=1) as loader:
        list(loader)
        report = loader.report()

    assert report.streams > 20
    assert "decompressed again and again" in report.limit
    assert "raise memory to " in report.limit


def test_no_batches_are_explained(tmp_path):
    """drop_last with a batch larger than the data: the classic silent empty loop."""
    with ndfeed.loader(numbers(tmp_path, 3), 4, drop_last=True) as loader:
        assert "drop_last leaves no batches: 3 samples are fewer than 4" in str(loader)
        assert list(loader) == []
        assert "lower batch_size" in str(loader)
    assert "there are no samples" in str(ndfeed.loader(numbers(tmp_path, 3).take([]), 4))


def test_every_sentence_is_one_line(tmp_path):
    """It is printed in a table of its own."""
    for batch_size in (1, 4, 64):
        ds = large_rows(tmp_path / str(batch_size), 64)
        with ndfeed.loader(ds, batch_size, shuffle=True) as loader:
            list(loader)
            limit = loader.report().limit

            assert "\n" not in limit
            assert limit
            assert not limit.endswith(".")


@pytest.mark.skipif(process_server.why_not() != "", reason="needs fork")
@pytest.mark.parametrize("memory", ["6MB", "64MB"])
def test_memory_that_keeps_processes_waiting_is_named(tmp_path, memory):
    """Files are decoded ahead as far as memory goes: more processes would have nothing to do."""
    ds, _ = compressed(tmp_path, files=24, rows=400, width=2000)
    window = ndfeed.Windows(files=3)
    with ndfeed.loader(ds, 40, fields="x", shuffle=window, memory=memory, processes=4) as loader:
        while loader.report().processes < 4:
            list(loader)
        list(loader)
        limit = loader.report().limit

    assert ("processes busy; raise memory to" in limit) == (memory == "6MB")


def test_a_ragged_form_has_its_share(tmp_path):
    """Bringing samples into form is work of ours, not of the user's transform."""
    for i in range(20):
        np.save(tmp_path / f"{i}.npy", np.zeros((2000 + i, 20 + i)))
    ds = ndfeed.open(tmp_path, sample="file")
    with ndfeed.loader(ds, 5, ragged="packed", threads=1) as loader:
        list(loader)

        assert "your transform takes" not in loader.report().limit
    assert epoch_of(ds, 5, ragged="packed")[0]["data_offsets"][-1] > 0


def snapshot(**measured):
    """What a runtime would have measured: by default copying, for which the consumer waited."""
    stages = {"copy": 1.0} | measured.pop("stages", {})
    done = Timing(batches=10, rows=100, nbytes=6400, **stages)
    usual = Snapshot(
        seconds=2.0, batches=10, rows=100, done=done, total=done, consumer_waiting=1.0, threads=1,
        ready=0, depth=4, batch_bytes=640, buffers=4, buffers_idle=0, decoded=0, window=0,
        decodes_again=False, from_disk=0, disk_peak=0.0, skipped=0, transfer="", cores=4,
        machine_memory=1 << 34,
    )  # fmt: skip
    return replace(usual, **measured)


@pytest.mark.parametrize(
    ("measured", "limit"),
    [
        ({}, "copying from memory at 3.2 kB/s takes 100% of the time; use smaller"),
        ({"batches": 0, "rows": 0}, "nothing was read yet"),
        ({"consumer_waiting": 0.1}, "your code: batches were ready, it waited for them only 5%"),
        ({"stages": {"copy": 0.0}}, "nothing was read yet"),
        ({"stages": {"read": 3.0}}, "opening and reading files takes 75% of the time; ndfeed pack"),
        ({"stages": {"order": 3.0}}, "computing the order takes 75% of the time; raise batch_size"),
        ({"stages": {"ahead": 3.0}}, "prefetching takes 75% of the time; raise batch_size"),
        ({"stages": {"inflate": 3.0}}, "decompressing takes 75% of the time; ndfeed pack"),
        (
            {"stages": {"inflate": 3.0}, "decodes_again": True, "window": 10**9},
            "the same data is decompressed again and again: the order needs 1 GB of it at a "
            "time; raise memory to 1.1 GB",
        ),
        (
            {"stages": {"inflate": 3.0}, "ahead": (14, 10**7), "processes": 16},
            "decompressing takes 75% of the time, and memory holds too few files to keep 16 "
            "processes busy; raise memory to 280 MB",
        ),
        (
            {"stages": {"inflate": 3.0}, "ahead": (32, 10**7), "processes": 16},
            "decompressing takes 75% of the time; ndfeed pack",
        ),
        ({"stages": {"transform": 3.0}}, "collating ragged samples takes 75% of the time"),
        (
            {"from_disk": 10**6, "disk_peak": 10**6},
            "waiting for the disk: 500 kB/s of the 1 MB/s it reached at best; later epochs",
        ),
        (
            {"from_disk": 10**6, "machine_memory": 1000},
            "waiting for the disk: 500 kB/s of the 500 kB/s it reached at best; the data does "
            "not fit in memory",
        ),
        ({"from_disk": None}, "copying from memory"),
    ],
)
def test_the_bottleneck_follows_from_what_was_measured(tmp_path, measured, limit):
    """No clock and no disk decide here, so that every sentence can be seen."""
    ds = numbers(tmp_path, 100)
    found = make_report("", ds, Options(memory=10**8), Share(100, 10), snapshot(**measured))

    assert found.limit.startswith(limit)


@pytest.mark.parametrize(
    ("processes", "cores", "remedy"),
    [
        (0, 1, "try processes=2"),
        (0, 8, "try processes=8"),
        (2, 8, "try processes=3"),
        (8, 8, "make it cheaper, or do it once and save the result"),
    ],
)
def test_a_slow_map_gets_more_processes_up_to_the_cores(tmp_path, processes, cores, remedy):
    """More than one for each core would only wait for each other."""
    ds = numbers(tmp_path, 100).map(dict)
    found = snapshot(stages={"transform": 3.0}, cores=cores, processes=processes)
    report = make_report("", ds, Options(), Share(100, 10), found)

    assert report.limit == f"your transform takes 75% of the time; {remedy}"


def test_rows_that_were_skipped_are_not_counted_as_delivered(tmp_path):
    """Threads know how many they left out; the consumer's position counts them."""
    ds = numbers(tmp_path, 100)
    for on_error, rows in (("raise", 120), ("skip", 100)):
        options = Options(on_error=on_error)

        assert make_report("", ds, options, Share(100, 10), snapshot(rows=120)).rows == rows
