"""Write the golden .pt and .safetensors files of one version of torch and safetensors.

python write_torch.py    in an environment with the versions to be named in the files
"""

from collections import OrderedDict
from pathlib import Path

import numpy as np
import safetensors.torch
import torch

HERE = Path(__file__).parent


def write():
    """One file of each, beside this one."""
    base = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    content = {
        "f4": base,
        "view": base[1:3, ::2],
        "transposed": base.t(),
        "bf16": torch.arange(3).to(torch.bfloat16),
        "bool": torch.tensor([True, False]),
        "c8": torch.arange(2).to(torch.complex64),
        "empty": torch.empty(0, 3),
        "scalar": torch.tensor(7),
        "nested": OrderedDict([("list", [torch.arange(2), torch.arange(3)]), ("n", 5), ("x", 0.5)]),
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "numpy": np.arange(130, 140, dtype=np.uint8),
        "text": "not a field",
    }
    torch.save(content, HERE / f"torch-{torch.__version__.partition('+')[0]}.pt")
    plain = {
        "f4": base,
        "bf16": content["bf16"],
        "i8": torch.arange(5),
        "scalar": content["scalar"],
    }
    name = f"safetensors-{safetensors.__version__}.safetensors"
    safetensors.torch.save_file(plain, HERE / name, metadata={"made": "here"})


if __name__ == "__main__":
    write()
