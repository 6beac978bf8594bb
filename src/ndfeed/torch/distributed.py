"""Which rank this is, and whether all ranks are about to read the same order.

Ranks take their slices of one order. If one of them had another seed, or another batch size,
samples would be read twice and others never, and nothing would look wrong. So what has to be
the same is compared when a pass begins: one small collective, in which every rank takes part.
"""

from collections.abc import Mapping
from typing import Any

import torch.distributed

from ndfeed.loader.state import check_alike


def ranks() -> tuple[int, int]:
    """Rank and world, as torch.distributed has them; alone where it is not initialised."""
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return 0, 1
    return torch.distributed.get_rank(), torch.distributed.get_world_size()


def agree(facts: Mapping[str, Any]) -> None:
    """Raise, on every rank, where ranks have different ``facts``."""
    world = ranks()[1]
    if world == 1:
        return
    found: list[Any] = [None] * world
    torch.distributed.all_gather_object(found, dict(facts))
    check_alike(
        found,
        "ranks",
        "on rank",
        "give every rank the same, or shard=(0, 1) to a loader that is one rank's own",
    )
