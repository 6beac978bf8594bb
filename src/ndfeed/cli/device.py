"""How fast bytes and batches get to a CUDA device, if there is one."""

import os
import sys
import time
from importlib.util import find_spec

from ndfeed.cli.runs import Ran, run
from ndfeed.dataset.dataset import Dataset

_NBYTES = 32 << 20
_TIMES = 8
_ROUNDS = 5
_DRIVER = ("/dev/nvidiactl", "/dev/dxg")  # Linux as it is, and within Windows


def seen() -> bool:
    """Does torch see a CUDA device?"""
    # Importing torch takes seconds: not where there is no driver for it to find.
    if sys.platform == "linux" and not any(map(os.path.exists, _DRIVER)):
        return False
    if find_spec("torch") is None:
        return False
    import torch  # noqa: PLC0415 - not everybody has it

    return torch.cuda.is_available()


def rate() -> float:
    """Bytes a second from pinned memory: the best of some rounds, as a bus that slept wakes up."""
    import torch  # noqa: PLC0415 - not everybody has it

    host = torch.empty(_NBYTES, dtype=torch.uint8, pin_memory=True)
    there = torch.empty(_NBYTES, dtype=torch.uint8, device="cuda")
    best = 0.0
    for _ in range(_ROUNDS):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(_TIMES):
            there.copy_(host, non_blocking=True)
        torch.cuda.synchronize()
        best = max(best, _TIMES * _NBYTES / (time.perf_counter() - began))
    return best


def fed(ds: Dataset, batch_size: int, shuffle: bool, seconds: float) -> Ran:
    """Batches of torch's loader, as they arrive on the device."""
    from ndfeed import torch as feed  # noqa: PLC0415 - not everybody has torch

    return run(feed.loader(ds, batch_size, shuffle=shuffle, device="cuda"), seconds)
