"""Which process this is, and whether all of them are about to read the same order.

Processes take their parts of one order. If one of them had another seed, or another batch size,
samples would be read twice and others never, and a global array would be made of parts that do
not belong together. So what has to be the same is compared when a pass begins: one small
collective, in which every process takes part.
"""

import json
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from ndfeed.loader.state import check_alike

_ROOM = 4096  # bytes of JSON; what is compared takes a few hundred


def ranks() -> tuple[int, int]:
    """This process and how many there are, as JAX has them."""
    return jax.process_index(), jax.process_count()


def agree(facts: Mapping[str, Any]) -> None:
    """Raise, in every process, where processes have different ``facts``."""
    if jax.process_count() == 1:
        return
    text = json.dumps(facts).encode().ljust(_ROOM)
    gathered = multihost_utils.process_allgather(np.frombuffer(text, np.uint8))
    found = [json.loads(bytes(np.asarray(one, np.uint8))) for one in gathered]
    check_alike(
        found,
        "processes",
        "in process",
        "give each of them the same, or shard=(0, 1) to a loader that is one process's own",
    )
