"""How are batches made ahead of training, shuffled and augmented, from a mapped file?

The queue and the threads that people build around a memmap, ready made: batches come in an
exact random order, an augmentation runs on them in the background, and a run that was stopped
goes on with the very next batch, augmented as it would have been.
"""

import json
import tempfile
from pathlib import Path

import numpy as np

import ndfeed


def make(path):
    """Images in one .npy, as np.save writes them."""
    images = np.random.default_rng(0).integers(0, 255, (2000, 32, 32, 3)).astype(np.uint8)
    np.save(path, images)


def augmented(batch, rng):
    """Flipped half the time, shifted by up to two pixels, scaled to [0, 1)."""
    images = batch["data"]
    flip = rng.random(len(images)) < 0.5
    images[flip] = images[flip, :, ::-1]
    images = np.roll(images, rng.integers(-2, 3, 2), axis=(1, 2))
    return {"image": images.astype(np.float32) / 255}


def main():
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "images.npy"
        make(path)

        ds = ndfeed.open(path).map(augmented)
        loader = ndfeed.loader(ds, 100, shuffle=True, seed=1)
        seen = []
        for step, batch in enumerate(loader):
            seen.append(batch["image"])
            if step == 9:
                state = json.dumps(loader.state_dict())  # into a checkpoint

        resumed = ndfeed.loader(ds, 100, shuffle=True)
        resumed.load_state_dict(json.loads(state))
        rest = [batch["image"] for batch in resumed]

        assert len(rest) == 10
        assert all((a == b).all() for a, b in zip(seen[10:], rest, strict=True))
        print(f"{len(seen)} augmented batches; the last {len(rest)} again after a resume, the same")


if __name__ == "__main__":
    main()
