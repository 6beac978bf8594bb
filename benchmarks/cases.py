"""Make the users' datasets that packing is meant for, at a size that CI can handle.

    U2    volumes of different sizes with their segmentation, deflated, one case per file
    U4    cached latents: features/i.npy and labels/i.npy
    U7    episodes of many steps, deflated
    U10   signals: three large .npy
    U11   shards of rows, stored

Deflating takes longer than everything else here, so only a few contents of U2 and U7 are deflated;
the other files are copies of them, each with its own number added, which tells rows apart.
"""

import shutil
import zipfile
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import ndfeed

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Case:
    """A dataset as its user has it, with the options to pack and read it."""

    what: str
    open: Callable[[], ndfeed.Dataset]
    batch: int
    packing: Mapping[str, Any] = field(default_factory=dict)
    shuffle: Any = True  # for the packed dataset
    cold: bool = False


def volume(number: int, quick: bool) -> Arrays:
    """Return a body of noise surrounded by air, like a scan, and a label for each voxel."""
    rng = np.random.default_rng(number)
    depth, side = (15, 24) if quick else (150, 240)
    depth = round(depth * (0.7 + 0.3 * number))
    data = np.full((1, depth, side, side), -1000, np.float32)
    inside = slice(side // 5, -side // 5)
    data[:, :, inside, inside] = rng.integers(-100, 300, data[:, :, inside, inside].shape)
    return {"data": data, "seg": (data > 200).astype(np.int8)}


def episode(number: int, quick: bool) -> Arrays:
    """Return frames of a scene with a little noise, three of them stacked at every step."""
    rng = np.random.default_rng(number)
    steps = 51 if quick else 501
    scene = rng.integers(0, 256, (3, 14, 14), np.uint8).repeat(6, 1).repeat(6, 2)
    frames = scene ^ rng.integers(0, 2, (steps, 3, 84, 84), np.uint8)
    action = rng.random((steps, 6), np.float32)
    return {"observation": np.tile(frames, (1, 3, 1, 1)), "action": action}


def save(make: Callable[[int, bool], Arrays], quick: bool, path: Path, number: int) -> None:
    np.savez_compressed(path, **make(number, quick))


def deflated(folder: Path, count: int, make: Callable[[int, bool], Arrays], quick: bool) -> Path:
    """Write ``count`` archives with three different contents; the member ``number`` is unique."""
    folder.mkdir()
    paths = [folder / f"{i:04}.npz" for i in range(count)]
    with ProcessPoolExecutor() as pool:
        list(pool.map(partial(save, make, quick), paths[:3], range(3)))
    rows = 0
    for i, path in enumerate(paths):
        if i >= 3:
            shutil.copy(paths[i % 3], path)
    for path in paths:
        with np.load(path) as archive:
            steps = len(archive["action"]) if "action" in archive else 1
        with zipfile.ZipFile(path, "a") as archive, archive.open("number.npy", "w") as member:
            np.save(member, np.arange(rows, rows + steps))
        rows += steps
    return folder


def u2(folder: Path, quick: bool) -> Case:
    source = deflated(folder / "u2", 6 if quick else 24, volume, quick)
    opened = partial(ndfeed.open, source, sample="file")
    return Case("whole volumes, deflated .npz", opened, batch=2)


def u4(folder: Path, quick: bool) -> Case:
    latent = np.random.default_rng(0).random((1, 4, 32, 32), np.float32)
    names = ("features", "labels")
    for name in names:
        (folder / name).mkdir()
    for i in range(2_000 if quick else 100_000):
        latent[0, 0, 0, 0] = i
        np.save(folder / "features" / f"{i:06}.npy", latent)
        np.save(folder / "labels" / f"{i:06}.npy", np.array([i]))
    opened = partial(ndfeed.open, {name: folder / name for name in names}, sample="file")
    return Case("pairs of small .npy", opened, batch=256)


def u7(folder: Path, quick: bool) -> Case:
    source = deflated(folder / "u7", 10 if quick else 200, episode, quick)
    opened = partial(ndfeed.open, source, sample="row")
    return Case("steps of episodes, deflated .npz", opened, batch=256)


def u10(folder: Path, quick: bool) -> Case:
    rows = 10_000 if quick else 500_000
    shapes = {"chunks": ("f2", 3600), "references": ("u1", 400)}
    rng = np.random.default_rng(0)
    for name, (dtype, width) in shapes.items():
        made = np.lib.format.open_memmap(folder / f"{name}.npy", "w+", dtype, (rows, width))
        made[...] = rng.integers(0, 4, (1, width))
        made[:, 0] = np.arange(rows) % 251
    del made
    np.save(folder / "lengths.npy", np.arange(rows, dtype=np.uint32))
    sources = {name: folder / f"{name}.npy" for name in (*shapes, "lengths")}
    what = "rows of three large .npy, cold; packed in a random order, then blocks"
    return Case(
        what, partial(ndfeed.open, sources), 256, {"shuffle": 0}, ndfeed.Blocks(), cold=True
    )


def u11(folder: Path, quick: bool) -> Case:
    rng = np.random.default_rng(0)
    rows = 50 if quick else 500
    (folder / "u11").mkdir()
    for i in range(20):
        image = np.repeat(rng.random((1, 3, 128, 64), np.float32), rows, 0)
        label = rng.random((rows, 100), np.float32)
        image[:, 0, 0, 0] = np.arange(rows) + rows * i
        np.savez(folder / f"u11/{i:02}.npz", image=image, label=label)
    opened = partial(ndfeed.open, folder / "u11", sample="row")
    return Case("rows of shards, stored .npz", opened, batch=64)


CASES = {"U2": u2, "U4": u4, "U7": u7, "U10": u10, "U11": u11}
