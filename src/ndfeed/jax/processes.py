"""Which process this is, and whether all of them are about to read the same order.

Processes take their parts of one order. If one of them had another seed, or another batch size,
samples would be read twice and others never, and a global array would be made of parts that do
not belong together. So what has to be the same is compared when a pass begins: one small
collective, in which every process takes part.
"""

import json
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from ndfeed.loader.state import check_alike

PATIENCE = 10.0  # seconds after which a process says that it is waiting
_ROOM = 4096  # bytes of JSON; what is compared takes a few hundred


def ranks() -> tuple[int, int]:
    """This process and how many there are, as JAX has them."""
    return jax.process_index(), jax.process_count()


def agree(facts: Mapping[str, Any]) -> None:
    """Raise, in every process, where processes have different ``facts``."""
    if jax.process_count() == 1:
        return
    text = json.dumps(facts).encode().ljust(_ROOM)
    with _warns_if_it_waits():
        gathered = multihost_utils.process_allgather(np.frombuffer(text, np.uint8))
    found = [json.loads(bytes(np.asarray(one, np.uint8))) for one in gathered]
    check_alike(
        found,
        "processes",
        "in process",
        "give each of them the same, or shard=(0, 1) to a loader that is one process's own",
    )


@contextmanager
def _warns_if_it_waits() -> Iterator[None]:
    """Warn, from another thread, if the block takes long; the block goes on."""
    timer = threading.Timer(PATIENCE, _warn, [jax.process_index()])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _warn(process: int) -> None:
    warnings.warn(
        f"process {process} has waited {PATIENCE:.0f} s for the other processes to begin a pass: "
        "all processes iterate over a loader together; give shard=(0, 1) to a loader that process "
        f"{process} alone iterates over, such as one for validation",
        RuntimeWarning,
        stacklevel=2,
    )
