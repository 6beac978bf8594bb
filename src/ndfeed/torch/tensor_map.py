"""``ndfeed.torch.map``: functions on tensors, in the loader's threads or processes.

Transforms draw from torch's global generator, which all threads share: what each would get would
be a matter of chance, and drawing would disturb the training that uses it too. So while a function
runs, whatever it draws through torch comes from a generator of its own, seeded by (seed, epoch,
position). This holds for its thread alone: the global generator is not touched.
"""

import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ndfeed.dataset.dataset import Dataset
from ndfeed.torch.batch_format import Values, array_of, is_text, tensor_of

# Functions that draw and take a generator. Others that draw, such as dropout, take none.
_OF_TORCH = (
    *("bernoulli", "binomial", "multinomial", "normal", "poisson", "rand", "rand_like"),
    *("randint", "randint_like", "randn", "randn_like", "randperm"),
    *("_sample_dirichlet", "_standard_gamma"),
)
_OF_TENSORS = (
    *("bernoulli", "bernoulli_", "cauchy_", "exponential_", "geometric_", "log_normal_"),
    *("multinomial", "normal_", "random_", "uniform_"),
)
_DRAWING = {getattr(torch, name) for name in _OF_TORCH if hasattr(torch, name)} | {
    getattr(Tensor, name) for name in _OF_TENSORS if hasattr(Tensor, name)
}


_forked = False  # since torch's number of threads was last set?


def _in_forked_child() -> None:
    global _forked
    _forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_forked_child)


def _use_one_thread() -> None:
    """In a forked process: torch's thread pool stayed in the parent, and would be waited for."""
    global _forked
    torch.set_num_threads(1)
    _forked = False


class _DrawnFrom(TorchFunctionMode):
    """Lets torch draw from a generator, in this thread, unless a call names another one."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self._generator = generator

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        if function in _DRAWING and kwargs.get("generator") is None and _on_cpu(args, kwargs):
            kwargs = {**kwargs, "generator": self._generator}
        return function(*args, **kwargs)


def _on_cpu(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Does a call draw on the CPU? A generator belongs to one device."""
    device = kwargs.get("device")
    if device is None and args and isinstance(args[0], Tensor):
        device = args[0].device
    return device is None or torch.device(device).type == "cpu"


@dataclass(frozen=True)
class OnTensors:
    """A function of tensors, as one of arrays."""

    function: Callable[..., Mapping[str, Any]]
    given: bool  # does it take the generator itself?

    @property
    def __name__(self) -> str:
        """The name of the function, for messages."""
        return getattr(self.function, "__name__", repr(self.function))

    def __call__(self, batch: Mapping[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        """Apply the function to ``batch``, and return arrays that share the tensors' memory."""
        if _forked:
            _use_one_thread()
        tensors = {name: _tensors(values) for name, values in batch.items()}
        generator = torch.Generator().manual_seed(int(rng.integers(1 << 63)))
        if self.given:
            made = self.function(tensors, generator=generator)
        else:
            with _DrawnFrom(generator):
                made = self.function(tensors)
        if not isinstance(made, Mapping):
            raise TypeError(
                f"{self.__name__} must return a dict of tensors, got {type(made).__name__}"
            )
        return {name: _arrays(values) for name, values in made.items()}


def _tensors(values: Values) -> Values:
    if isinstance(values, list):
        return [_tensors(one) for one in values]
    array = np.asarray(values)
    return array.tolist() if is_text(array.dtype) else tensor_of(array)


def _arrays(values: Values) -> Values:
    if isinstance(values, list | tuple):
        made = [_arrays(one) for one in values]
        return np.array(made) if made and all(isinstance(v, str | bytes) for v in made) else made
    return array_of(values) if isinstance(values, Tensor) else values


def map(
    ds: Dataset, function: Callable[..., Mapping[str, Any]], *, batched: bool = True
) -> Dataset:
    """Apply a function of tensors to every batch that is read.

    It gets a dict of tensors and returns one; the tensors share the batch's memory, and so do the
    batches made of what it returns. With ``batched=False`` it gets single samples. What it draws
    through torch, as random transforms do, is fixed by the loader's seed, the epoch and the
    position, in threads and in processes alike. If it has a parameter ``generator``, the generator
    is passed there.
    """
    if not isinstance(ds, Dataset):
        raise TypeError(
            "ndfeed.torch.map takes a dataset and then a function of a batch, got "
            f"{type(ds).__name__} for the dataset; call ndfeed.open first"
        )
    if not callable(function):
        raise TypeError(f"map takes a function, got {type(function).__name__}")
    return ds.map(OnTensors(function, _takes_generator(function)), batched=batched)


def _takes_generator(function: Callable[..., Any]) -> bool:
    try:
        return "generator" in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False
