"""How a batch is handed to Keras with its torch backend: as tensors of the arrays' own memory.

Keras would copy every array before it makes a tensor of it. JAX and TensorFlow take the memory of
arrays as it is, JAX faster than arrays of its own, so there batches stay what they are.
"""

from typing import Any

import keras
import numpy as np
import torch

# Types that Keras hands to torch as they are; of the others it makes something else.
_SAME = frozenset(
    np.dtype(name)
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8"),
        *("float16", "float32", "float64"),
    )
)


def as_tensors(batch: Any) -> Any:  # noqa: ANN401 - any nest of arrays
    """The same batch, its arrays as tensors wherever Keras would make the same of them."""
    return keras.tree.map_structure(_as_tensor, batch)


def _as_tensor(values: Any) -> Any:  # noqa: ANN401
    if not isinstance(values, np.ndarray) or values.dtype not in _SAME:
        return values
    # torch can take only memory that it may write to, in steps forward.
    usable = values.flags.writeable and values.flags.c_contiguous
    return torch.from_numpy(values) if usable else values
