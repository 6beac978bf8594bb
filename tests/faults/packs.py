"""Packs that can be repeated from the same beginning, and the check of what a fault left."""

import shutil
from concurrent.futures import Executor, Future

import numpy as np
from faults.seam import tree
from packing import making

import ndfeed


class AtOnce(Executor):
    """An executor without threads: a forked child begins quickly, and does all in one order."""

    max_workers = 1

    def submit(self, function, *args):
        future = Future()
        try:
            future.set_result(function(*args))
        except Exception as error:  # noqa: BLE001 - whatever it is, it goes into the future
            future.set_exception(error)
        return future


def fresh(folder, size=5):
    """A folder of samples of several shapes, packed in parts."""
    ds = making.npz_of_samples(folder / "source", files=size).select("label", "volume")
    return lambda target: ndfeed.pack(ds, target, rows_per_part=3, executor=AtOnce())


def scattered(folder, size=3):
    """Shuffled rows of compressed files, through a map that makes a ragged field."""
    ds = making.npz_of_rows(folder / "source", files=size, rows=4).map(making.ragged)
    return lambda target: ndfeed.pack(ds, target, shuffle=1, executor=AtOnce())


def appended(folder, size=3):
    """Rows added to a dataset that is there."""
    ds = making.npz_of_rows(folder / "source", files=size, rows=4, compressed=False)
    ndfeed.pack(ds.take(slice(0, 5)), folder / "base", workers=1)
    rest = ds.take(slice(5, len(ds)))
    return lambda target: ndfeed.pack(rest, target, append=True, executor=AtOnce())


def repaired(folder, size=3):
    """Damage in two columns, written again from the source."""
    ds = making.npz_of_rows(folder / "source", files=size, rows=4)
    ndfeed.pack(ds, folder / "base", workers=1)
    for column in sorted((folder / "base/00000").iterdir()):
        data = bytearray(column.read_bytes())
        data[-1] ^= 1
        column.write_bytes(data)
    return lambda target: ndfeed.pack(ds, target, repair=True, executor=AtOnce())


PACKS = {"fresh": fresh, "scattered": scattered, "appended": appended, "repaired": repaired}


class Case:
    """A pack, what was there before it, and what it ends in."""

    def __init__(self, name, folder, **options):
        self.folder = folder / "work"
        self.target = self.folder / "packed"
        self._repairs = name == "repaired"
        self._source = folder / "source"
        self._pack = PACKS[name](folder, **options)
        self._base = folder / "base" if (folder / "base").exists() else None
        self.begin()
        self.before = tree(self.folder)
        self.run()
        self.after = tree(self.folder)
        self._sources = tree(self._source)

    def sources(self):
        """The files that are packed."""
        return [path for path in sorted(self._source.iterdir()) if path.is_file()]

    def begin(self):
        """Put everything back to where it was before the first run."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        if self._base is not None:
            shutil.copytree(self._base, self.target)

    def run(self):
        """Pack."""
        self._pack(self.target)

    def is_whole_or_absent(self):
        """As before, or as it should be: nothing between."""
        if self._repairs:
            return self._is_repaired_in_part()
        manifest = self.target / "ndfeed.json"
        now = manifest.read_bytes() if manifest.exists() else None
        if now == self.before.get("packed/ndfeed.json"):
            kept = {name: data for name, data in self.before.items() if name != "packed"}
            return kept.items() <= tree(self.folder).items() and (
                now is not None or not self.target.exists()
            )
        found = tree(self.folder)
        return all(found.get(name, b"") == data for name, data in self.after.items())

    def _is_repaired_in_part(self):
        """A column is as damaged as it was, or better: bytes that were right stay right."""
        for name, wanted in self.after.items():
            before = self.before[name]
            if wanted is None or before is None:
                continue
            path = self.folder / name
            found = np.frombuffer(path.read_bytes(), np.uint8) if path.exists() else None
            if found is None or len(found) != len(wanted):
                return False
            right = np.frombuffer(wanted, np.uint8)
            if ((found != right) & (np.frombuffer(before, np.uint8) == right)).any():
                return False
        return True

    def goes_on(self):
        """The same again ends as if nothing had been, with nothing left over."""
        self.run()
        return tree(self._source) == self._sources and tree(self.folder) == self.after
