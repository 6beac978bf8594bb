"""Work in threads: results in order, errors raised, nothing left running."""

import time
from contextlib import closing

import pytest
from children import run

from ndfeed.files.threads import map_in_threads, run_apart


def test_results_come_in_the_order_of_the_items():
    """Whichever thread is done first."""

    def work(number):
        time.sleep(0.002 * (number % 3))
        return -number

    assert list(map_in_threads(work, range(50), 4)) == [-number for number in range(50)]
    assert list(map_in_threads(work, [], 4)) == []


def test_an_error_is_raised_and_nothing_more_is_begun():
    """Calls that have begun are waited for, so nothing runs behind the caller's back."""
    begun, ended = [], []

    def work(number):
        begun.append(number)
        if number == 5:
            raise ValueError("the sixth")
        time.sleep(0.01)
        ended.append(number)

    with pytest.raises(ValueError, match="the sixth"):
        list(map_in_threads(work, range(1000), 4))

    assert len(begun) < 100
    assert sorted(begun) == sorted([*ended, 5])


def test_closing_waits_for_calls_that_have_begun_and_for_no_others():
    """As after an error of whoever takes the results."""
    begun, ended = [], []

    def work(number):
        begun.append(number)
        time.sleep(0.01)
        ended.append(number)

    with closing(map_in_threads(work, range(1000), 4)) as results:
        next(results)

    assert len(begun) < 100
    assert sorted(begun) == sorted(ended)


def test_ctrl_c_at_any_moment_leaves_no_thread_behind():
    """A pool of the standard library hangs, or raises RuntimeError, within some hundred tries."""
    code = """
    import signal, sys
    from ndfeed.files.threads import map_in_threads
    running, count, mapping = [], 0, False
    def interrupt(*_):
        if mapping:  # the kernel may deliver it a moment after the timer was stopped
            raise KeyboardInterrupt
    signal.signal(signal.SIGALRM, interrupt)
    def work(number):
        running.append(number)
        sum(range(100))
        running.remove(number)
    for number in range(3000):
        try:
            mapping = True
            signal.setitimer(signal.ITIMER_REAL, 0.0001 + 0.00001 * (number % 100))
            for _ in map_in_threads(work, range(100), 4):
                pass
            mapping = False
        except KeyboardInterrupt:
            mapping, count = False, count + 1
        signal.setitimer(signal.ITIMER_REAL, 0)
        assert not running
    until = time.monotonic() + 60  # a thread that found nothing to do may be about to end
    while len(sys._current_frames()) > 1 and time.monotonic() < until:
        time.sleep(0.01)
    print("ended", len(sys._current_frames()), count > 100)
    """

    assert run(code) == "ended 1 True\n"


def test_work_apart_gives_its_result_or_its_error():
    """As if it had been called here."""

    def fail():
        raise ValueError("no result")

    assert run_apart(lambda: 7, lambda: None) == 7
    with pytest.raises(ValueError, match="no result"):
        run_apart(fail, lambda: None)


def test_ctrl_c_stops_work_apart_and_waits_for_its_end():
    """At any moment: before the thread has begun, while it works, and when it is done."""
    code = """
    import signal, sys
    from ndfeed.files.threads import run_apart
    running, count, waiting = [], 0, False
    def interrupt(*_):
        if waiting:  # the kernel may deliver it a moment after the timer was stopped
            raise KeyboardInterrupt
    signal.signal(signal.SIGALRM, interrupt)
    def work():
        running.append(None)
        until = time.monotonic() + 0.001
        while not stopped and time.monotonic() < until:
            pass
        running.pop()
    for number in range(2000):
        stopped = []
        try:
            waiting = True
            signal.setitimer(signal.ITIMER_REAL, 0.00001 + 0.000012 * (number % 100))
            run_apart(work, lambda: stopped.append(None))
            waiting = False
        except KeyboardInterrupt:
            waiting, count = False, count + 1
        signal.setitimer(signal.ITIMER_REAL, 0)
        assert not running
    print("ended", count > 100)
    """

    assert run(code) == "ended True\n"
