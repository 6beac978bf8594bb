"""Datasets of some of the samples of another one: ``take``, ``where``, ``split``, ``folds``."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ndfeed.dataset.arguments import as_count, as_fractions, as_names, check_unmasked
from ndfeed.dataset.column import Field, columns_of
from ndfeed.dataset.map_steps import Batch
from ndfeed.dataset.proportions import Proportions
from ndfeed.dataset.remake import fixed
from ndfeed.dataset.row_selection import Drawn, Travelling, compose, take_rows
from ndfeed.dataset.splits import Codes, encode, split_classes, split_groups, split_plain
from ndfeed.dataset.stored import Stored
from ndfeed.errors import ResourceError, SchemaError, shown_size
from ndfeed.files import platform_calls
from ndfeed.index.table import Ints
from ndfeed.progress import Bar

_MOST_SEED = (1 << 128) - 1
_MOST_FOLDS = 1 << 16
_BYTES_EACH = 9  # a number, and that of a part
_READ_AT_ONCE = 32 << 20  # bytes
# Samples: few at first, so that progress is soon seen where each is a file.
_FIRST_AT_ONCE, _MOST_AT_ONCE = 1 << 10, 1 << 17

Condition = Callable[[Batch], ArrayLike]
C = TypeVar("C", bound="Choosing")


class Choosing(Stored):
    """What chooses samples of a dataset."""

    numbered = False
    mixture: Proportions | None = None

    def view(self, made: Callable[..., Self], *args: object, **changes: Any) -> Self:
        """Return this dataset with something changed; it pickles as ``made(self, *args)``."""
        raise NotImplementedError

    def select(self, *names: str) -> Self:
        """Return the same samples with these fields only, in this order."""
        raise NotImplementedError

    def read(self, rows: ArrayLike, *, rng: np.random.Generator | None = None) -> Batch:
        """Read the samples ``rows``, in that order, into new arrays."""
        raise NotImplementedError

    @property
    def fields(self) -> Mapping[str, Field]:
        """The fields by name."""
        raise NotImplementedError

    def take(self, rows: ArrayLike | slice) -> Self:
        """Return the samples ``rows`` as a dataset: a slice, row numbers, or a mask."""
        check_unnumbered(self, "take()")
        check_unmixed(self, "take()")
        taken: range | Ints
        if isinstance(rows, Travelling):
            taken = rows.rows
        elif isinstance(rows, slice):
            taken = range(len(self))[rows]
        else:
            check_unmasked("rows", rows)
            taken = take_rows(rows, len(self))
        return _chosen(self, taken)

    def where(
        self, condition: str | Condition, *, fields: str | Sequence[str] | None = None
    ) -> Self:
        """Return the samples that meet a condition as a dataset, in the same order.

        ``condition`` is the name of a field, which must be true or non-zero, or a function that
        gets batches, as ``map`` does, and returns a mask: one boolean for each sample. It is
        evaluated once, now, for all samples. Only the fields that it needs are read: ``fields``
        names those of a function, which gets all of them otherwise.
        """
        check_unnumbered(self, "where()")
        check_unmixed(self, "where()")
        found = np.zeros(len(self), bool)
        at = 0
        for mask in _masks(self, condition, as_names(fields)):
            found[at : at + len(mask)] = mask
            at += len(mask)
        return _chosen(self, _as_range(np.flatnonzero(found)))

    def split(
        self,
        *fractions: float | Sequence[float],
        seed: int = 0,
        by: str | ArrayLike | None = None,
        like: str | ArrayLike | None = None,
    ) -> tuple[Self, ...]:
        """Split into datasets of randomly chosen samples that together have every sample once.

        ``split(0.9)`` returns two: that fraction of the samples, and the others. ``split(0.8, 0.1,
        0.1)`` returns three. Fixed by the seed; within each the samples keep their order.

        ``by`` keeps samples together that have the same value: the name of a field, or one value
        for each sample. The parts are as close to the fractions as whole groups allow. ``like``
        divides the samples of every value in these fractions, so that each part has the same share
        of every class. With both, groups stay whole and the shares are approximate. The values are
        read once, now.
        """
        check_unnumbered(self, "split()")
        check_unmixed(self, "split()")
        parts = as_fractions(fractions)
        seed = as_count("seed", seed, 0, _MOST_SEED)
        part = _assign(self, parts, seed, by, like)
        recipe = (parts, seed) if by is None and like is None else None
        return tuple(_cut(self, part, which, False, recipe) for which in range(len(parts)))

    def folds(
        self,
        k: int,
        *,
        seed: int = 0,
        by: str | ArrayLike | None = None,
        like: str | ArrayLike | None = None,
    ) -> list[tuple[Self, Self]]:
        """Return ``k`` pairs of datasets for cross-validation: training and validation.

        Every sample is in the validation part of one pair and in the training part of the others.
        ``seed``, ``by`` and ``like`` are those of ``split``.
        """
        check_unnumbered(self, "folds()")
        check_unmixed(self, "folds()")
        k = as_count("k", k, 2, _MOST_FOLDS)
        seed = as_count("seed", seed, 0, _MOST_SEED)
        if k > len(self):
            raise ValueError(f"{k} folds need at least {k} samples, got {len(self)}")
        parts = (1 / k,) * k
        part = _assign(self, parts, seed, by, like)
        recipe = (parts, seed) if by is None and like is None else None
        return [
            (_cut(self, part, which, True, recipe), _cut(self, part, which, False, recipe))
            for which in range(k)
        ]


fixed("take(), where(), folds() or split(), which choose samples")(Choosing.take)


def _chosen(ds: C, rows: range | Ints) -> C:
    """Return these samples as a dataset that pickles as their numbers."""
    return ds.view(Choosing.take, Travelling(rows), rows=compose(ds.rows, rows))


def _cut(
    ds: C, part: Codes, which: int, others: bool, recipe: tuple[tuple[float, ...], int] | None
) -> C:
    """Return one part of a dataset, or the others; it pickles as ``recipe``, or else as rows."""
    rows = np.flatnonzero((part != which) if others else (part == which))
    if recipe is None:
        return _chosen(ds, rows)
    return ds.view(_part, *recipe, which, others, rows=compose(ds.rows, rows))


@fixed("split() or folds()")
def _part(ds: C, fractions: tuple[float, ...], seed: int, which: int, others: bool = False) -> C:
    """Return one part of a plain split, or the others."""
    return _cut(ds, split_plain(len(ds), fractions, seed), which, others, (fractions, seed))


def _assign(
    ds: Choosing,
    fractions: tuple[float, ...],
    seed: int,
    by: str | ArrayLike | None,
    like: str | ArrayLike | None,
) -> Codes:
    """Return the part of each sample."""
    _check_room(ds)
    if by is None and like is None:
        return split_plain(len(ds), fractions, seed)
    classes = None if like is None else find_codes(ds, "like", like)[0]
    if by is None:
        assert classes is not None
        return split_classes(classes, fractions, seed)
    groups, values = find_codes(ds, "by", by)
    found = len(values)
    parts = sum(fraction > 0 for fraction in fractions)
    if found < parts:
        what = f"by={by!r}" if isinstance(by, str) else "by"
        raise ValueError(
            f"{what} has {found} distinct {'value' if found == 1 else 'values'}, too few groups "
            f"for {parts} parts; use fewer parts, or remove by="
        )
    return split_groups(groups, fractions, seed, classes)


def _check_room(ds: Choosing) -> None:
    """Refuse to divide more samples than there is memory for their numbers."""
    size = _BYTES_EACH * len(ds)
    free = platform_calls.free_memory() if size >= platform_calls.LARGE else None
    if free is not None and size > free:
        raise ResourceError(
            ds.groups[0].table.path(0),
            f"dividing {len(ds):,} samples takes {shown_size(size)} of memory, {shown_size(free)} "
            "are free",
            remedy="divide the rows with take() before windows() or crops()",
        )


def find_codes(ds: Choosing, argument: str, given: str | ArrayLike) -> tuple[Codes, NDArray[Any]]:
    """Return the code of each sample's value, and the values that differ, in sorted order."""
    if isinstance(given, str):
        return encode(argument, read_field(ds, given, argument), len(ds))
    check_unmasked(argument, given)
    try:
        values = np.asarray(given)
    except ValueError:  # lists of different lengths
        values = np.asarray(None)
    if values.shape != (len(ds),):
        raise ValueError(
            f"{argument} must be the name of a field or have one value for each of {len(ds)} "
            f"samples, got {type(given).__name__} of shape {values.shape}"
        )
    return encode(argument, [values], len(ds))


def _masks(
    ds: Choosing, condition: object, fields: tuple[str, ...] | None
) -> Iterator[NDArray[np.bool_]]:
    """Yield for each sample whether it meets the condition, many at a time."""
    if isinstance(condition, str):
        if fields is not None:
            raise TypeError(f"where({condition!r}) reads that field alone; remove fields=")
        for values in read_field(ds, condition, "where"):
            if values.dtype.kind not in "biufc":
                raise SchemaError(
                    ds.first_file,
                    f"field {condition!r} is {values.dtype}, neither true nor false",
                    remedy=f"compare it: where(lambda batch: batch[{condition!r}] == …, "
                    f"fields={condition!r})",
                )
            yield values.astype(bool)
        return
    if not callable(condition):
        raise TypeError(
            f"where takes the name of a field or a function, got {type(condition).__name__}; "
            "take() accepts masks and row numbers"
        )
    _check_uncut(ds, "where()", tuple(ds.fields) if fields is None else fields)
    for batch, count in _read_all(ds if fields is None else ds.select(*fields), "checking"):
        yield _as_mask(condition(batch), count, getattr(condition, "__name__", repr(condition)))


def _as_mask(made: object, count: int, name: str) -> NDArray[np.bool_]:
    """Check what a condition returned."""
    check_unmasked(f"what {name} returns", made)
    try:
        mask = np.asarray(made)
    except (TypeError, ValueError):  # of lists of different lengths, among others
        mask = np.asarray(None)
    if mask.dtype == bool and mask.shape == (count,):
        return mask
    what = type(made).__name__ if mask.dtype == object else f"{mask.dtype} of shape {mask.shape}"
    raise TypeError(
        f"{name} must return one boolean for each of {count} samples, got {what}; return a "
        'comparison such as batch["label"] == 3'
    )


def read_field(ds: Choosing, name: str, argument: str) -> Iterator[NDArray[Any]]:
    """Yield the values of a field that has one for each sample, many at a time."""
    _check_uncut(ds, argument, (name,))
    own = ds.select(name)
    field = own.fields.get(name) if len(own) else None
    if field is not None and (field.ragged or math.prod(field.lengths) != 1):
        raise SchemaError(
            ds.first_file,
            f"{argument} needs one value for each sample, and field {name!r} has "
            f"{'samples of different shapes' if field.ragged else f'shape {field.shape_text}'}",
            remedy="pass a function that returns a mask"
            if argument == "where"
            else "compute one with map(), or pass an array of values",
        )
    for batch, count in _read_all(own, f"reading {name}"):
        yield np.asarray(batch[name]).reshape(count)


def _read_all(ds: Choosing, label: str) -> Iterator[tuple[Batch, int]]:
    """Read all samples in order, in batches that are few but within memory."""
    most = max(1, min(_MOST_AT_ONCE, _READ_AT_ONCE * len(ds) // max(ds.nbytes, 1)))
    start, size = 0, min(most, _FIRST_AT_ONCE)
    with Bar(label, len(ds)) as bar:
        while start < len(ds):
            rows = np.arange(start, min(start + size, len(ds)))
            yield ds.read(rows), len(rows)
            bar.advance(len(rows))
            start, size = start + len(rows), min(2 * size, most)


def _as_range(rows: Ints) -> range | Ints:
    """Return consecutive rows as a range, which takes no memory."""
    if len(rows) and int(rows[-1]) - int(rows[0]) + 1 == len(rows):
        return range(int(rows[0]), int(rows[-1]) + 1)
    return rows


def check_fixed(ds: Choosing, what: str) -> None:
    """Refuse values for each sample where samples are drawn anew in every epoch."""
    if isinstance(ds.rows, Drawn):
        raise ValueError(
            f"{what} of random crops, which differ in every epoch; call it before "
            "crops(), which keeps the fields of the samples it cuts"
        )


def _check_uncut(ds: Choosing, what: str, names: Sequence[str]) -> None:
    """Refuse to judge samples by crops that other ones replace in every epoch."""
    if isinstance(ds.rows, Drawn):
        cut = [c.field.name for c in columns_of(ds.groups) if c.cut and c.field.name in names]
        if cut:
            raise ValueError(
                f"{what} needs field {cut[0]!r}, a random crop that differs in every epoch; name "
                "fields that are not cut, or choose places with grid= or at="
            )


def check_unnumbered(ds: Choosing, what: str) -> None:
    """Refuse a view that would make the fields of ``with_origin`` wrong."""
    if ds.numbered:
        raise ValueError(
            f"{what} is not possible after with_origin(), which numbers the files of the dataset "
            "it is called on; take, split and add first, then call with_origin()"
        )


def check_unmixed(ds: Choosing, what: str) -> None:
    """Refuse a view that would change which rows belong to which source of a mixture."""
    if ds.mixture is not None:
        raise ValueError(
            f"{what} is not possible for a mixture, whose sources lie one after the other; do it "
            "on the sources, then call mix()"
        )


def check_addable(ds: Choosing) -> None:
    """Refuse to add a mixture, or a dataset with fields that number its files."""
    check_unnumbered(ds, "+")
    check_unmixed(ds, "+")
