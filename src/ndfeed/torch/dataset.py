"""``ndfeed.torch.dataset``: a map-style dataset for torch's own ``DataLoader``.

``DataLoader`` asks for a whole batch at a time through ``__getitems__``, which is one read. What
comes back is a sequence of samples, which ``default_collate`` stacks as it does any other;
``collate`` knows that they lie side by side already and takes the batch as it was read.
"""

import operator
from collections.abc import Iterator, Sequence
from typing import Any, SupportsIndex, overload

import numpy as np
import torch
import torch.utils.data
from numpy.typing import ArrayLike, NDArray

from ndfeed.dataset.dataset import Dataset
from ndfeed.errors import FieldError
from ndfeed.loader.options import known_fields
from ndfeed.torch.form import Batch, Form


class Samples(Sequence[Batch]):
    """Samples that were read together; ``batch`` has them side by side.

    Each is a dict of tensors, or a tuple where fields were named, that sees the batch's memory.
    """

    def __init__(self, batch: Batch, count: int) -> None:
        self.batch = batch
        self._count = count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Batch: ...

    @overload
    def __getitem__(self, index: slice) -> list[Batch]: ...

    def __getitem__(self, index: int | slice) -> Batch | list[Batch]:
        if isinstance(index, slice):
            return [self[at] for at in range(self._count)[index]]
        at = range(self._count)[index]
        if isinstance(self.batch, tuple):
            return tuple([values[at] for values in self.batch])
        return {name: values[at] for name, values in self.batch.items()}

    def __iter__(self) -> Iterator[Batch]:
        tupled = isinstance(self.batch, tuple)
        columns = self.batch if isinstance(self.batch, tuple) else tuple(self.batch.values())
        # One call for all rows of a field: taking them one by one costs three times as much.
        rows = [c if isinstance(c, list) else c.unbind(0) for c in columns]
        if tupled:
            return iter(list(zip(*rows, strict=True)))
        names = list(self.batch)
        return iter([dict(zip(names, row, strict=True)) for row in zip(*rows, strict=True)])


class TensorDataset(torch.utils.data.Dataset[Batch]):
    """The samples of a dataset as tensors; made by ``ndfeed.torch.dataset``.

    It holds no data and no open file: it pickles in a few kilobytes, and each process reads for
    itself.
    """

    def __init__(self, ds: Dataset, names: tuple[str, ...] | None) -> None:
        self.ds = ds
        self._form = Form(ds, names)
        self._random = any(step.random for step in ds.steps)

    def __len__(self) -> int:
        return len(self.ds)

    def __getitem__(self, index: SupportsIndex | slice | ArrayLike) -> Batch:
        """One sample; or a batch, where a sampler gives the rows of one."""
        if isinstance(index, slice):
            return self.__getitems__(range(len(self))[index]).batch
        rows = np.asarray(index)
        if rows.ndim:
            return self.__getitems__(rows).batch
        return self.__getitems__([range(len(self))[operator.index(index)]])[0]  # type: ignore[arg-type]

    def __getitems__(self, rows: Sequence[int] | NDArray[np.int64]) -> Samples:
        """The samples of a batch, in one read."""
        batch = self.ds.read(rows, rng=_rng() if self._random else None)
        form = self._form
        return Samples(form.arranged({n: form.tensor(n, a) for n, a in batch.items()}), len(rows))


def _rng() -> np.random.Generator:
    """For random maps: torch's own seed fixes it, which is another in every worker and epoch."""
    return np.random.default_rng(int(torch.randint(1 << 62, ())))


def dataset(ds: Dataset, fields: Sequence[str] | None = None) -> TensorDataset:
    """A dataset for ``torch.utils.data.DataLoader``.

    Samples are dicts of tensors, or tuples of those that ``fields`` names. Any number of workers,
    any way of starting them, samplers and ``default_collate`` work as with other datasets;
    ``collate_fn=ndfeed.torch.collate`` saves a copy. A random function given to ``map`` draws by
    torch's seed.
    """
    if not isinstance(ds, Dataset):
        raise TypeError(f"a Dataset is needed, got {type(ds).__name__}; ndfeed.open makes one")
    if fields is None:
        return TensorDataset(ds, None)
    names = () if isinstance(fields, str) else tuple(fields)
    if not names:
        raise TypeError(f'fields must be a tuple of names such as ("image",), got {fields!r}')
    known = known_fields(ds)
    for name in names:
        if known is not None and name not in known:
            raise FieldError(name, list(known), ds.first_file)
    return TensorDataset(ds.select(*names), names)


def collate(samples: Sequence[Any]) -> Any:  # noqa: ANN401
    """For ``DataLoader(collate_fn=...)``: the batch as it was read, without stacking it again.

    Fields whose samples differ in shape come as lists of tensors.
    """
    if isinstance(samples, Samples):
        return samples.batch
    return torch.utils.data.default_collate(list(samples))
