"""Arguments of other libraries: which argument does the same here.

Users of ``DataLoader``, ``tf.data`` or Grain write the arguments they are used to. They get
Python's own ``TypeError``, with the argument to use instead.
"""

import difflib
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_WORKERS = "threads= prefetch on their own, and processes= run the functions given to map()"
_READ_AHEAD = "batches are prefetched as far as memory= allows"
_ORDER = (
    "shuffle= takes an order such as ndfeed.Weighted(weights), and ds.take(rows) selects samples"
)
_MAP = (
    "ds.map(function) changes batches, and ragged= says how samples of different shapes become one"
)
_SHARD = "write shard=(rank, world)"
_SEED = "seed= fixes the order of samples and the random numbers of functions given to map()"
_SHUFFLE = "shuffle=True is a whole permutation and needs no buffer"
_EPOCHS = "each loop over the loader is one epoch"
_BY_LENGTH = 'shuffle=ndfeed.Buckets("text", edges=(64, 128)) makes batches of similar length'
_WEIGHTED = "write shuffle=ndfeed.Weighted(weights), with a field or a number for each sample"
_BALANCED = (
    'write shuffle=ndfeed.Balanced("label"), which has all classes equally often, or as often as '
    "its weights= say"
)
_SORTED = 'write shuffle=ndfeed.Sorted("score", stages=4), which goes by a value, in stages'
_PADDING = 'write ragged="pad"'
_CONVERT = (
    'ndfeed.open(path, dtype={"x": "float32"}) converts fields as they are read, and '
    "ds.map(function) batches"
)

_HINTS = {
    "num_workers": _WORKERS,
    "workers": _WORKERS,
    "worker_count": _WORKERS,
    "num_threads": "write threads=",
    "num_processes": "write processes=",
    "num_parallel_calls": _WORKERS,
    "multiprocessing_context": "processes= are started in the way that suits the platform",
    "persistent_workers": "threads and processes live from one epoch to the next",
    "worker_init_fn": _SEED,
    "generator": _SEED,
    "random_state": _SEED,
    "rng": _SEED,
    "prefetch": _READ_AHEAD,
    "prefetch_factor": _READ_AHEAD,
    "buffer_size": _SHUFFLE,
    "shuffle_buffer": _SHUFFLE,
    "shuffle_buffer_size": _SHUFFLE,
    "reshuffle_each_iteration": "each epoch has its own order",
    "pin_memory": "ndfeed.torch.loader(device='cuda') puts batches in device memory",
    "pin_memory_device": "ndfeed.torch.loader(device='cuda') puts batches on the device",
    "device": "ndfeed.torch.loader(device='cuda') puts batches on a device",
    "sampler": _ORDER,
    "batch_sampler": _ORDER,
    "collate_fn": _MAP,
    "transform": _MAP,
    "transforms": _MAP,
    "map_func": _MAP,
    "preprocessing": _MAP,
    "timeout": "errors are raised at their batch, so no timeout is needed",
    "in_order": "batches always come in the order that seed and epoch fix",
    "deterministic": "batches always come in the order that seed and epoch fix",
    "drop_remainder": "write drop_last=",
    "batch": "write batch_size=",
    "columns": "write fields=",
    "keys": "write fields=",
    "features": "write fields=",
    "sample_weight": 'write fields=("x", "y", "weight") with the names of your fields',
    "sample_weights": 'write fields=("x", "y", "weight") with the names of your fields',
    "weights": _WEIGHTED,
    "weighted": _WEIGHTED,
    "balanced": _BALANCED,
    "balance": _BALANCED,
    "class_weight": _BALANCED,
    "class_weights": _BALANCED,
    "stratify": _BALANCED,
    "curriculum": _SORTED,
    "sort": _SORTED,
    "sort_by": _SORTED,
    "sorted": _SORTED,
    "rank": _SHARD,
    "world_size": _SHARD,
    "num_replicas": _SHARD,
    "num_shards": _SHARD,
    "shard_index": _SHARD,
    "shard_options": _SHARD,
    "epochs": _EPOCHS,
    "num_epochs": _EPOCHS,
    "repeat": _EPOCHS,
    "cache": "ds.in_memory() keeps decoded samples",
    "padding": _PADDING,
    "pad": _PADDING,
    "padded_shapes": "write pad_to=",
    "max_length": "write pad_to=",
    "max_tokens": "write tokens=",
    "group_by_length": _BY_LENGTH,
    "bucket_boundaries": _BY_LENGTH,
    "padding_value": "write pad_value=",
    "padding_values": "write pad_value=",
    "dtype": _CONVERT,
    "cast": _CONVERT,
    "convert": _CONVERT,
    "flip": "ndfeed.torch.loader and ndfeed.jax.loader take it; for others, flip in a map()",
    "validation_split": "ds.split(0.9) gives two datasets",
}

_CAST = 'write dtype={"x": "float32"}, which converts fields as they are read'
_IN_A_LOADER = "give it to ndfeed.loader"
_OPEN_HINTS = {
    "cast": _CAST,
    "convert": _CAST,
    "astype": _CAST,
    "dtypes": _CAST,
    "columns": "write fields=",
    "keys": "write fields=",
    "mmap": "write mapped=",
    "mmap_mode": "files are mapped read-only; mapped=False reads them by position",
    "allow_pickle": "files are never unpickled; fields= leaves out fields of Python objects",
    "weights_only": "files are never unpickled",
    "batch_size": _IN_A_LOADER,
    "shuffle": _IN_A_LOADER,
    "seed": _IN_A_LOADER,
    "transform": "write ndfeed.open(path).map(function)",
}


def with_hints(**more: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate an entry function: unknown arguments raise an error that names ours.

    ``more`` are hints for this function only. Its signature is kept for ``help``, editors and type
    checkers.
    """
    return _with_hints(_HINTS | more)


def with_open_hints(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate ``ndfeed.open`` in the same way, with hints of its own."""
    return _with_hints(_OPEN_HINTS)(function)


def _with_hints(hints: Mapping[str, str]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        known = inspect.signature(function).parameters

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            for name in kwargs:
                if name not in known:
                    raise TypeError(_unexpected(function.__name__, name, known, hints))
            return function(*args, **kwargs)

        return call

    return decorate


def _unexpected(
    function: str, name: str, known: Mapping[str, object], hints: Mapping[str, str]
) -> str:
    hint = hints.get(name)
    if hint is None:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}=?" if near else f"it takes {', '.join(known)}"
    return f"{function}() got an unexpected keyword argument {name!r}: {hint}"
