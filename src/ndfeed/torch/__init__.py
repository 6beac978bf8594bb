"""ndfeed for PyTorch: batches as tensors, and datasets for torch's own ``DataLoader``.

    import ndfeed.torch

    for x, y in ndfeed.torch.loader(ds, 256, shuffle=True, fields=("image", "label")): ...
    torch.utils.data.DataLoader(ndfeed.torch.dataset(ds), batch_size=256, num_workers=4)

Tensors share the memory of the batch they come in, which is the consumer's own. Rank and world
come from ``torch.distributed`` where it is initialised.
"""

from importlib import import_module

from ndfeed.errors import not_installed

try:
    import_module("torch")
except ModuleNotFoundError as error:
    raise not_installed(error, "torch", "torch") from None

from ndfeed.torch.convert import Convert
from ndfeed.torch.tensor_map import map
from ndfeed.torch.torch_dataset import Samples, TensorDataset, collate, dataset
from ndfeed.torch.torch_loader import Loader, loader

__all__ = [
    "Convert",
    "Loader",
    "Samples",
    "TensorDataset",
    "collate",
    "dataset",
    "loader",
    "map",
]
