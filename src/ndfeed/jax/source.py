"""``ndfeed.jax.source``: the samples of a dataset as a random-access source for Grain.

Grain asks for a length and for samples by number, one at a time or, where a transformation wants
many, through ``_getitems``, which is one read. Samples are NumPy's, as Grain expects them.
"""

from collections.abc import Sequence
from typing import Any, SupportsIndex

from ndfeed.dataset.dataset import Dataset
from ndfeed.loader.options import as_fields


class Source:
    """The samples of a dataset; made by ``ndfeed.jax.source``.

    It holds no data and no open file: it pickles in a few kilobytes, and each process reads for
    itself. Its ``repr`` says which samples these are, which Grain compares when a run goes on.
    """

    def __init__(self, ds: Dataset, names: tuple[str, ...] | None) -> None:
        self.ds = ds
        self._names = names

    def __len__(self) -> int:
        return len(self.ds)

    def __getitem__(self, row: SupportsIndex) -> Any:  # noqa: ANN401
        """One sample: a dict of arrays, or a tuple of those that were named."""
        return self._arranged(self.ds[row])

    def _getitems(self, rows: Sequence[int]) -> list[Any]:
        """The samples ``rows``, in one read."""
        batch = self.ds.read(rows)
        # With the dots an array even where a sample is one number.
        columns = {n: v if isinstance(v, list) else [*_each(v)] for n, v in batch.items()}
        return [self._arranged({n: v[at] for n, v in columns.items()}) for at in range(len(rows))]

    def _arranged(self, sample: dict[str, Any]) -> Any:  # noqa: ANN401
        return sample if self._names is None else tuple([sample[name] for name in self._names])

    def __repr__(self) -> str:
        names = "" if self._names is None else f", fields={self._names}"
        return f"ndfeed.jax.Source({self.ds.fingerprint}, {len(self)} samples{names})"


def _each(values: Any) -> Any:  # noqa: ANN401
    return (values[at, ...] for at in range(len(values)))


def source(ds: Dataset, fields: Sequence[str] | None = None) -> Source:
    """A data source for ``grain.MapDataset.source`` and ``grain.DataLoader``.

    Samples are dicts of arrays, or tuples of those that ``fields`` names. Any number of threads
    and of worker processes may read from it. A random function given to ``map`` draws the same
    for a sample in every epoch: random transformations are better Grain's own.
    """
    if not isinstance(ds, Dataset):
        raise TypeError(f"a Dataset is needed, got {type(ds).__name__}; ndfeed.open makes one")
    names = as_fields(ds, fields, "list")
    return Source(ds if names is None else ds.select(*names), names)
