"""``ndfeed.jax.source``: the samples of a dataset as a random-access source for Grain.

Grain asks for a length and for samples by number, one at a time or, where a transformation wants
many, through ``_getitems``, which is one read. Samples are NumPy's, as Grain expects them.
"""

from collections.abc import Sequence
from typing import Any, SupportsIndex

from ndfeed.dataset.dataset import Dataset
from ndfeed.loading.argument_hints import with_hints
from ndfeed.loading.options import Fields, Structure, check_dataset, make_structure


class Source:
    """The samples of a dataset; made by ``ndfeed.jax.source``.

    It holds no data and no open file: it pickles in a few kilobytes, and each process reads for
    itself. Its ``repr`` says which samples these are, which Grain compares when a run goes on.
    """

    def __init__(self, ds: Dataset, structure: Structure) -> None:
        self.ds = ds
        self._structure = structure

    def __len__(self) -> int:
        return len(self.ds)

    def __getitem__(self, row: SupportsIndex) -> Any:  # noqa: ANN401
        """One sample: a dict of arrays, or in the structure that was asked for."""
        return self._structure.build(self.ds[row])

    def _getitems(self, rows: Sequence[int]) -> list[Any]:
        """The samples ``rows``, in one read."""
        batch = self.ds.read(rows)
        # With the dots an array even where a sample is one number.
        columns = {n: v if isinstance(v, list) else [*_each(v)] for n, v in batch.items()}
        build = self._structure.build
        return [build({n: v[at] for n, v in columns.items()}) for at in range(len(rows))]

    def __repr__(self) -> str:
        nest = self._structure.nest
        names = "" if nest is None else f", fields={nest}"
        return f"ndfeed.jax.Source({self.ds.fingerprint}, {len(self)} samples{names})"


def _each(values: Any) -> Any:  # noqa: ANN401
    return (values[at, ...] for at in range(len(values)))


@with_hints()
def source(ds: Dataset, fields: Fields | None = None) -> Source:
    """A data source for ``grain.MapDataset.source`` and ``grain.DataLoader``.

    Samples are dicts of arrays, or have the structure of ``fields``: a name, or any nest of names
    in tuples, lists and dicts, as for ``ndfeed.loader``. Any number of threads and of worker
    processes may read from it. A random function given to ``map`` draws the same
    for a sample in every epoch: random transformations are better Grain's own.
    """
    check_dataset(ds)
    structure = make_structure(ds, fields, "list")
    return Source(ds if structure.names is None else ds.select(*structure.names), structure)
