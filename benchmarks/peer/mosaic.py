"""MosaicML Streaming: MDS shards of the default size, its default shuffle."""

import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

NAME = "MosaicML Streaming"
PACKAGES = ("mosaicml-streaming",)
FORMAT = "MDS"
SHUFFLE = "blocks of 262,144 rows or more (py1e)"
SETTINGS = ({"workers": 0}, {"workers": 2}, {"workers": 4})


def convert(source: Path, target: Path) -> None:
    """Write arrays whose shape is in the index, so that a row is only its bytes."""
    importable()
    from streaming import MDSWriter

    rows = np.load(source, mmap_mode="r")
    shape = ",".join(map(str, rows.shape[1:]))
    with MDSWriter(out=str(target), columns={"x": f"ndarray:uint8:{shape}"}) as writer:
        for row in rows:
            writer.write({"x": np.asarray(row)})


def batches(target: Path, batch: int, workers: int) -> Any:
    """Read as its quick start shows."""
    importable()
    from streaming import StreamingDataset
    from torch.utils.data import DataLoader

    data = StreamingDataset(local=str(target), shuffle=True, batch_size=batch)
    return DataLoader(
        data, batch, num_workers=workers, persistent_workers=workers > 0, collate_fn=stack
    )


def stack(samples: list[dict[str, np.ndarray]]) -> Any:
    """Return the rows of a batch as one tensor, without torch's slower collating of arrays."""
    import torch

    return torch.from_numpy(np.stack([one["x"] for one in samples]))


def importable() -> None:
    """Import Streaming next to a torchvision that does not match torch.

    It imports torchvision for its image datasets, and torchvision's CUDA wheel does not load with
    a CPU build of torch. Nothing here uses it, so an empty module takes its place.
    """
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        for name in [one for one in sys.modules if one.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        for name in ("", ".datasets", ".transforms", ".transforms.functional"):
            empty = sys.modules[f"torchvision{name}"] = Empty(f"torchvision{name}")
            empty.__spec__ = ModuleSpec(empty.__name__, None)
            empty.__path__ = []


class Empty(ModuleType):
    """A module that has every name, each an empty class."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})
