"""ndfeed for JAX: batches as arrays on devices and meshes, and samples for Grain.

    import ndfeed.jax

    for batch in ndfeed.jax.loader(ds, 256, shuffle=True): ...
    for batch in ndfeed.jax.loader(ds, 256, sharding=NamedSharding(mesh, P("data"))): ...
    grain.MapDataset.source(ndfeed.jax.source(ds)).shuffle(0).batch(256)

Rank and world size are the process index and the process count of JAX. No value changes silently:
64-bit integers become 32-bit ones only if they fit, and precision is lost only where ``cast`` asks
for a dtype that has less.
"""

from importlib import import_module

from ndfeed.errors import not_installed

try:
    import_module("jax")
except ModuleNotFoundError as error:
    raise not_installed(error, "jax", "jax") from None

from ndfeed.jax.jax_loader import Source, loader, source

__all__ = ["Source", "loader", "source"]
