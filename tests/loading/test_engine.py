"""Delivery in order whatever is ready first, a bound on what is under way, and prompt ends."""

import sys
import textwrap
import threading
import time

import numpy as np
import pytest
from children import AS_NOBODY, folder_for_all, run
from loading.making import doubled, eventually, numbers, rows_of, threads

import ndfeed
from ndfeed.loading.engine import Engine


def test_order_holds_whatever_finishes_first(tmp_path):
    """Early batches take longest here."""

    def slow_at_first(batch):
        time.sleep(0.02 if batch["data"][0] % 20 < 10 else 0)
        return batch

    ds = numbers(tmp_path, 100).map(slow_at_first)
    with ndfeed.loader(ds, 5, threads=8) as loader:
        assert rows_of(loader) == list(range(100))


def test_threads_may_pause_between_any_two_lines(tmp_path):
    """One that asked for the current epoch just as the consumer ended it died of that; then the
    next epoch could wait for it for ever."""
    numbers(tmp_path, 64, width=1000)
    code = """
    import random, threading
    rng, died = random.Random(0), []
    threading.excepthook = lambda found: died.append(repr(found.exc_value))
    def pause(*_):
        if rng.random() < 0.2:
            time.sleep(rng.random() * 0.001)
        return pause
    def trace(frame, *_):
        return pause if frame.f_code.co_filename.endswith("engine.py") else None
    threading.settrace(trace)
    with ndfeed.loader(ndfeed.open(args[0]), 8, threads=2, memory=200_000) as loader:
        for _ in range(150):
            assert [int(row[0]) for batch in loader for row in batch["data"]] == list(range(64))
    print(died)
    """

    assert run(code, tmp_path / "x.npy") == "[]\n"


@pytest.mark.parametrize("count", [1, 3])
def test_no_more_is_made_ahead_than_memory_allows(tmp_path, count):
    """A consumer that stops must not fill memory: makers rest until some was taken."""
    made = []

    def noting(batch):
        made.append(batch["data"][0, 0])
        return batch

    ds = numbers(tmp_path, 4000, width=1000).map(noting)  # 8 kB a row
    with ndfeed.loader(ds, 10, threads=count, memory=6 * 80_000) as loader:
        batches = iter(loader)
        next(batches)
        depth = loader.report().depth
        assert depth * 80_000 <= 6 * 80_000
        assert eventually(lambda: len(made) == 1 + depth)
        time.sleep(0.1)
        assert len(made) == 1 + depth
        for taken in range(2, 12):
            next(batches)
            assert eventually(lambda taken=taken: len(made) == taken + depth)


def test_memory_for_one_batch_still_goes_on(tmp_path):
    """One at a time, but to the end."""
    ds = numbers(tmp_path, 400, width=1000).map(doubled)
    with ndfeed.loader(ds, 10, threads=4, memory=80_000) as loader:
        assert rows_of(loader) == [2 * n for n in range(400)]
        assert loader.report().depth == 1


@pytest.mark.parametrize("count", [1, 2, 7])
def test_as_many_threads_as_were_asked_for(tmp_path, count):
    """threads= is an order, not a hint."""
    with ndfeed.loader(numbers(tmp_path, 4000), 4, threads=count) as loader:
        batches = iter(loader)
        next(batches)

        assert len(threads()) == count
        assert len({thread.name for thread in threads()}) == count
        assert all(thread.daemon for thread in threads())


def test_maps_run_in_several_threads_at_once(tmp_path):
    """Four functions wait for each other: one thread alone would wait for ever."""
    together = threading.Barrier(4)

    def meet(batch):
        together.wait(60)
        return batch

    ds = numbers(tmp_path, 4 * 25, width=600).map(meet)
    with ndfeed.loader(ds, 25, threads=4) as loader:
        assert len(list(loader)) == 4


def test_many_short_epochs(tmp_path):
    """Begin, end and rest, a few hundred times: a wake-up that is lost would hang."""
    ds = numbers(tmp_path, 12)
    for count in (1, 2, 5):
        with ndfeed.loader(ds, 3, shuffle=True, threads=count) as loader:
            for _ in range(200):
                assert sorted(rows_of(loader)) == list(range(12))


def test_many_passes_left_early(tmp_path):
    """Begun and left at every place."""
    ds = numbers(tmp_path, 60)
    with ndfeed.loader(ds, 3, threads=3) as loader:
        for number in range(120):
            for at, batch in enumerate(loader):
                assert batch["data"].tolist() == [3 * at, 3 * at + 1, 3 * at + 2]
                if at == number % 20:
                    break

        assert eventually(lambda: not threads())


def test_closing_from_another_thread_wakes_the_consumer(tmp_path):
    """A consumer that waits for a batch is told instead of waiting for ever."""
    begun, release = threading.Event(), threading.Event()

    def stuck(batch):
        begun.set()
        release.wait(60)
        return batch

    loader = ndfeed.loader(numbers(tmp_path, 40).map(stuck), 4, threads=1)
    closer = threading.Thread(target=lambda: (begun.wait(60), loader.close()))
    closer.start()
    with pytest.raises(RuntimeError, match=r"closed|another pass"):
        next(iter(loader))
    release.set()
    closer.join()

    assert eventually(lambda: not threads())


def test_two_loaders_side_by_side(tmp_path):
    """Training and validation at once; neither takes the other's threads."""
    ds = numbers(tmp_path, 400).map(doubled)
    with ndfeed.loader(ds, 4, threads=2) as one, ndfeed.loader(ds, 4, threads=3) as other:
        found = [(rows_of([a]), rows_of([b])) for a, b in zip(one, other, strict=True)]
        assert all(a == b for a, b in found)
        assert len(found) == 100
        assert len(threads()) == 5


class Slow:
    """Batches whose look ahead takes until it is let go on, as on a busy disk."""

    count, together, slow, abandoned = 5, 1, False, False

    def __init__(self):
        self.looking, self.go_on = threading.Event(), threading.Event()
        self.made = []

    def look_ahead(self, number, timing):
        self.looking.set()
        self.go_on.wait(60)

    def make(self, first, stop, timing):
        self.made.append(first)
        return iter(())

    def ready(self, stop):
        return True

    def next_task(self):
        return None


def test_a_pass_that_is_left_reads_nothing_more():
    """A thread that is asking for coming rows learns of it, and does not begin to read them."""
    source = Slow()
    engine = Engine(1, lambda: 4)
    engine.begin(source)
    assert source.looking.wait(60)
    left = engine.stop()
    assert source.abandoned
    source.go_on.set()
    for thread in left:
        thread.join(60)

    assert not source.made


@pytest.mark.skipif(sys.platform != "linux", reason="counts the threads of a user")
@pytest.mark.parametrize("spare", [3, 5])
def test_where_few_threads_may_be_started_these_do_the_work(spare):
    """On shared machines and in containers: without one that looks after leases, if need be."""
    code = f"""
    mine = [one for one in psutil.process_iter(["num_threads", "uids"])
            if one.info["uids"] and one.info["uids"].real == os.getuid()]
    most = sum(one.info["num_threads"] for one in mine) + {spare}
    resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
    ds = ndfeed.open(args[0], sample="row", cache=False)
    with ndfeed.loader(ds, 8, threads=8) as loader:
        for _ in range(3):
            found = np.concatenate([batch["data"] for batch in loader])
            assert found.tolist() == list(range(200))
    print("done")
    """
    with folder_for_all() as folder:
        for i in range(2):
            np.save(folder / f"{i}.npy", np.arange(100 * i, 100 * (i + 1)))
        said = run("import psutil" + AS_NOBODY + textwrap.dedent(code), folder)

    assert said == "done\n"
