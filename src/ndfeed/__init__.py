"""Feed array files to training at the speed of the machine.

    import ndfeed

    ds = ndfeed.open("npz_data/")    # a file, folder, pattern, list, or dict of sources
    ds[7], ds[10:20], ds[[3, 1, 4]]  # dicts of arrays of your own

``ndfeed.open`` describes .npy, .npz, .npy.gz, .pt, .safetensors and raw files by their headers;
a ``Dataset`` reads any samples of them without loading whole files. Every error this library
raises on purpose derives from ``ndfeed.Error``.
"""

from ndfeed.dataset.dataset import Dataset
from ndfeed.dataset.field import Field
from ndfeed.dataset.open import open
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
from ndfeed.loader.loader import Loader, loader
from ndfeed.loader.report import Report
from ndfeed.order.orders import Blocks, Exact, Sequential, Windows
from ndfeed.pack.forecast import Forecast
from ndfeed.pack.pack import pack
from ndfeed.pack.verify import Verified, verify

__version__ = "0.1.0"

__all__ = [
    "AmbiguousError",
    "BadFilesError",
    "Blocks",
    "CastError",
    "ChangedError",
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
    "Report",
    "ResourceError",
    "ResumeError",
    "SchemaError",
    "Sequential",
    "SourceError",
    "SpaceError",
    "TargetError",
    "TruncatedError",
    "UnsupportedError",
    "Verified",
    "Windows",
    "WorkerError",
    "loader",
    "open",
    "pack",
    "verify",
]
