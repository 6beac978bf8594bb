"""A worker process that does not answer, and the memory it keeps."""

import platform
import sys

import pytest
from children import run

from ndfeed.files import process_server

pytestmark = [
    pytest.mark.skipif(process_server.why_not() != "", reason="needs fork"),
    pytest.mark.skipif(sys.platform != "linux", reason="the system does not tell"),
]

STOPPED = """
from ndfeed.files import worker_process
worker_process._STUCK = 3  # seconds, not a minute
me = os.getpid()

def stop(batch):
    if 40 in batch["data"] and os.getpid() != me and {condition}:
        os.kill(os.getpid(), signal.SIGSTOP)
    return batch

np.save(args[0] + "/x.npy", np.arange(100))
ds = ndfeed.open(args[0] + "/x.npy").map(stop)
with ndfeed.loader(ds, 10, processes=2) as loader:
    try:
        print([int(x) for batch in loader for x in batch["data"]] == list(range(100)))
    except ndfeed.Error as error:
        print(type(error).__name__, error)
"""


def test_a_stopped_worker_is_replaced(tmp_path):
    """Its batch is made again."""
    once = "not os.path.exists(args[0] + '/once') and not open(args[0] + '/once', 'w').close()"

    assert run(STOPPED.replace("{condition}", once), tmp_path) == "True\n"


def test_a_batch_that_stops_two_workers_is_an_error(tmp_path):
    """Rather than to wait for ever."""
    found = run(STOPPED.replace("{condition}", "True"), tmp_path)

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
