"""``Convert``: dtype, scale and memory layout of a field's tensors, applied on their device."""

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from ndfeed.dataset.column import Field

# Products are computed in these dtypes as they are; for every other dtype, in float32.
_WIDE = (torch.float64, torch.complex64, torch.complex128)
_LAYOUTS = {4: torch.channels_last, 5: torch.channels_last_3d}

Channels = float | tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Convert:
    """How a field's tensors are made from what is stored.

    ``Convert(torch.float32, scale=1 / 255)`` turns images of bytes into images in [0, 1]. It runs
    on the device of the tensors, so that only what is stored is copied there.

    - ``dtype``: the dtype of the tensors; by default that of the field.
    - ``scale``: values are multiplied by it, in float32, or wider where ``dtype`` is.
    - ``mean``, ``std``: a number each, or one for every channel. Values become
      ``(value * scale - mean) / std``, as with ``Normalize`` of torchvision.
    - ``hwc=True``: samples are stored as (height, width, channels); tensors are (N, C, H, W), a
      view, whose memory is in the layout that ``torch.channels_last`` names.
    - ``channels_last=True``: samples are stored as (channels, height, width); tensors have the
      same shape, and their memory that layout.

    Channels are the first axis of a sample, or the last one with ``hwc=True``.
    """

    dtype: torch.dtype | None = None
    scale: float | None = None
    hwc: bool = False
    channels_last: bool = False
    mean: float | Iterable[float] | None = None
    std: float | Iterable[float] | None = None

    def __post_init__(self) -> None:
        given: object = self.dtype  # callers may pass anything
        if given is not None and not isinstance(given, torch.dtype):
            raise TypeError(f"dtype must be one of torch's, such as torch.float32: {self.dtype!r}")
        for name in ("mean", "std"):
            object.__setattr__(self, name, _channels(name, getattr(self, name)))
        asked = [name for name in ("scale", "mean", "std") if getattr(self, name) is not None]
        if not asked:
            return
        if self.scale is not None and not math.isfinite(self.scale):
            raise ValueError(f"scale must be a finite number, got {self.scale!r}")
        if self.dtype is None or not (self.dtype.is_floating_point or self.dtype.is_complex):
            raise ValueError(
                f"{asked[0]} makes fractions: dtype must be such as torch.float32, got {self.dtype}"
            )
        if self.std is not None and 0 in (self.std if isinstance(self.std, tuple) else (self.std,)):
            raise ValueError(
                f"std must not be zero, got {self.std!r}; use 1 for a constant channel"
            )
        self._count()

    def _count(self) -> int | None:
        """Return how many channels ``mean`` and ``std`` have; ``None`` if one value is for all."""
        counts = {len(one) for one in (self.mean, self.std) if isinstance(one, tuple)}
        if len(counts) > 1:
            raise ValueError(
                f"mean and std must have a value for each channel, got {self.mean} and {self.std}"
            )
        return counts.pop() if counts else None

    def check(self, field: Field) -> None:
        """Refuse a field whose samples have another layout, or other channels."""
        shape = None if field.ragged or field.shape is None else field.shape
        laid_out = self.hwc or self.channels_last
        if laid_out and (shape is None or len(shape) + 1 not in _LAYOUTS):
            word = "hwc" if self.hwc else "channels_last"
            raise ValueError(
                f"{word} is for samples of three or four dimensions, all of one shape; "
                f"{field.name!r} has {field.shape_text}"
            )
        count = self._count()
        if count is None:
            return
        if not shape or shape[-1 if self.hwc else 0] != count:
            raise ValueError(
                f"mean and std have {count} channels, and samples of {field.name!r} have the shape "
                f"{field.shape_text}: channels are the first axis, or the last with hwc=True"
            )

    def growth(self, stored: torch.dtype) -> float:
        """Return the bytes that converting allocates for every byte of dtype ``stored``."""
        dtype = self.dtype or stored
        exact = self.scale is None and self.mean is None and self.std is None
        between = 0 if exact or dtype in _WIDE else torch.float32.itemsize
        return (dtype.itemsize + between) / stored.itemsize

    def __call__(self, tensor: Tensor) -> Tensor:
        """Convert a tensor; the one given is not changed."""
        if self.hwc:
            tensor = tensor.movedim(-1, 1)
        layout = _LAYOUTS[tensor.ndim] if self.channels_last else torch.preserve_format
        dtype = self.dtype or tensor.dtype
        scale = self.scale
        centred = self.mean is not None or self.std is not None
        if scale is None and not centred:
            return tensor.to(dtype, memory_format=layout)
        wide = dtype if dtype in _WIDE else torch.float32
        widened = tensor.to(wide, memory_format=layout)
        own = widened is not tensor
        if scale is None or centred:
            out = widened if own else torch.empty_like(widened)
            return self._normalize(widened, out).to(dtype)
        scaled = widened.mul_(scale) if own else widened * scale
        return scaled.to(dtype)

    def _normalize(self, values: Tensor, out: Tensor) -> Tensor:
        """Compute ``(values * scale - mean) / std``, in one pass over ``values``."""
        count = self._count()
        if count is not None and (values.ndim < 2 or values.shape[1] != count):
            raise ValueError(
                f"mean and std have {count} channels, and batches have the shape "
                f"{tuple(values.shape)}: channels are the axis behind the first"
            )
        mean = cast("Channels", 0.0 if self.mean is None else self.mean)
        std = cast("Channels", 1.0 if self.std is None else self.std)
        scale = 1.0 if self.scale is None else self.scale
        factor, shift = _affine(mean, std, scale, values.ndim, values.dtype, values.device)
        return torch.addcmul(shift, values, factor, out=out)


def _channels(name: str, given: float | Iterable[float] | None) -> Channels | None:
    """Return a number, or a tuple of one for each channel, from what a caller passed."""
    if given is None:
        return None
    try:
        found: Channels
        if isinstance(given, Iterable) and getattr(given, "ndim", 1) > 0:
            found = tuple([float(value) for value in given])
        else:
            found = float(cast("float", given))  # a number, or an array of one
    except (TypeError, ValueError):
        raise TypeError(
            f"{name} must be a number, or one for each channel such as (0.5, 0.5, 0.5), got "
            f"{given!r}"
        ) from None
    if found == () or not all(map(math.isfinite, found if isinstance(found, tuple) else (found,))):
        raise ValueError(f"{name} must have finite numbers, got {given!r}")
    return found


@functools.lru_cache(maxsize=64)
def _affine(
    mean: Channels, std: Channels, scale: float, ndim: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return the factor and the shift to apply to values; made once for each device."""
    means, stds = (torch.tensor(one, dtype=torch.float64) for one in (mean, std))
    shift = -means / stds
    factor = (scale / stds).expand_as(shift)
    shape = (-1, *(1,) * (ndim - 2)) if factor.ndim else ()
    moved = [one.reshape(shape).to(dtype).to(device) for one in (factor, shift)]
    return moved[0], moved[1]
