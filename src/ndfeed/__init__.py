"""Feed array files to training at the speed of the machine.

    import ndfeed

    ds = ndfeed.open("npz_data/")    # a file, folder, pattern, list, or dict of sources
    ds[7], ds[10:20], ds[[3, 1, 4]]  # dicts of arrays of your own

``ndfeed.open`` describes .npy, .npz, .npy.gz, .pt, .safetensors and raw files by their headers;
a ``Dataset`` reads any samples of them without loading whole files. Every error this library
raises on purpose derives from ``ndfeed.Error``.

``ndfeed.torch``, ``ndfeed.tf``, ``ndfeed.keras``, ``ndfeed.jax`` and ``ndfeed.ray`` are imported
when they are first used, and so are the frameworks that they are for.
"""

import importlib as _importlib
import importlib.util as _util
import typing as _typing

from ndfeed.dataset.column import Field
from ndfeed.dataset.dataset import Dataset
from ndfeed.dataset.labels import folder_name
from ndfeed.dataset.mix import mix
from ndfeed.dataset.open import open as _open
from ndfeed.errors import (
    AmbiguousError,
    BadFilesError,
    CastError,
    ChangedError,
    ChecksumError,
    ConflictError,
    DeniedError,
    Error,
    FieldError,
    FormatError,
    LimitError,
    ManifestError,
    MissingError,
    OrderError,
    ResourceError,
    ResumeError,
    SchemaError,
    SourceError,
    SpaceError,
    TargetError,
    TruncatedError,
    UnsupportedError,
    WorkerError,
)
from ndfeed.loading.argument_hints import with_open_hints as _with_open_hints
from ndfeed.loading.loader import Loader
from ndfeed.loading.numpy_loader import loader
from ndfeed.loading.report import Report
from ndfeed.order.balanced import Balanced
from ndfeed.order.buckets import Buckets
from ndfeed.order.grown import Recent
from ndfeed.order.mixing import Mixing
from ndfeed.order.orders import Blocks, Exact, Sequential, Windows
from ndfeed.order.own import CheckedOrder, check_order
from ndfeed.order.sorted import Sorted
from ndfeed.order.weighted import Weighted
from ndfeed.packing.pack import pack
from ndfeed.packing.request import Forecast
from ndfeed.packing.verify import Verified, verify

if _typing.TYPE_CHECKING:
    from ndfeed import jax as jax
    from ndfeed import keras as keras
    from ndfeed import ray as ray
    from ndfeed import tf as tf
    from ndfeed import torch as torch

__version__ = "0.1.0"

open = _with_open_hints(_open)

# Each with the package that it needs. Its extra has the name that it has here.
_FRAMEWORKS = {"jax": "jax", "keras": "keras", "ray": "ray", "tf": "tensorflow", "torch": "torch"}

__all__ = [
    "AmbiguousError",
    "BadFilesError",
    "Balanced",
    "Blocks",
    "Buckets",
    "CastError",
    "ChangedError",
    "CheckedOrder",
    "ChecksumError",
    "ConflictError",
    "Dataset",
    "DeniedError",
    "Error",
    "Exact",
    "Field",
    "FieldError",
    "Forecast",
    "FormatError",
    "LimitError",
    "Loader",
    "ManifestError",
    "MissingError",
    "Mixing",
    "OrderError",
    "Recent",
    "Report",
    "ResourceError",
    "ResumeError",
    "SchemaError",
    "Sequential",
    "Sorted",
    "SourceError",
    "SpaceError",
    "TargetError",
    "TruncatedError",
    "UnsupportedError",
    "Verified",
    "Weighted",
    "Windows",
    "WorkerError",
    "check_order",
    "folder_name",
    "loader",
    "mix",
    "open",
    "pack",
    "verify",
]


def _import_framework(name: str) -> object:
    """``ndfeed.<name>``, which from then on is an attribute like any other."""
    if name not in _FRAMEWORKS:
        raise AttributeError(f"module 'ndfeed' has no attribute {name!r}")
    return _importlib.import_module(f"ndfeed.{name}")


def _names() -> list[str]:
    """For ``dir(ndfeed)``: also what can be imported, but not what would fail."""
    there = [name for name, needed in _FRAMEWORKS.items() if _util.find_spec(needed)]
    return sorted({*globals(), *there})


if not _typing.TYPE_CHECKING:  # a type checker would take any name for one of ours
    __getattr__ = _import_framework
    __dir__ = _names
