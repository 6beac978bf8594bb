"""Samples of different lengths as jagged tensors, made of packed values without a copy."""

import math
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor


def nested(batch: dict[str, Any], own: Collection[str]) -> dict[str, Any]:
    """The batch with packed fields as jagged tensors.

    ``own`` are the names of fields: what packing put beside them is not among these, and goes.
    """
    beside = {
        added
        for name in batch
        for added in (f"{name}_offsets", f"{name}_shape")
        if added in batch and added not in own
    }
    made: dict[str, Any] = {}
    for name, values in batch.items():
        if name in beside:
            continue
        offsets = f"{name}_offsets"
        if offsets in beside:
            shapes = batch.get(f"{name}_shape") if f"{name}_shape" in beside else None
            values = _jagged(name, values, batch[offsets], shapes)
        made[name] = values
    return made


def _jagged(name: str, values: Tensor, offsets: Tensor, shapes: Tensor | None) -> Tensor:
    """One jagged tensor. Where there are ``shapes`` the values are flat."""
    if shapes is not None:
        rest = [int(n) for n in shapes[0, 1:]] if len(shapes) else [0] * (shapes.shape[1] - 1)
        if len(shapes) and not bool((shapes[:, 1:] == shapes[0, 1:]).all()):
            raise ValueError(
                f"field {name!r} differs in more than its first axis, which a jagged tensor "
                'cannot; use ragged="list", "pad" or "packed"'
            )
        lengths = shapes[:, 0].cumsum(0)
        offsets = torch.cat([torch.zeros_like(offsets[:1]), lengths])
        count = int(offsets[-1])
        values = values[: count * math.prod(rest)].reshape(count, *rest)
    return torch.nested.nested_tensor_from_jagged(values, offsets)
