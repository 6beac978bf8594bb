"""Seeds the global random generators of a worker process: NumPy's, Python's and PyTorch's.

A forked process starts with copies of its parent's generators, and a spawned one that imports
PyTorch with PyTorch's default seed. Two workers would therefore draw the same numbers. Workers
seed the global generators before every batch instead, from what identifies the batch, so that a
map draws the same numbers whichever worker runs it.

Only for our worker processes: elsewhere these generators belong to the user.
"""

import contextlib
import hashlib
import importlib.util
import os
import random
import signal
import struct
import sys
import warnings
from functools import lru_cache
from importlib.machinery import ModuleSpec
from types import ModuleType

import numpy as np

_PATIENCE = 1  # seconds that seeding may take before its lock counts as held for ever

_LOW, _ALL = (1 << 32) - 1, (1 << 64) - 1

_torch_usable = True


def renew_locks() -> None:
    """After a fork: replace locks that another thread may have held."""
    global _torch_usable
    np.random.set_bit_generator(np.random.MT19937(0))  # type: ignore[attr-defined] # has its own
    # PyTorch's cannot be replaced. If it is held, a map that draws from PyTorch waits for ever, as
    # it would without us; all others work as long as we do not acquire it either.
    torch = sys.modules.get("torch")
    _torch_usable = torch is None or _can_be_seeded(torch)


def _can_be_seeded(torch: ModuleType) -> bool:
    """Try it in another process: waiting for this lock keeps the GIL."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about forking with threads, of which there are none here
        pid = os.fork()
    if not pid:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # which ends the process
        signal.alarm(_PATIENCE)
        _seed_torch(torch, 0)
        os._exit(0)
    return os.waitpid(pid, 0)[1] == 0


def seed_globals(identity: bytes) -> None:
    """Seed the global generators of this process from what identifies a batch.

    Its last eight bytes, little-endian, are the position of the batch among others, in an epoch
    for example; see ``seed_of``. Takes about 10 µs. Does not import PyTorch: if a map imports it
    later, it is seeded then.
    """
    number = seed_of(identity)
    with contextlib.suppress(TypeError):  # raised where a map chose another bit generator
        # One number of 32 bits: more of them take NumPy three times as long.
        np.random.seed(number & _LOW)  # noqa: NPY002 - the one that maps may use
    random.seed(number)
    torch = sys.modules.get("torch")
    if torch is None:
        _finder.number = number
        if _finder not in sys.meta_path:
            sys.meta_path.insert(0, _finder)
    elif _torch_usable:
        _seed_torch(torch, number)


def seed_of(identity: bytes) -> int:
    """Return a number of 64 bits for a batch.

    Batches that differ only in their position differ in the number, and also in its lower 32 bits
    if their positions do. A hash of 32 bits would make two of 65,000 batches draw the same.
    """
    start, step = _mixing(identity[:-8])
    return (start + step * int.from_bytes(identity[-8:], "little")) & _ALL


@lru_cache(maxsize=16)  # one for each epoch in progress
def _mixing(stream: bytes) -> tuple[int, int]:
    digest = hashlib.blake2b(stream, digest_size=16, person=b"ndfeed-globals").digest()
    start, step = struct.unpack("<QQ", digest)
    return start, step | 1  # multiplying by an odd number maps no two positions to one


def _seed_torch(torch: ModuleType, number: int) -> None:
    # Not torch.manual_seed: it takes a hundred times as long, and queries devices.
    generator = getattr(torch, "default_generator", None)  # none while it is being imported
    if generator is not None:
        generator.manual_seed(number)


class _TorchFinder:
    """Seeds PyTorch's generator as soon as a map has imported it."""

    number = 0

    def find_spec(self, name: str, _path: object, _target: object = None) -> ModuleSpec | None:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                run(module)
                _seed_torch(module, self.number)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


_finder = _TorchFinder()
