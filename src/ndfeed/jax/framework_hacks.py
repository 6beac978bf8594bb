"""What ``ndfeed.jax`` does beyond documented APIs, and what happens where it cannot.

Tried with JAX 0.10 and 0.11. ``tests/jax/test_framework_hacks.py`` has a test that fails if that
changes underneath, and one for what happens then.

``uncommit``
    Arrays that come by DLPack are committed to their device: used together with arrays that are
    committed elsewhere, they raise an error. Batches are not, unless ``device=`` is given: they
    follow what they are used with. There is no public way to make such an array of one that
    exists. Where JAX has another way to make arrays, batches are sent by JAX itself.
"""

import importlib
from typing import Any

import jax


def uncommit(array: jax.Array) -> jax.Array:
    """Return the same array, not committed to its device."""
    made: Any = importlib.import_module("jax._src.array").ArrayImpl
    found: jax.Array = made(array.aval, array.sharding, [array], committed=False)
    return found


def can_uncommit() -> bool:
    """Does ``uncommit`` work with this version of JAX?"""
    try:
        one = jax.device_put(0, jax.local_devices(backend="cpu")[0])
        return getattr(uncommit(one), "committed", True) is False
    except Exception:  # noqa: BLE001 - whatever JAX raises for what it does not know
        return False
