"""Samples that are other parts of the same arrays, or of the files there are now; their lengths."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Self, cast

from numpy.typing import ArrayLike

from ndfeed.dataset.crop_options import Sizes, crop_spec
from ndfeed.dataset.crops import make_crops
from ndfeed.dataset.labels import Labelled
from ndfeed.dataset.remake import once, remake
from ndfeed.dataset.row_selection import Travelling
from ndfeed.dataset.sample_lengths import find_lengths
from ndfeed.dataset.window_options import Offsets, window_shape
from ndfeed.dataset.windows import as_bounds, make_windows
from ndfeed.errors import FieldError
from ndfeed.index import refresh
from ndfeed.index.table import Ints

if TYPE_CHECKING:
    from ndfeed.dataset.dataset import Dataset


SETTLE = refresh.SETTLE
Missing = refresh.Missing


class Sampling(Labelled):
    """What makes other samples of a dataset's files, and says how long they are."""

    def windows(
        self,
        length: int | None = None,
        *,
        stride: int = 1,
        offsets: Offsets | None = None,
        by: str | None = None,
        bounds: ArrayLike | None = None,
    ) -> "Dataset":
        """Return windows of ``length`` consecutive rows as samples, ``stride`` rows apart.

        No window crosses the end of a file, or a row where the field ``by`` changes, or one of the
        row numbers in ``bounds``, at which sequences start. ``offsets={"now": 0, "then": 6}`` makes
        a field of each, for rows at these distances or windows that start there; a sequence of
        offsets, such as ``range(-3, 1)``, makes one array of those rows, and a dict of them has one
        for each stored field: ``{"state": range(-3, 1), "action": range(8)}``; other fields come as
        they are at offset 0. Windows are read in place and take no memory, however many there are.
        """
        marks = None if bounds is None else Travelling(as_bounds(bounds, len(self)))
        return make_windows(cast("Dataset", self), window_shape(length, stride, offsets), by, marks)

    def crops(
        self,
        sizes: Sizes,
        *,
        each: int = 1,
        at: ArrayLike | None = None,
        grid: int | Sequence[int] | None = None,
        pad: float | Mapping[str, float] | None = None,
        place: bool | None = None,
    ) -> "Dataset":
        """Return boxes out of samples: ``{"image": (96, 96), "mask": (96, 96)}``, at one place.

        By default ``each`` random ones of every sample, drawn anew in every epoch of a loader and
        fixed by its seed. ``at=`` has a row for each crop, the sample's number and the corner;
        ``grid=16`` covers every sample with crops that overlap by 16. Both deliver the fields
        ``case`` and ``corner``, as ``place=True`` does for random ones. None in a size keeps an
        axis whole, as do axes that it does not mention. ``pad=0`` fills up smaller samples. Of
        arrays that are not compressed, only the bytes of the boxes are read.
        """
        return make_crops(cast("Dataset", self), crop_spec(sizes, each, at, grid, pad, place))

    def refresh(self, *, missing: Missing = "raise", settle: float = SETTLE) -> Self:
        """Return the dataset of the files that its sources name now, with the same views on it.

        New files come in where their names sort. Only they are read; the rest must be as it was: a
        file that changed is a ``ChangedError``, one that is gone a ``MissingError`` or, with
        ``missing="skip"``, left out. New files that cannot be read and were modified less than
        ``settle`` seconds ago may still be written: they come in next time. ``skipped`` lists what
        was left out. Views that choose samples, such as ``take`` and ``split``, cannot follow.
        """
        terms = refresh.as_terms(missing, settle)
        return remake(self, once(lambda opened: refresh.refresh(opened, terms)))

    def lengths(self, field: str) -> Ints:
        """Return the length of the first axis of every sample of a field, without reading any.

        It comes from the headers of files, or from offsets; for sorting or choosing samples by
        length, for example ``ds.take(ds.lengths("text") <= 512)``.
        """
        if self.steps:
            raise ValueError(
                f"lengths({field!r}) are those of stored samples, which a map() may change: call "
                "lengths() on the dataset before map()"
            )
        for group in self.groups:
            for column in group.columns:
                if column.field.name == field:
                    return find_lengths(group, column, self.rows, len(self))
        raise FieldError(field, self.names, self.first_file)
