"""Which rank this is, and whether all ranks are about to read the same order.

Ranks take their slices of one order. If one of them had another seed, or another batch size,
samples would be read twice and others never, and nothing would look wrong. So what has to be
the same is compared when a pass begins: one small collective, in which every rank takes part.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch.distributed

_SHOWN = 4  # ranks that an error lists


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
    for name in facts:
        values = [one.get(name) for one in found]
        if any(value != values[0] for value in values):
            raise RuntimeError(
                f"ranks must agree on {name}, found {_listed(values)}; give every rank the same, "
                "or shard=(0, 1) to a loader that is one rank's own"
            )


def _listed(values: Sequence[Any]) -> str:
    """The first rank's value, and those that differ from it."""
    others = [rank for rank, value in enumerate(values) if value != values[0]]
    named = [f"{values[rank]} on rank {rank}" for rank in (0, *others[: _SHOWN - 1])]
    more = len(others) - len(named) + 1
    return ", ".join(named) + (f" and {more} more" if more else "")
