"""Sources of a dict that are no files: arrays in memory, and other datasets with all they do.

The fields of a source lie below its name, or have it if there is only one. A view keeps its rows:
each of its groups has a selection of its own. What its maps see are its own fields, by the names
that they have in it.
"""

from dataclasses import dataclass, replace

from ndfeed.dataset.arrays import as_array, hold_array
from ndfeed.dataset.choosing import check_unmixed, check_unnumbered
from ndfeed.dataset.column import Group
from ndfeed.dataset.dataset import Dataset
from ndfeed.dataset.in_memory import Held
from ndfeed.dataset.join import rename_fields
from ndfeed.dataset.labels import rename_classes
from ndfeed.dataset.map_steps import Batch, Draws, Step, try_steps
from ndfeed.dataset.remake import fixed, repeatable
from ndfeed.dataset.row_selection import Drawn, Rows, compose

ALONE = "data"  # the only field of an array, as of a .npy file
_WHY = "rows of an array in memory"


def open_array(source: object, name: str) -> Dataset:
    """Return the rows of an array in memory as samples of one field."""
    array = as_array(source, repr(name))
    if not array.values.ndim:
        problem = "the rows of an array are its samples, got a single number"
        raise ValueError(f"{name!r}: {problem}; np.full(count, number) is one for each sample")
    return _from_memory(hold_array(array, name))


@fixed("an array in memory")
def _from_memory(held: Held) -> Dataset:
    return Dataset(held.groups(), (_from_memory, (held,)), why=_WHY)


@dataclass(frozen=True, slots=True)
class SourceSteps:
    """The steps of one of several sources: they see its fields alone, by their own names.

    ``fields`` pairs the names of its stored fields among all with those they have in it.
    """

    prefix: str
    fields: tuple[tuple[str, str], ...]
    steps: tuple[Step, ...]

    @property
    def random(self) -> bool:
        """Does any of the functions take a generator?"""
        return any(step.random for step in self.steps)

    @property
    def numbers(self) -> int:
        """Counts as this many steps, so that those of the next source draw something else."""
        return len(self.steps)

    def __call__(self, batch: Batch, draws: Draws | None, number: int) -> Batch:
        """Apply the steps to the fields of the source; what they make takes their place."""
        own = {name: batch[stored] for stored, name in self.fields}
        names = _place_below(self.prefix, made := try_steps(own, self.steps, draws, number))
        stored = {stored for stored, _ in self.fields}
        found: Batch = {}
        for name, values in batch.items():
            if name not in stored:
                found[name] = values
            elif made:
                found |= {names[own]: values for own, values in made.items()}
                made = {}
        return found


def _place_below(prefix: str, names: "Batch | tuple[str, ...]") -> dict[str, str]:
    """Return the names that the fields of a source get among those of others."""
    return {name: prefix if len(names) == 1 else f"{prefix}/{name}" for name in names}


@repeatable
def prefix_fields(ds: Dataset, prefix: str) -> Dataset:
    """Return a dataset as one source of several: its fields below ``prefix``."""
    check_unnumbered(ds, "opening it as a source of others")
    check_unmixed(ds, "opening it as a source of others")
    names = _place_below(prefix, ds.names)
    steps: tuple[Step, ...] = ()
    if ds.steps:
        names = {name: f"{prefix}/{name}" for name in ds.names}
        steps = (SourceSteps(prefix, tuple((names[n], n) for n in ds.names), ds.steps),)
    shown = names if not ds.steps else _place_below(prefix, tuple(ds.fields)) if ds.classes else {}
    return Dataset(
        tuple(_with_rows(group, ds.rows) for group in rename_fields(ds.groups, names)),
        (prefix_fields, (ds, prefix)),
        steps=steps,
        why=ds.why,
        names=tuple(names.values()),
        identity=ds.fingerprint if ds._identity else "",
        origins=tuple(one.choose(ds.rows) for one in ds._origins),
        skipped=ds._skipped,
        classes=rename_classes(ds.classes, shown),
    )


def _with_rows(group: Group, rows: Rows) -> Group:
    """Return a group of some of the samples of another one."""
    if isinstance(rows, Drawn):
        raise ValueError("put datasets together first, then call crops()")
    return group if rows is None else replace(group, rows=compose(group.rows, rows))
