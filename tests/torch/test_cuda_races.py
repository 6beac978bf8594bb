"""Batches have the right values on the GPU, however fast or slow the consumer is.

Copies to a GPU end some time after the call that asked for them, and kernels read a tensor some
time after Python let go of it. Memory that is used again too soon shows as a wrong value in one
batch of many. So every value of every batch is compared, and the comparison stays on the device:
waiting for it would hide the race.

The same checks run on the CPU, where tensors share memory that is used again.
"""

import itertools

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from loading.making import large_rows, ragged  # noqa: E402

import ndfeed  # noqa: E402
import ndfeed.torch  # noqa: E402

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
on_each_device = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_gpu)])

# Elements of a row, rows of a batch, rows of the file. Copy engines fetch the large rows, a
# kernel the others: in words of eight bytes, or of two where the length is odd.
ROWS = {"150 KB": (75_264, 16, 400), "3 KB": (1536, 256, 8000), "odd": (1501, 256, 8000)}
BATCHES = {"cpu": 60, "cuda": 1200}  # 10,000 of each way in all
SPEEDS = ("fast", "slow", "slow, in a stream of its own")

# How batches get to the GPU, and what the report then says.
WAYS = {
    "files": "reads the files by",
    "pinned": "through pinned memory",
    "resident": "resident on",
    "maps": "batches are made on the CPU",
    "opened": "batches are made on the CPU",  # by processes, and sent together
}
OPENED = 2000  # files of a row each

# A CPU has neither memory nor streams of its own.
CASES = [("cpu", way, "3 KB", "fast") for way in WAYS if way != "resident"] + [
    pytest.param("cuda", *case, marks=needs_gpu) for case in itertools.product(WAYS, ROWS, SPEEDS)
]


def rows_file(folder, label, dtype="<i2"):
    """A dataset of rows that differ from each other in every element, and those rows."""
    width, _, count = ROWS[label]
    row, element = np.arange(count)[:, None], np.arange(width)
    data = ((row * 7 + element * 3 + (row >> 8) * 13) % 30_011).astype(dtype)
    np.save(folder / "x.npy", data)
    np.save(folder / "n.npy", np.arange(count))
    return ndfeed.open({"x": folder / "x.npy", "n": folder / "n.npy"}, sample="row"), data


def as_floats(batch):
    """A map, which makes arrays in memory of its own."""
    return {"x": batch["x"].astype(np.float32), "n": batch["n"]}


def opened(folder, label, way):
    """A dataset whose batches get to the GPU in a given way, and the values of its rows."""
    # Bytes in the other order have to be swapped, which the GPU cannot do while it reads a file.
    ds, data = rows_file(folder, label, ">i2" if way == "pinned" else "<i2")
    if way == "opened":
        ds = one_per_file(folder, data[:OPENED])
    return ds.map(as_floats) if way == "maps" else ds, data.astype("<i2")


def one_per_file(folder, data):
    """A dataset of files of a row each, with their numbers."""
    (folder / "rows").mkdir()
    for number, row in enumerate(data):
        np.save(folder / "rows" / f"{number:06}.npy", row)
    np.save(folder / "n.npy", np.arange(len(data)))
    return ndfeed.open({"x": folder / "rows", "n": folder / "n.npy"}, sample={"x": "file"})


def count_wrong(loader, expected, truth, wanted, busy=None):
    """Compare so many batches with the rows that ``expected``, a loader of arrays, delivers.

    ``busy`` is multiplied with itself before every comparison, so that the device lags far behind
    Python, and each batch is dropped in Python long before it is read on the device. Every 97th
    one is kept: kept batches must not change either.
    """
    wrong = torch.zeros((), dtype=torch.int64, device=truth.device)
    kept, done = [], 0
    while done < wanted:
        rows = torch.from_numpy(np.concatenate(list(expected))).to(truth.device)
        for batch, numbers in zip(loader, rows.split(loader.batch_size), strict=True):
            for _ in range(8 if busy is not None else 0):
                busy = busy @ busy * 0.01
            wrong += (batch["x"] != truth[numbers]).any() | (batch["n"] != numbers).any()
            done += 1
            if done % 97 == 0:
                kept.append((batch["x"], numbers))
            del batch
    for values, numbers in kept:
        wrong += (values != truth[numbers]).any()
    return int(wrong)


@pytest.mark.parametrize(("device", "way", "label", "speed"), CASES)
def test_every_value_of_every_batch_is_right(tmp_path, device, way, label, speed):
    """With little memory, so that buffers are used again as soon as they may be."""
    ds, data = opened(tmp_path, label, way)
    size = ROWS[label][1]
    words = {"shuffle": True, "drop_last": True}
    more = {"device": device, "memory": "512MB", "resident": way == "resident"}
    truth = torch.from_numpy(data).to(device)
    busy = None
    if speed != "fast":
        busy = torch.randn(2048, 2048, device=device, dtype=torch.bfloat16)
    expected = ndfeed.loader(ds, size, fields="n", **words)
    with ndfeed.torch.loader(ds, size, **words, **more) as loader:
        if "stream" in speed:
            torch.cuda.synchronize()
            with torch.cuda.stream(torch.cuda.Stream()):
                wrong = count_wrong(loader, expected, truth, BATCHES[device], busy)
        else:
            wrong = count_wrong(loader, expected, truth, BATCHES[device], busy)
        found = loader.report().way

    assert wrong == 0
    if device == "cuda" and WAYS[way] not in found:
        pytest.skip(f"this machine takes another way: {found}")


@on_each_device
def test_conversions_on_the_device_do_not_outrun_the_copy(tmp_path, device):
    """``convert`` runs behind the copy, on another stream than the consumer's."""
    ds, data = rows_file(tmp_path, "3 KB")
    convert = {"x": ndfeed.torch.Convert(torch.float32, scale=0.5)}
    truth = torch.from_numpy(data.astype("f4") / 2).to(device)
    expected = ndfeed.loader(ds, 256, fields="n", shuffle=True)
    with ndfeed.torch.loader(ds, 256, shuffle=True, device=device, convert=convert) as loader:
        assert count_wrong(loader, expected, truth, BATCHES[device]) == 0


@on_each_device
def test_ragged_batches_are_right(tmp_path, device):
    """Lists of tensors, each of which is copied on its own."""
    ds = ragged(tmp_path / "r", [1 + 37 * i % 500 for i in range(60)])
    expected = ndfeed.loader(ds, 7, shuffle=True, ragged="list")
    with ndfeed.torch.loader(ds, 7, shuffle=True, device=device) as loader:
        for _ in range(5):
            for batch, arrays in zip(list(loader), expected, strict=True):
                for tensor, array in zip(batch["x"], arrays["x"], strict=True):
                    np.testing.assert_array_equal(tensor.cpu(), array)


@on_each_device
@pytest.mark.parametrize("dtype", ["u1", "<i2", "<f4"])
def test_windows_are_right_wherever_they_start(tmp_path, device, dtype):
    """Windows start between words, of which a kernel reads the first and the last in part."""
    np.save(tmp_path / "x.npy", (np.arange(9000) * 7 % 251).astype(dtype))
    np.save(tmp_path / "n.npy", np.arange(9000))
    ds = ndfeed.open({"x": tmp_path / "x.npy", "n": tmp_path / "n.npy"}, sample="row")
    every = np.lib.stride_tricks.sliding_window_view(np.load(tmp_path / "x.npy"), 1025)
    with ndfeed.torch.loader(ds.windows(1025), 64, shuffle=True, device=device) as loader:
        for batch in loader:
            np.testing.assert_array_equal(batch["x"].cpu(), every[batch["n"][:, 0].cpu()])


@on_each_device
def test_two_loaders_share_a_device(tmp_path, device):
    """They share a stream; what belongs to one must not be taken for the other's."""
    first, second = (large_rows(tmp_path / name, 64) for name in "ab")
    loaders = [
        ndfeed.torch.loader(ds, 8, shuffle=True, seed=seed, device=device, memory="4MB")
        for seed, ds in enumerate((first, second))
    ]
    wrong = torch.zeros((), dtype=torch.int64, device=device)
    for _ in range(20):
        for batches in zip(*loaders, strict=True):
            for batch in batches:
                image = batch["image"].to(torch.int64)
                wrong += (image != batch["label"][:, None]).any()
    for loader in loaders:
        loader.close()

    assert int(wrong) == 0
