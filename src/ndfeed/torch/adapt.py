"""What a loader of arrays is told, so that its batches become tensors where they are wanted."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from ndfeed.dataset.dataset import Dataset
from ndfeed.loader.adapter import Adapter
from ndfeed.torch.cuda.feed import Feed, check_fits
from ndfeed.torch.form import Batch, Form


class OnHost(Adapter):
    """Tensors on the CPU, in the memory of the arrays; made in the thread that read them."""

    def __init__(self, form: Form) -> None:
        super().__init__(form.structure)
        self._form = form
        self.growth = form.growth

    def finish(self, made: dict[str, Any]) -> Batch:
        """The batch of tensors."""
        form = self._form
        needed = form.picked(made)
        return form.arranged({n: form.converted(n, form.tensor(n, a)) for n, a in needed.items()})


def device_of(device: torch.device | str | int | None, resident: bool) -> torch.device:
    """The device that was asked for, if there is one and batches can be fed to it."""
    try:
        found = torch.device("cpu" if device is None else device)
    except RuntimeError as error:
        raise ValueError(f"device must be such as 'cpu' or 'cuda:0', got {device!r}") from error
    if found.type not in ("cpu", "cuda"):
        raise ValueError(
            f"device must be 'cpu' or a CUDA device, got {device!r}; "
            "device=None gives CPU tensors, which .to() moves"
        )
    if found.type == "cpu" and resident:
        raise ValueError(
            "resident=True holds the data in a GPU's memory and needs device='cuda'; "
            "ds.in_memory() holds it in RAM"
        )
    if found.type == "cuda" and not torch.cuda.is_available():
        raise RuntimeError("torch.cuda is not available: device=None gives CPU tensors")
    if found.type == "cuda" and found.index is None:
        return torch.device("cuda", torch.cuda.current_device())  # "cuda" is whichever is current
    return found


def adapter_for(
    ds: Dataset, form: Form, device: torch.device, *, resident: bool
) -> Callable[[], Adapter]:
    """What makes an adapter, in the process that it is to be used in."""
    if device.type == "cpu":
        return partial(OnHost, form)
    if form.text:
        raise ValueError(
            f"field {form.text[0]!r} is text, which no GPU holds; leave it out with fields=, or "
            "use device=None and move the tensors with .to()"
        )
    if resident:
        if ds.steps or form.ragged:
            raise ValueError(
                "resident=True holds samples as they are stored, all of one shape; leave out "
                "map() and ragged fields, or resident"
            )
        check_fits(ds, device)
    return partial(Feed, ds, device, form, resident=resident)
