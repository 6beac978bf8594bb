"""Work in processes: the results of a loop, whatever happens to the processes; none is left."""

import os
import textwrap
import time
from contextlib import closing

import psutil
import pytest
from children import AS_NOBODY, run, start
from files.calls import die, fail_from, sleep_for_ever, slowly_here, unpicklable, where
from loading.making import eventually, running

from ndfeed.files import platform_calls, process_server, processes
from ndfeed.files.processes import map_in_processes, map_with_all_cores, useful_processes

pytestmark = pytest.mark.skipif(process_server.why_not() != "", reason="needs fork")


TESTS = os.path.dirname(os.path.dirname(__file__))
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join(filter(None, (TESTS, os.environ.get("PYTHONPATH")))),
}


@pytest.fixture(autouse=True)
def _nothing_is_left():
    yield
    assert not running()


def test_results_come_in_the_order_of_the_items():
    """From several processes, and from this one while they start."""
    found = list(map_in_processes(slowly_here, os.getpid(), range(200), 3))

    assert [item for item, _ in found] == list(range(200))
    assert len({pid for _, pid in found} - {os.getpid()}) == 3
    assert list(map_in_processes(where, 0, [], 3)) == []


def test_one_core_has_no_use_for_processes(monkeypatch):
    """Nor has one of several ranks that share few cores."""
    monkeypatch.setattr(platform_calls, "cores", lambda: 16)
    assert useful_processes() == 16
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert useful_processes() == 2
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "16")
    assert useful_processes() == 0


def test_a_system_that_cannot_fork_has_no_use_for_them(monkeypatch):
    """Everything is done here, as on Windows."""
    monkeypatch.setattr(platform_calls, "cores", lambda: 16)
    monkeypatch.delattr(os, "fork")

    assert useful_processes() == 0
    found = list(map_with_all_cores(where, 0.1, range(8)))
    assert found == [(item, os.getpid()) for item in range(8)]


def test_processes_are_started_for_long_work_only(monkeypatch):
    """The first items show how long the others take."""
    monkeypatch.setattr(platform_calls, "cores", lambda: 3)
    slow = list(map_with_all_cores(slowly_here, os.getpid(), range(150)))
    monkeypatch.setattr(processes, "WORTH_IT", 1000)  # no pause of a busy machine is as long
    quick = list(map_with_all_cores(where, 0, range(100)))

    assert quick == [(item, os.getpid()) for item in range(100)]
    assert [item for item, _ in slow] == list(range(150))
    assert len({pid for _, pid in slow}) == 4


def test_the_error_of_the_first_item_that_fails_is_raised():
    """As in a loop, though a later one failed sooner; it is the error itself, not a copy."""
    results = map_in_processes(fail_from, 20, range(40), 3)
    found = []
    with pytest.raises(ValueError, match=r"^item 20$") as caught:
        found.extend(results)

    assert found == list(range(20))
    assert "fail_from" in [entry.name for entry in caught.traceback]


def test_a_result_that_cannot_be_sent_is_made_here():
    """Processes are faster, or they are of no use; they never change what comes out."""
    assert [one() for one in map_in_processes(unpicklable, 7, range(5), 2)] == [
        (7, item) for item in range(5)
    ]


def test_what_a_killed_process_had_to_do_is_done_here():
    """Also when all of them are killed, one after the other."""
    found = list(map_in_processes(die, os.getpid(), range(100), 3))

    assert found == [-item for item in range(100)]


def test_a_killed_server_is_no_loss():
    """With its workers, as by a limit on memory."""
    with closing(map_in_processes(where, 0.01, range(300), 2)) as results:
        found = []
        for result in results:
            found.append(result)
            if len({pid for _, pid in found}) == 3 and running():
                for process in running():
                    process.kill()

    assert [item for item, _ in found] == list(range(300))


def test_closing_ends_calls_that_have_begun():
    """Whoever closes it early waits neither for them nor for items that have not begun."""
    with closing(map_in_processes(sleep_for_ever, os.getpid(), range(1000), 2)) as results:
        next(results)
        assert eventually(lambda: len(running()) == 3)
        began = time.monotonic()

    assert time.monotonic() - began < 30


def test_where_no_process_can_be_started_everything_is_done_here():
    """As on machines with a limit on processes, which counts threads, too."""
    code = """
    from files.calls import where
    from ndfeed.files.processes import map_in_processes
    def limited(spare):
        mine = [one for one in psutil.process_iter(["num_threads", "uids"])
                if one.info["uids"] and one.info["uids"].real == os.getuid()]
        most = sum(one.info["num_threads"] for one in mine) + spare
        _, hard = resource.getrlimit(resource.RLIMIT_NPROC)
        resource.setrlimit(resource.RLIMIT_NPROC, (most, hard))
    for spare in (0, 1, 5, 6, 7, 8):
        limited(spare)
        found = list(map_in_processes(where, 0.01, range(100), 4))
        assert [item for item, _ in found] == list(range(100))
        print(len({pid for _, pid in found}) > 1)
    """
    code = "import psutil, files.calls" + AS_NOBODY + textwrap.dedent(code)
    said = run(code, env=ENVIRONMENT).split()

    assert len(said) == 6
    if os.geteuid() == 0:  # else other processes of this user may end meanwhile
        assert said[:2] == ["False", "False"]


@pytest.mark.parametrize("second", [False, True], ids=["once", "twice"])
def test_ctrl_c_at_any_moment_leaves_no_process(second):
    """While they start, while they work, while they end; a second one cannot stop them ending."""
    code = """
    import psutil
    from files.calls import where
    from ndfeed.files.processes import map_in_processes
    mapping = False
    def interrupt(_, frame):
        # Not in the loop below, where it could come behind the try.
        if mapping and frame.f_code.co_name != "<module>":
            raise KeyboardInterrupt
    signal.signal(signal.SIGALRM, interrupt)
    count = 0
    for number in range(16):
        mapping = True
        try:
            again = 0.001 * (number % 7) if args[0] == "True" else 0
            signal.setitimer(signal.ITIMER_REAL, 0.001 + 0.05 * number, again)
            for _ in map_in_processes(where, 0.002, range(150), 2):
                pass
        except KeyboardInterrupt:
            count += 1
        mapping = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        until = time.monotonic() + 60
        while args[0] == "True" and psutil.Process().children() and time.monotonic() < until:
            time.sleep(0.01)
        assert not psutil.Process().children(), number
    print("ended", count > 3)
    """

    assert run(code, str(second), env=ENVIRONMENT) == "ended True\n"


def test_workers_end_with_the_process_that_started_them():
    """Even where that was killed, and could tell nobody."""
    code = """
    import psutil
    from files.calls import where
    from ndfeed.files.processes import map_in_processes
    results = map_in_processes(where, 0.05, range(10000), 2)
    while len(psutil.Process().children(recursive=True)) < 3:
        next(results)
    print(*(one.pid for one in psutil.Process().children(recursive=True)), flush=True)
    if not os.fork():
        os.execvp("kill", ["kill", "-9", str(os.getppid())])
    time.sleep(100)
    """
    child = start(code, env=ENVIRONMENT)
    pids = list(map(int, child.stdout.readline().split()))
    child.communicate(timeout=100)

    assert len(pids) == 3
    assert eventually(lambda: not any(map(psutil.pid_exists, pids)))
