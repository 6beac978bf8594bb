"""``ndfeed.torch.dataset``: a map-style dataset for torch's own ``DataLoader``.

``DataLoader`` asks for a whole batch at a time through ``__getitems__``, which is one read. It
returns a sequence of samples, which ``default_collate`` stacks like any other. ``collate`` knows
that they are contiguous already and takes the batch as it was read.
"""

import operator
from collections.abc import Iterator, Sequence
from typing import Any, SupportsIndex, cast, overload

import numpy as np
import torch
import torch.utils.data
from numpy.typing import ArrayLike, NDArray

from ndfeed.dataset.dataset import Dataset
from ndfeed.dataset.row_selection import Drawn
from ndfeed.loading.argument_hints import with_hints
from ndfeed.loading.options import Fields, Structure, check_dataset, make_structure
from ndfeed.torch.batch_format import Batch, BatchFormat, Tensors


class Samples(Sequence[Batch]):
    """Samples that were read together; ``batch`` is all of them.

    Each is a dict of tensors, or has the structure of ``fields=``, and shares the batch's memory.
    """

    def __init__(self, columns: Tensors, structure: Structure, count: int) -> None:
        self._columns = columns
        self._structure = structure
        self._count = count

    @property
    def batch(self) -> Batch:
        """All samples, as they were read."""
        return self._structure.build(self._columns)

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
        return self._structure.build({name: values[at] for name, values in self._columns.items()})

    def __iter__(self) -> Iterator[Batch]:
        # One call for all rows of a field: taking them one by one takes three times as long.
        columns = {n: c if isinstance(c, list) else c.unbind(0) for n, c in self._columns.items()}
        if self._structure.flat is not None:
            return iter(list(zip(*[columns[name] for name in self._structure.flat], strict=True)))
        names = list(columns)
        rows = [dict(zip(names, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        return iter(rows if self._structure.names is None else map(self._structure.build, rows))


class BareSamples(list[Any]):
    """Bare tensors that were read together, which torch stacks only if they are in a list."""

    def __init__(self, batch: Batch) -> None:
        super().__init__(batch if isinstance(batch, list) else batch.unbind(0))
        self.batch = batch


class TensorDataset(torch.utils.data.Dataset[Batch]):
    """The samples of a dataset as tensors; made by ``ndfeed.torch.dataset``.

    It holds no data and no open file: it pickles in a few kilobytes, and each process reads for
    itself.
    """

    def __init__(self, ds: Dataset, structure: Structure) -> None:
        self.ds = ds
        self._form = BatchFormat(ds, structure)
        self._random = isinstance(ds.rows, Drawn) or any(step.random for step in ds.steps)

    def __len__(self) -> int:
        return len(self.ds)

    def __getitem__(self, index: SupportsIndex | slice | ArrayLike) -> Batch:
        """Return one sample; or a batch, where a sampler passes the rows of one."""
        if isinstance(index, slice):
            return self.__getitems__(range(len(self))[index]).batch
        rows = np.asarray(index)
        if rows.ndim:
            return self.__getitems__(rows).batch
        return self.__getitems__([range(len(self))[operator.index(cast("SupportsIndex", index))]])[
            0
        ]

    def __getitems__(self, rows: Sequence[int] | NDArray[np.int64]) -> Samples | BareSamples:
        """Return the samples of a batch, in one read."""
        batch = self.ds.read(rows, rng=_rng() if self._random else None)
        form = self._form
        columns = {name: form.tensor(name, values) for name, values in batch.items()}
        if isinstance(form.structure.nest, str):
            return BareSamples(form.build(columns))
        return Samples(columns, form.structure, len(rows))


def _rng() -> np.random.Generator:
    """Make a generator for random maps, seeded by torch, whose seed differs by worker and epoch."""
    return np.random.default_rng(int(torch.randint(1 << 62, ())))


@with_hints()
def dataset(ds: Dataset, fields: Fields | None = None) -> TensorDataset:
    """Make a dataset for ``torch.utils.data.DataLoader``.

    Samples are dicts of tensors, or have the structure of ``fields``: a name, or any nest of names
    in tuples, lists and dicts, as for ``ndfeed.loader``. Any number of workers,
    any start method, samplers and ``default_collate`` work as with other datasets;
    ``collate_fn=ndfeed.torch.collate`` saves a copy. A random function given to ``map`` is seeded
    by torch, and so are random crops.
    """
    check_dataset(ds)
    structure = make_structure(ds, fields, "list")
    return TensorDataset(ds if structure.names is None else ds.select(*structure.names), structure)


def collate(samples: Sequence[Any]) -> Batch:
    """Return the batch as it was read, without stacking it; for ``DataLoader(collate_fn=...)``.

    Fields whose samples differ in shape are lists of tensors.
    """
    if isinstance(samples, Samples | BareSamples):
        return samples.batch
    return torch.utils.data.default_collate(list(samples))
