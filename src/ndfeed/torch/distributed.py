"""Which rank this is, and whether all ranks are about to read the same order.

Ranks take their slices of one order. If one of them had another seed, or another batch size,
some samples would be read twice and others never, and nothing would look wrong. So what has to be
the same is compared when a pass starts, by all ranks.

It is compared through the key-value store of the process group (``framework_hacks``): each rank
sets its facts, rank 0 collects them and answers every other rank. The store also knows which ranks
have not arrived yet. All keys are deleted as they are read.
"""

import json
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch.distributed

from ndfeed.loading.state import check_alike
from ndfeed.torch.framework_hacks import Store, find_store

PATIENCE = 10.0  # seconds after which a rank says that it is waiting
_FIRST_PAUSE, _LONGEST_PAUSE = 1e-4, 0.1  # seconds between two looks at the store
_SHOWN = 8  # ranks that a message lists
_TOGETHER = "waiting for rank 0 to call refresh(): all ranks call it together, between two epochs"
_REMEDY = "give every rank the same, or shard=(0, 1) to a loader that is one rank's own"


def ranks() -> tuple[int, int]:
    """Return rank and world size of ``torch.distributed``; (0, 1) if it is not initialised."""
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return 0, 1
    return torch.distributed.get_rank(), torch.distributed.get_world_size()


def agree(facts: Mapping[str, Any]) -> None:
    """Raise, on every rank, where ranks have different ``facts``.

    A rank that waits for others for more than some seconds warns, and keeps waiting.
    """
    rank, world = ranks()
    if world == 1:
        return
    store = find_store()
    if store is None:
        found: list[Any] = [None] * world
        torch.distributed.all_gather_object(found, dict(facts))
        check_alike(found, "ranks", "on rank", _REMEDY)
    elif rank == 0:
        _decide(store, world, facts)
    else:
        _ask(store, rank, world, facts)


def share_first(make: Callable[[], Any]) -> Any:  # noqa: ANN401 - what JSON holds
    """Return, on every rank, what ``make`` returns on rank 0; raise there and here if it raises."""
    rank, world = ranks()
    store, made, problem = find_store(), None, ""
    if rank == 0:
        try:
            made = make()
        except Exception as error:
            problem = f"rank 0: {error}"
            raise
        finally:
            _tell(store, world, json.dumps([made, problem]))
        return made
    if store is None:
        found: list[Any] = [None]
        torch.distributed.broadcast_object_list(found)
        text = found[0]
    else:
        _wait(store, [_shared(rank)], rank, world, _TOGETHER)
        text = store.get(_shared(rank)).decode()
        store.delete_key(_shared(rank))
    made, problem = json.loads(text)
    if problem:
        raise RuntimeError(problem)
    return made


def _tell(store: Store | None, world: int, text: str) -> None:
    """Rank 0: send a text to all other ranks."""
    if store is None:
        torch.distributed.broadcast_object_list([text])
        return
    for rank in range(1, world):
        store.set(_shared(rank), text)


def _shared(rank: int) -> str:
    return f"ndfeed/shared/{rank}"


def _facts(rank: int) -> str:
    return f"ndfeed/facts/{rank}"


def _answer(rank: int) -> str:
    return f"ndfeed/answer/{rank}"


def _decide(store: Store, world: int, facts: Mapping[str, Any]) -> None:
    """Rank 0: compare what all ranks have set, and tell them."""
    store.set(_facts(0), json.dumps(facts))
    everyone = [_facts(rank) for rank in range(world)]
    _wait(store, everyone, 0, world)
    found = [json.loads(store.get(key)) for key in everyone]
    for key in everyone:
        store.delete_key(key)
    problem = ""
    try:
        check_alike(found, "ranks", "on rank", _REMEDY)
    except RuntimeError as error:
        problem = str(error)
        raise
    finally:
        for rank in range(1, world):
            store.set(_answer(rank), problem or "agreed")


def _ask(store: Store, rank: int, world: int, facts: Mapping[str, Any]) -> None:
    """Every other rank: set its facts, and wait for the answer of rank 0."""
    store.set(_facts(rank), json.dumps(facts))
    _wait(store, [_answer(rank)], rank, world)
    answer = store.get(_answer(rank)).decode()
    store.delete_key(_answer(rank))
    if answer != "agreed":
        raise RuntimeError(answer)


def _wait(
    store: Store, keys: Sequence[str], rank: int, world: int, what: str | None = None
) -> None:
    """Return when all ``keys`` are set; warn once if that takes long."""
    # Polled: the store's own wait() logs warnings when it times out, and ignores Ctrl-C.
    begun, pause, warned = time.monotonic(), _FIRST_PAUSE, False
    limit = store.timeout.total_seconds()
    while not store.check(list(keys)):
        waited = time.monotonic() - begun
        if waited > limit:
            raise RuntimeError(what or _describe_wait(store, rank, world, waited))
        if waited > PATIENCE and not warned:
            warned = True
            # The warning is for the line that asked for the first batch.
            said = what or _describe_wait(store, rank, world, waited)
            warnings.warn(said, RuntimeWarning, stacklevel=8)
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


def _describe_wait(store: Store, rank: int, world: int, waited: float) -> str:
    """Say which rank waits for which, and what to do."""
    absent = [other for other in range(world) if not store.check([_facts(other)])] or [0]
    named = ", ".join(map(str, absent[:_SHOWN]))
    more = f" and {len(absent) - _SHOWN} more" if len(absent) > _SHOWN else ""
    return (
        f"rank {rank} has waited {waited:.0f} s for rank{'s' * (len(absent) > 1)} {named}{more} "
        "to begin a pass: all ranks iterate over a loader together; give shard=(0, 1) to a loader "
        f"that rank {rank} alone iterates over, such as one for validation"
    )
