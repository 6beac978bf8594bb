"""How do I train on several datasets, mixed in fixed proportions?

Compared with what people write: a DataLoader for each dataset, with its share of the batch, and
``torch.cat``. That works as long as shares are whole numbers of samples and all datasets end at the
same time, as here; and a run that stopped cannot resume where it was. ``ndfeed.mix`` takes any
weights, and its position is a few hundred bytes, of which part is how far each dataset is.
"""

import itertools
import json

import numpy as np
import torch
from side_by_side import compare, start

import ndfeed.torch

WEB, CODE = 24, 8  # of a batch


class Rows(torch.utils.data.Dataset):
    """The rows of a mapped file, one at a time."""

    def __init__(self, path):
        self._path, self._rows = path, np.load(path, mmap_mode="r")

    def __len__(self):
        return len(self._rows)

    def __getitem__(self, index):
        return torch.from_numpy(np.array(self._rows[index]))


class Zipped:
    """Batches of parts that come from one DataLoader each."""

    def __init__(self, web, code):
        self._loaders = [
            torch.utils.data.DataLoader(Rows(path), size, shuffle=True)
            for path, size in ((web, WEB), (code, CODE))
        ]

    def __iter__(self):
        return (torch.cat(parts) for parts in zip(*self._loaders, strict=True))


def main(folder, samples):
    count = samples // (WEB + CODE)
    paths = {"web": folder / "web.npy", "code": folder / "code.npy"}
    rng = np.random.default_rng(0)
    for path, rows in zip(paths.values(), (WEB * count, CODE * count), strict=True):
        np.save(path, rng.integers(0, 50_257, (rows, 256)))

    sources = {name: ndfeed.open(path) for name, path in paths.items()}
    mixed = ndfeed.mix(sources, weights=[3, 1])
    loader = ndfeed.torch.loader(mixed, WEB + CODE, shuffle=True, fields="data")
    ways = {"a DataLoader for each": Zipped(*paths.values()), "ndfeed.mix": loader}
    compare("two datasets, three to one", ways)

    # A run that stops within an epoch, and resumes with other weights from that step on.
    batches = iter(loader)
    for _ in itertools.islice(batches, 3):
        pass
    state = json.loads(json.dumps(loader.state_dict()))
    print("each dataset stands at", state["more"]["sources"])
    other = ndfeed.mix(sources, weights=[1, 1])
    later = ndfeed.torch.loader(other, WEB + CODE, shuffle=True, fields="data")
    later.load_state_dict(state)
    print(f"{len(later)} batches of half and half follow")


if __name__ == "__main__":
    start(main, samples=6_400)
