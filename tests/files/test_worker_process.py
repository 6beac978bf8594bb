"""A worker process that does not answer, and the memory it keeps."""

import os
import platform
import sys

import pytest
from children import run

from ndfeed.files import process_server

pytestmark = [
    pytest.mark.skipif(process_server.why_not() != "", reason="needs fork"),
    pytest.mark.skipif(sys.platform != "linux", reason="the system does not tell"),
]

STUCK = """
from ndfeed.files import worker_process
worker_process._STUCK = 3  # seconds, not a minute
me, fifo = os.getpid(), args[0] + "/fifo"

def first():
    return not os.path.exists(args[0] + "/once") and not open(args[0] + "/once", "w").close()

def stop():
    os.kill(os.getpid(), signal.SIGSTOP)

def block():
    # Its child shares its memory until it runs a program, so it sleeps as one that waits for a dead
    # file server does: no signal wakes it but SIGKILL. And nobody ever writes to the pipe.
    first = [(os.POSIX_SPAWN_CLOSE, 1), (os.POSIX_SPAWN_CLOSE, 2)]  # it outlives this program
    first += [(os.POSIX_SPAWN_OPEN, 0, fifo, os.O_RDONLY, 0)]
    os.posix_spawn(sys.executable, [sys.executable, "-c", ""], {}, file_actions=first)

def stuck(batch):
    if 40 in batch["data"] and os.getpid() != me and {condition}:
        {way}()
    return batch

np.save(args[0] + "/x.npy", np.arange(100))
ds = ndfeed.open(args[0] + "/x.npy").map(stuck)
with ndfeed.loader(ds, 10, processes=2) as loader:
    try:
        print([int(x) for batch in loader for x in batch["data"]] == list(range(100)))
    except ndfeed.Error as error:
        print(type(error).__name__, error)
"""

each_way = pytest.mark.parametrize("way", ["stop", "block"])


def run_stuck(folder, way, condition):
    os.mkfifo(folder / "fifo")
    code = STUCK.replace("{condition}", condition).replace("{way}", way)
    try:
        return run(code, folder)
    finally:
        if way == "block":  # the children of those that were killed still wait
            os.close(os.open(folder / "fifo", os.O_WRONLY | os.O_NONBLOCK))


@each_way
def test_a_worker_that_is_stuck_is_replaced(tmp_path, way):
    """Its batch is made again."""
    assert run_stuck(tmp_path, way, "first()") == "True\n"


@each_way
def test_a_batch_with_which_two_workers_get_stuck_is_an_error(tmp_path, way):
    """Rather than to wait for ever."""
    found = run_stuck(tmp_path, way, "True")

    assert found.startswith("WorkerError process ")
    assert "was stuck in a system call or stopped and was killed while running map()" in found


def test_a_worker_that_sleeps_is_waited_for(tmp_path):
    """Waiting is not being stuck: a function may wait for a network."""
    code = """
from ndfeed.files import worker_process
worker_process._STUCK = 1
np.save(args[0] + "/x.npy", np.arange(4))
ds = ndfeed.open(args[0] + "/x.npy").map(lambda batch: time.sleep(4) or batch)
with ndfeed.loader(ds, 4, processes=1) as loader:
    print(len(list(loader)))
"""
    assert run(code, tmp_path) == "1\n"


FAULTS = """
from ndfeed.files.worker_process import start_child

def count():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def make_arrays(parent, size):
    parent.receive()
    before = count()
    for _ in range(200):
        [np.ones(size // 8, np.uint8) for _ in range(8)]
    parent.send(count() - before)

child = start_child(make_arrays, int(args[0]))
print(child.ask(None) / (200 * int(args[0]) / resource.getpagesize()) < 0.1)
child.terminate()
child.reap()
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="is about glibc's malloc")
@pytest.mark.parametrize("size", [1200 << 10, 10 << 20])
def test_memory_of_arrays_is_used_again(size):
    """A page that is made anew may cost more than what a function computes there."""
    assert run(FAULTS, f"{size}") == "True\n"
