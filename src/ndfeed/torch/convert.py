"""What may be done to a field's tensors on the device they are for: type, scale, layout."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ndfeed.dataset.field import Field

# In these a product is computed as it is; in every other type it is computed in float32.
_WIDE = (torch.float64, torch.complex64, torch.complex128)
_LAYOUTS = {4: torch.channels_last, 5: torch.channels_last_3d}


@dataclass(frozen=True, slots=True)
class Convert:
    """How a field's tensors are made of what is stored.

    ``Convert(torch.float32, scale=1 / 255)`` makes images of bytes images in [0, 1]. It runs on
    the device that the tensors are for, so that what travels there is what is stored.

    - ``dtype``: the type of the tensors; by default that of the field.
    - ``scale``: what values are multiplied by. Computed in float32, or wider where ``dtype`` is.
    - ``hwc=True``: samples are stored as (height, width, channels); tensors are (N, C, H, W), a
      view, whose memory is in the layout that ``torch.channels_last`` names.
    - ``channels_last=True``: samples are stored as (channels, height, width); tensors have the
      same shape, and their memory that layout.
    """

    dtype: torch.dtype | None = None
    scale: float | None = None
    hwc: bool = False
    channels_last: bool = False

    def __post_init__(self) -> None:
        given: object = self.dtype  # whatever a caller wrote
        if given is not None and not isinstance(given, torch.dtype):
            raise TypeError(f"dtype must be one of torch's, such as torch.float32: {self.dtype!r}")
        if self.scale is None:
            return
        if not math.isfinite(self.scale):
            raise ValueError(f"scale must be a finite number, got {self.scale!r}")
        if self.dtype is None or not (self.dtype.is_floating_point or self.dtype.is_complex):
            raise ValueError(
                f"scale makes fractions: dtype must be such as torch.float32, got {self.dtype}"
            )

    def check(self, field: Field) -> None:
        """Refuse a field whose samples have no such layout."""
        if not (self.hwc or self.channels_last):
            return
        ndim = None if field.ragged or field.shape is None else len(field.shape)
        if ndim is None or ndim + 1 not in _LAYOUTS:
            word = "hwc" if self.hwc else "channels_last"
            raise ValueError(
                f"{word} is for samples of three or four dimensions, all of one shape; "
                f"{field.name!r} has {field.shape_text}"
            )

    def __call__(self, tensor: Tensor) -> Tensor:
        """The tensor that the consumer gets; the one given is left as it is."""
        if self.hwc:
            tensor = tensor.movedim(-1, 1)
        layout = _LAYOUTS[tensor.ndim] if self.channels_last else torch.preserve_format
        dtype = self.dtype or tensor.dtype
        if self.scale is None:
            return tensor.to(dtype, memory_format=layout)
        wide = dtype if dtype in _WIDE else torch.float32
        widened = tensor.to(wide, memory_format=layout)
        own = widened is not tensor
        scaled = widened.mul_(self.scale) if own else widened * self.scale
        return scaled.to(dtype)
