"""Arrays in memory as sources of a dataset: of NumPy, PyTorch, JAX and others.

They are copied once, into memory that all processes share. Rows of the first axis are samples.
No framework is imported: an array says by itself what it is, through ``__array__`` or DLPack.
"""

import sys
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ndfeed.dataset.arguments import is_masked
from ndfeed.dataset.column import Field
from ndfeed.dataset.in_memory import Held, Room, hold
from ndfeed.formats.dtypes import EXTENDED, delivered, named

_HOST = 1, 3, 11  # devices in DLPack: memory of this machine, also pinned for CUDA or ROCm
_BITS = {1: "uint8", 2: "int16", 4: "int32"}


class SupportsArray(Protocol):
    """An array that NumPy can read."""

    def __array__(self, *args: Any, **kwargs: Any) -> NDArray[Any]:
        """Return the values."""
        ...


class SupportsDLPack(Protocol):
    """An array that is passed on by DLPack."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> object:
        """Return the capsule."""
        ...


InMemory = SupportsArray | SupportsDLPack


class Array(NamedTuple):
    """An array of NumPy, and the name of its element type, which NumPy may lack."""

    values: NDArray[Any]
    type: str


def is_array(source: object) -> bool:
    """Is it an array in memory, of any library? One of text is a list of names."""
    if isinstance(source, np.ndarray):
        return source.dtype.kind not in "USO"
    if isinstance(source, str | bytes | list | tuple | type):
        return False
    if not hasattr(source, "__array__") and not hasattr(source, "__dlpack__"):
        return False
    return getattr(getattr(source, "dtype", None), "kind", "f") not in "USO"


def as_array(source: Any, name: str) -> Array:  # noqa: ANN401 - of any library
    """Return an array of any library as one of NumPy, in native byte order."""
    if isinstance(source, np.ndarray) and getattr(source, "filename", None) is not None:
        raise TypeError(
            f"{name} must be an array in memory or a path, got an np.memmap; pass the path of the "
            "file, which is then read in place, or np.array(memmap) to copy it"
        )
    if is_masked(source):
        raise TypeError(f"{name}: masked values are no numbers; pass array.filled(number)")
    try:
        found = source if isinstance(source, np.ndarray) else _convert(source, name)
        if isinstance(found, np.ndarray) and found.dtype.hasobject:
            raise ValueError(f"{type(source).__name__} is no number")
        kind = found.type if isinstance(found, Array) else named(found.dtype)
    except (RuntimeError, ValueError) as error:
        raise TypeError(f"{name} cannot be read as an array: {error}") from None
    values = found.values if isinstance(found, Array) else found
    native = delivered(kind)
    return Array(values if values.dtype == native else values.astype(native), _native_name(kind))


def _native_name(kind: str) -> str:
    """Return the name of a type in the byte order of this machine."""
    return kind if kind in EXTENDED else delivered(kind).str


def _convert(source: Any, name: str) -> NDArray[Any] | Array:  # noqa: ANN401 - of any library
    kind = str(getattr(source, "dtype", "")).removeprefix("torch.")
    if hasattr(source, "detach"):  # a tensor that a gradient may flow to
        source = source.detach()
    device = getattr(source, "__dlpack_device__", None)
    if device is not None and int(device()[0]) not in _HOST:
        raise TypeError(
            f"{name} must be in the memory of this machine, got {type(source).__name__} on "
            f"{getattr(source, 'device', 'a device')}; copy it first, as tensor.cpu() does"
        )
    torch = sys.modules.get("torch")
    if kind in EXTENDED and torch is not None and isinstance(source, torch.Tensor):
        # NumPy has no such type, and torch gives it only the bits.
        bits = source.contiguous().view(getattr(torch, _BITS[EXTENDED[kind]]))
        return Array(np.asarray(bits).view(delivered(kind)), kind)
    if hasattr(source, "__dlpack__") and not hasattr(source, "__array__"):
        return np.from_dlpack(source)
    return np.asarray(source)


def hold_array(array: Array, name: str) -> Held:
    """Copy an array into shared memory: its rows are the samples of field ``name``."""
    values, kind = array
    field = Field(name, values.dtype, values.shape[1:], kind)

    def fill(room: Room) -> None:
        room[name][...] = values  # type: ignore[call-overload]

    return hold([field], len(values), {}, fill)


def without_index(source: Any) -> object:  # noqa: ANN401 - whatever a caller gave
    """Return the values of a pandas Series, unless its index says more than their order."""
    index = getattr(source, "index", None)
    if index is None or callable(index) or not hasattr(source, "to_dict"):
        return source
    if not np.array_equal(np.asarray(index), np.arange(len(index))):
        raise TypeError(
            "labels have an index, which could name files: pass labels.to_dict() to match them by "
            "name, or labels.to_numpy() if they are in the order of the samples"
        )
    return np.asarray(source)
