"""How do I split by patient, so that nobody is in both training and validation?

One compressed .npz per scan, several scans per patient. By hand: open every file for its patient,
assign patients to parts, and keep lists of paths, which a loop then loads one by one. With
ndfeed, `split(by=...)` reads that one field of all files and returns two datasets of whole
patients; `where` chooses samples, `folds` makes pairs for cross-validation.
"""

import numpy as np
from side_by_side import compare, start

import ndfeed

BATCH = 32
SHAPE = (32, 32)


def make(folder, samples):
    """Write scans of patients who were seen one to nine times, with a rare disease."""
    rng = np.random.default_rng(0)
    patients = np.repeat(np.arange(samples), rng.integers(1, 10, samples))[:samples]
    sick = rng.random(samples) < 0.1
    for i, patient in enumerate(rng.permutation(patients)):
        scan = rng.integers(0, 50, SHAPE, np.uint8)
        label = np.int64(sick[patient])
        np.savez_compressed(folder / f"{i:06}.npz", scan=scan, patient=patient, label=label)


class ByHand:
    """The scans of some patients: a list of paths, and one np.load after the other."""

    def __init__(self, folder, patients):
        wanted = set(patients)
        paths = sorted(folder.glob("*.npz"))
        self.paths = [path for path in paths if int(np.load(path)["patient"]) in wanted]

    def __iter__(self):
        for at in range(0, len(self.paths), BATCH):
            files = [np.load(path) for path in self.paths[at : at + BATCH]]
            yield np.stack([f["scan"] for f in files]), np.stack([f["label"] for f in files])


def patients_of(ds):
    return set(ds.select("patient")[:]["patient"].tolist())


def main(folder, samples):
    make(folder, samples)
    ds = ndfeed.open(folder, sample="file")

    train, val = ds.split(0.8, seed=0)
    print(f"At random: {len(patients_of(train) & patients_of(val))} patients are in both parts")

    train, val = ds.split(0.8, by="patient", seed=0)
    assert not patients_of(train) & patients_of(val)
    print(f"By patient: none, and {len(train) / samples:.1%} of the scans are for training")

    # The share of the sick in both parts, whole patients nevertheless.
    train, val = ds.split(0.8, by="patient", like="label", seed=0)
    shares = [len(part.where("label")) / len(part) for part in (train, val)]
    print(f"By patient, like label: {shares[0]:.1%} and {shares[1]:.1%} are scans of the sick")

    for fold, held_out in ds.folds(5, by="patient", seed=0):
        assert not patients_of(fold) & patients_of(held_out)

    ways = {
        "paths and np.load": ByHand(folder, patients_of(train)),
        "ndfeed.loader": ndfeed.loader(train, BATCH, fields=("scan", "label")),
    }
    compare("The training part", ways, in_order=True)


if __name__ == "__main__":
    start(main, samples=600)
