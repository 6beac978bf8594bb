"""A program that ends while batches are on their way to a GPU: no message, nothing left, no wait.

Twenty programs end in each way, half of them with worker processes.
"""

import os

import numpy as np
import psutil
import pytest
from children import start
from loading.making import eventually

PROGRAMS = 20

# What a program does in the middle of an epoch, its exit status, and how what it says ends.
WAYS = {
    "return": ("break", 0, ""),
    "exception": ("raise RuntimeError('on purpose')", 1, "RuntimeError: on purpose\n"),
    "exit": ("sys.exit(3)", 3, ""),
    "SIGTERM": ("os.kill(os.getpid(), signal.SIGTERM)", -15, ""),
    "os._exit": ("os._exit(7)", 7, ""),
    "Ctrl-C": ("os.kill(os.getpid(), signal.SIGINT)", -2, "KeyboardInterrupt\n"),
    # JAX warns of every fork.
    "fork": (
        "warnings.simplefilter('ignore'); if not os.fork(): sys.exit(); os.wait(); break",
        0,
        "",
    ),
}

PROGRAM = """
import warnings
import ndfeed.{framework}

def same(batch):
    return batch

ds = ndfeed.open({{"x": args[0] + "/x.npy", "n": args[0] + "/n.npy"}}, sample="row")
processes = int(args[1])
if processes:
    ds = ds.map(same)
loader = ndfeed.{framework}.loader(
    ds, 64, shuffle=True, device=args[2], processes=processes or None
)
for number, batch in enumerate(loader):
    if number == 40:
{leave}
"""


def has_gpu(framework):
    """Is there one that the framework can use?"""
    module = pytest.importorskip(framework)
    if framework == "torch":
        return module.cuda.is_available()
    return module.default_backend() == "gpu"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_programs_end_quietly(framework, way, tmp_path):
    """As they would without a loader."""
    if not has_gpu(framework):
        pytest.skip("needs a CUDA device")
    np.save(tmp_path / "x.npy", np.zeros((20_000, 1024), np.uint8))
    np.save(tmp_path / "n.npy", np.arange(20_000, dtype=np.int32))
    leave, status, last = WAYS[way]
    code = PROGRAM.format(framework=framework, leave="\n".join(
        f"        {line}" for line in leave.split("; ")
    ))  # fmt: skip
    environment = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    device = "cuda" if framework == "torch" else "gpu"
    programs = [
        start(
            code, tmp_path, f"{2 * (number % 2)}", device, start_new_session=True, env=environment
        )
        for number in range(PROGRAMS)
    ]

    for program in programs:
        out, err = program.communicate(timeout=250)
        assert (program.returncode, out) == (status, ""), err
        assert err.endswith(last) if last else not err
        assert err.count("Traceback") == bool(last)
    sessions = {program.pid for program in programs}
    # Workers notice that their parent has gone.
    assert eventually(lambda: not any(is_left_of(one, sessions) for one in psutil.process_iter()))


def is_left_of(process, sessions):
    """Does it still run in one of the sessions?"""
    try:
        ended = process.status() == psutil.STATUS_ZOMBIE
        return not ended and os.getsid(process.pid) in sessions
    except (ProcessLookupError, psutil.NoSuchProcess):
        return False
