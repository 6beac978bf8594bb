"""How do I train on a folder that is still being written to?

By hand: list the folder again before every epoch, open all files to learn their lengths, and draw
another permutation. A run that is stopped in the middle of an epoch and resumed when there are
more files gets a permutation of other samples: some come twice in that epoch, others never.

``loader.refresh()`` opens only the files that are new, and ``load_state_dict(state, grown=True)``
resumes with exactly the samples that were not delivered yet, and those that are new.
"""

from itertools import islice

import numpy as np
from side_by_side import compare, start

import ndfeed

BATCH, ROWS = 64, 20


def write(folder, numbers):
    """Write files as a simulation does: under another name first, so that none is incomplete."""
    for number in numbers:
        rows = np.full((ROWS, 8), 0, np.float32)
        rows[:, 0] = np.arange(ROWS * number, ROWS * (number + 1))  # which sample this is
        with open(folder / f"{number:05}.npy.tmp", "wb") as file:
            np.save(file, rows)
        (folder / f"{number:05}.npy.tmp").rename(folder / f"{number:05}.npy")


class ByHand:
    """Lists and opens everything in every epoch, and shuffles by a seed."""

    def __init__(self, folder):
        self.folder = folder

    def batches(self, epoch):
        files = [np.load(path, mmap_mode="r") for path in sorted(self.folder.glob("*.npy"))]
        ends = np.cumsum([len(file) for file in files])
        order = np.random.default_rng(epoch).permutation(ends[-1])
        for at in range(0, len(order), BATCH):
            rows = order[at : at + BATCH]
            which = np.searchsorted(ends, rows, side="right")
            places = zip(which, rows - ends[which], strict=True)
            yield np.stack([files[i][place] for i, place in places])

    def __iter__(self):
        return self.batches(0)


class Followed:
    """Looks for new files before every epoch."""

    def __init__(self, folder):
        ds = ndfeed.open(folder, sample="row")
        self.loader = ndfeed.loader(ds, BATCH, shuffle=True, fields="data")

    def __iter__(self):
        self.loader.refresh()
        return iter(self.loader)


def seen(batches):
    """Return which samples these are."""
    return [int(number) for batch in batches for number in batch[:, 0]]


def resume_by_hand(folder, stop, more):
    """Stop after some batches, let files come, and skip as many batches of the same epoch."""
    before = seen(islice(ByHand(folder).batches(0), stop))
    write(folder, more)
    return before + seen(islice(ByHand(folder).batches(0), stop, None))


def resume_grown(folder, stop, more):
    """Stop after some batches, let files come, and load the state."""
    loader = Followed(folder).loader
    before = seen(islice(loader, stop))
    state = loader.state_dict()  # a few hundred bytes of JSON for the checkpoint
    write(folder, more)
    loader = Followed(folder).loader
    loader.load_state_dict(state, grown=True)
    return before + seen(loader)


def main(folder, samples):
    files = max(samples // ROWS, 8)
    for name, resume in (("by hand", resume_by_hand), ("grown=True", resume_grown)):
        own = folder / name
        own.mkdir()
        write(own, range(1, files + 1))
        found = resume(own, files * ROWS // BATCH // 2, [0, files + 1, files + 2])
        every = ROWS * (files + 3)
        never = every - len(set(found))
        print(
            f"{name}: of {every:,} samples, {len(found) - every + never:,} twice, {never:,} never"
        )
        if resume is resume_grown:
            assert sorted(found) == list(range(every))

    ways = {"listed and opened anew": ByHand(own), "loader.refresh()": Followed(own)}
    compare("a folder looked at before every epoch", ways)


if __name__ == "__main__":
    start(main, samples=10_000)
