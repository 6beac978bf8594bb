"""How do I train on random patches of volumes that are too large to load for every patch?

Compressed scans, four patches of each per epoch. What people write loads a whole scan for every
patch; here each is decompressed once for all of its patches. Where patches lie differs, so what is
compared is which scan each is of.
"""

import numpy as np
import torch
from side_by_side import compare, start

import ndfeed.torch

BOX, EACH = 16, 4


class Patches(torch.utils.data.Dataset):
    """A random patch of a scan, which is loaded for it."""

    def __init__(self, paths):
        self.paths = paths

    def __len__(self):
        return len(self.paths) * EACH

    def __getitem__(self, i):
        with np.load(self.paths[i // EACH]) as case:
            image, patient = case["image"], case["patient"]
        corner = [int(torch.randint(0, n - BOX + 1, ())) for n in image.shape]
        return image[tuple(slice(a, a + BOX) for a in corner)], patient


def main(folder, samples):
    rng = np.random.default_rng(0)
    for i in range(samples):
        image = rng.integers(0, 200, rng.integers(40, 60, 3), np.int16)
        np.savez_compressed(folder / f"{i:04}.npz", image=image, patient=i)

    theirs = torch.utils.data.DataLoader(
        Patches(sorted(folder.glob("*.npz"))), batch_size=4, shuffle=True
    )
    ds = ndfeed.open(folder, sample="file").crops({"image": (BOX, BOX, BOX)}, each=EACH)
    loader = ndfeed.torch.loader(ds, 4, shuffle=True, fields=("image", "patient"))

    ways = {"np.load for every patch": theirs, "ndfeed": loader}
    compare("patches of volumes", ways, look=lambda batch: batch[1])


if __name__ == "__main__":
    start(main, samples=24)
