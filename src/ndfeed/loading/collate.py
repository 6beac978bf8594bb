"""Collates the ragged fields of a batch, as it was read or as maps made it."""

from collections.abc import Mapping

import numpy as np

from ndfeed.dataset.column import Field
from ndfeed.dataset.dataset import Dataset
from ndfeed.dataset.map_fields import with_lists
from ndfeed.dataset.map_steps import Batch, as_samples
from ndfeed.loading.buffer_pool import Pool
from ndfeed.loading.options import Options, stored_fields
from ndfeed.loading.ragged import PLAIN, Room, collate_ragged, field_of_samples, owner


class Collator:
    """Gives ragged fields the form that ``ragged=`` asks for. Thread-safe."""

    def __init__(self, ds: Dataset, options: Options, pool: Pool) -> None:
        self._ragged, self._pads, self._pool = options.ragged, options.pads, pool
        self._stored = {field.name: field for field in stored_fields(ds)}
        # Fields that count as ragged even in a batch whose samples all have one shape: those whose
        # lengths or offsets are requested, and those that are padded to a fixed length.
        names = options.structure.names or ()
        self._always = {owner(name, [name.rpartition("_")[0]], self._ragged) for name in names}
        self._always |= set(self._pads)

    def collate_stored(self, batch: Batch) -> Batch:
        """Collate a batch as it was read."""
        made: Batch = {}
        for name, values in batch.items():
            if isinstance(values, Room):
                made |= values.batch  # read straight into its form
            elif self._stored[name].ragged:
                pad = self._pads.get(name, PLAIN)
                made |= collate_ragged(self._stored[name], values, self._ragged, self._pool, pad)
            else:
                made[name] = values
        return made

    def collate_mapped(self, batch: Batch, known: Mapping[str, Field]) -> Batch:
        """Collate a batch that maps made; ``known`` are the fields of all batches, if learned.

        Which fields are ragged does not depend on the batch.
        """
        if self._ragged == "list":
            return with_lists(batch, known)
        made: Batch = {}
        for name, values in batch.items():
            field = known.get(name)
            ragged = field is not None and field.ragged
            listed = isinstance(values, list | tuple)
            if len(values) and (listed or ragged or name in self._always):
                samples = as_samples(values)
                field = field_of_samples(name, samples, field if ragged else None)
                pad = self._pads.get(name, PLAIN)
                made |= collate_ragged(field, samples, self._ragged, self._pool, pad)
            else:
                made[name] = values
        return made

    def make_empty(self, fields: Mapping[str, Field]) -> Batch:
        """Return a batch of no samples, with the fields it would have."""
        made: Batch = {}
        for name, field in fields.items():
            shape = field.lengths
            if self._ragged != "list" and (field.ragged or name in self._always):
                uneven = Field(name, field.dtype, (None,) * len(shape), field.type)
                known = field if field.ragged else uneven
                pad = self._pads.get(name, PLAIN)
                made |= Room(known, [], self._ragged, self._pool, pad).batch
            else:
                made[name] = [] if field.ragged else np.empty((0, *shape), field.dtype)
        return made
