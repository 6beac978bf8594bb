"""How fast bytes get from memory to a CUDA device, if there is one."""

import os
import sys
import time
from importlib.util import find_spec

_NBYTES = 32 << 20
_TIMES = 8


def rate() -> float | None:
    """Bytes a second from pinned memory; nothing where torch sees no CUDA device."""
    # Importing torch takes seconds: not where there is no driver for it to find.
    if sys.platform == "linux" and not os.path.exists("/dev/nvidiactl"):
        return None
    if find_spec("torch") is None:
        return None
    import torch  # noqa: PLC0415 - not everybody has it

    if not torch.cuda.is_available():
        return None
    host = torch.empty(_NBYTES, dtype=torch.uint8, pin_memory=True)
    there = torch.empty(_NBYTES, dtype=torch.uint8, device="cuda")
    there.copy_(host)
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(_TIMES):
        there.copy_(host, non_blocking=True)
    torch.cuda.synchronize()
    return _TIMES * _NBYTES / (time.perf_counter() - began)
