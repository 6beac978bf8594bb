"""What an order may ask about a dataset: a number for each sample, such as its class or length.

What was read once is kept for as long as the loader exists, since an order is bound again when the
number of ranks changes.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ndfeed.dataset.choosing import find_codes, read_field
from ndfeed.dataset.dataset import Dataset
from ndfeed.dataset.sample_lengths import find_lengths
from ndfeed.errors import FieldError
from ndfeed.files.platform_calls import share_of_cores
from ndfeed.files.shared_table import SharedTable, share_table
from ndfeed.files.threads import map_in_threads
from ndfeed.order.epoch import Share
from ndfeed.order.permutation import Ints
from ndfeed.order.protocol import Fill


class Facts:
    """Facts about the samples of a dataset, all of its fields included."""

    def __init__(self, ds: Dataset, known: dict[tuple[str, str], Any] | None = None) -> None:
        self.ds = ds
        self._known = {} if known is None else known

    def __reduce__(self) -> tuple[type["Facts"], tuple[Dataset]]:
        return Facts, (self.ds,)  # another process reads what it needs

    def for_dataset(self, ds: Dataset) -> "Facts":
        """Return the same facts about a dataset of the same samples."""
        return Facts(ds, self._known)

    def for_share(self, share: Share) -> "ShareFacts":
        """Return the facts as an order asks for them."""
        return ShareFacts(self, share.n, share.batch_size, share.tokens, share.world)

    def values(self, field: str) -> NDArray[Any]:
        """Return the value of a field in every sample."""
        found: NDArray[Any] | None = self._known.get(("values", field))
        if found is None:
            self._check(field)
            parts = list(read_field(self.ds, field, "the order"))
            found = np.concatenate(parts) if parts else np.zeros(0)
            self._known["values", field] = found
        return found

    def classes(self, field: str) -> tuple[NDArray[Any], Sequence[str]]:
        """Return the class of every sample as a number from 0 on, and the names of all classes.

        A class without a sample is among them if the field's classes are known.
        """
        found: tuple[NDArray[Any], Sequence[str]] | None = self._known.get(("classes", field))
        if found is None:
            self._check(field)
            codes, values = find_codes(self.ds, "the order", field)
            if values.dtype.kind in "fMm" and (values != values)[-1:].any():  # NaN comes last
                at = int(np.argmax(codes == len(values) - 1))
                raise ValueError(
                    f"field {field!r} must have a class for each sample, got {values[-1]} for "
                    f"sample {at}; give it one with map(), or take() the others"
                )
            names = self.ds.classes.get(field)
            if names is None:
                found = codes, [str(value) for value in values.tolist()]
            else:  # values are numbers of names, of which some may not occur
                found = values.astype(np.int64)[codes], names
            self._known["classes", field] = found
        return found

    def lengths(self, field: str) -> Ints:
        """Return the length of a field in every sample, as it is stored: maps may change it.

        A field of single integers holds the lengths itself.
        """
        found: Ints | None = self._known.get(("lengths", field))
        if found is None:
            found = self._known["lengths", field] = self._find_lengths(field)
        return found

    def _find_lengths(self, field: str) -> Ints:
        ds = self.ds
        for group in ds.groups:
            for column in group.columns:
                if column.field.name != field:
                    continue
                if column.field.shape != ():
                    return find_lengths(group, column, ds.rows, len(ds))
                if column.field.dtype.kind not in "iu":
                    raise ValueError(
                        f"samples of {field!r} are single values, which have no length; name a "
                        "field of arrays, or one of integers that are the lengths of samples"
                    )
                values = self.values(field).astype(np.int64)
                if len(values) and int(values.min()) < 0:
                    raise ValueError(
                        f"field {field!r} has lengths of samples, which are not negative, found "
                        f"{int(values.min())}"
                    )
                return values
        raise FieldError(field, ds.names, ds.first_file)

    def share(self, name: str, size: int, fill: Fill) -> NDArray[np.uint8]:
        """Return bytes that all processes of this machine share."""
        found: SharedTable | None = self._known.get(("table", name))
        if found is None:
            found = self._known["table", name] = share_table(name, size, fill)
        return found.data

    def _check(self, field: str) -> None:
        """Refuse a field that is not there, before anything is read."""
        if len(self.ds) and field not in self.ds.fields:
            raise FieldError(field, list(self.ds.fields), self.ds.first_file)


@dataclass(frozen=True, slots=True)
class ShareFacts:
    """The same, with what is known of the batches. Implements ``ndfeed.order.orders.Data``."""

    facts: Facts
    n: int
    batch_size: int
    tokens: int
    world: int

    def values(self, field: str) -> NDArray[Any]:
        """Return the value of a field in every sample."""
        return self.facts.values(field)

    def classes(self, field: str) -> tuple[NDArray[Any], Sequence[str]]:
        """Return the class of every sample as a number from 0 on, and the names of all classes."""
        return self.facts.classes(field)

    def lengths(self, field: str) -> Ints:
        """Return the length of a field in every sample."""
        return self.facts.lengths(field)

    def each(self, function: Callable[[Any], Any], items: Sequence[Any]) -> Iterable[Any]:
        """Do what ``map`` does, in as many threads as there are cores for this process."""
        return map_in_threads(function, items, share_of_cores())

    def share(self, name: str, size: int, fill: Fill) -> NDArray[np.uint8]:
        """Return bytes that all processes of this machine share."""
        return self.facts.share(name, size, fill)
