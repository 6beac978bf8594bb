"""What a caller of ``ndfeed.pack`` wants, checked before anything is begun."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from ndfeed.dataset.arguments import as_bytes, as_count
from ndfeed.dataset.dataset import Dataset
from ndfeed.errors import MissingError
from ndfeed.pack.plan import Wanted
from ndfeed.pack.rows import Rows, mark_caller


@dataclass(frozen=True)
class Request:
    """What a caller wants, checked."""

    source: Rows
    target: bytes
    dtypes: Mapping[str, object]
    shuffle: int | None
    rows_per_part: int | None
    append: bool
    memory: int

    @classmethod
    def of(  # noqa: PLR0913 - as the caller wrote it
        cls,
        ds: Dataset,
        target: str | os.PathLike[str],
        dtype: Mapping[str, object] | None,
        shuffle: int | None,
        names: bool,
        rows_per_part: int | None,
        append: bool,
        memory: int | str | None,
    ) -> "Request":
        """What a caller wrote, checked."""
        if dtype is not None and not isinstance(dtype, Mapping):
            raise TypeError(f'dtype must be a dict such as {{"image": "float16"}}, got {dtype!r}')
        if shuffle is not None:
            shuffle = as_count("shuffle", shuffle, 0, (1 << 63) - 1)
        if rows_per_part is not None:
            rows_per_part = as_count("rows_per_part", rows_per_part, 1, (1 << 63) - 1)
        place = os.path.abspath(os.fsencode(os.fspath(target)))
        parent = os.path.dirname(place)
        if not os.path.isdir(parent):
            raise MissingError(parent, "no such folder; make it first")
        mark_caller()
        return cls(
            Rows(ds, names=names),
            place,
            dtype or {},
            shuffle,
            rows_per_part,
            append,
            as_bytes(memory),
        )

    def wanted(self, workers: int, row_bytes: int, first: int = 0, base: str = "") -> Wanted:
        """The same for whoever plans."""
        return Wanted(
            shuffle=self.shuffle,
            rows_per_part=self.rows_per_part,
            names=self.source.names,
            first=first,
            base=base,
            memory=max(self.memory // workers, 1),
            row_bytes=row_bytes,
        )
