"""Members of many rows that processes decode: same batches, same errors, bounded memory."""

import contextlib
import sys

import numpy as np
import psutil
import pytest
from loading.making import assert_same, compressed, damaged, epoch_of, eventually, running

import ndfeed
from ndfeed.files import process_server

pytestmark = pytest.mark.skipif(process_server.why_not() != "", reason="needs fork")

ROWS, WIDTH = 100, 8192  # members that are large enough to be worth it


def decoded_elsewhere(loader):
    """Wait until processes decode."""
    return eventually(lambda: loader.report().processes == 2 or not list(loader))


@pytest.mark.parametrize("shuffle", [False, True, ndfeed.Windows(files=2)])
def test_batches_are_the_same(tmp_path, shuffle):
    """Whoever has decoded what they are made of."""
    ds, _ = compressed(tmp_path / "x", 6, ROWS, WIDTH)
    expected = epoch_of(ds, 16, shuffle=shuffle, processes=0)
    with ndfeed.loader(ds, 16, shuffle=shuffle, processes=2, memory="4MB") as loader:
        assert decoded_elsewhere(loader)
        for _ in range(3):
            loader.epoch = 0
            assert_same(list(loader), expected)


def test_maps_get_rows_that_processes_decoded(tmp_path):
    """The same processes decode and run the maps."""
    ds, data = compressed(tmp_path / "x", 6, ROWS, WIDTH)
    ds = ds.map(lambda batch: {"n": batch["n"], "sum": batch["x"].sum(1, dtype=np.int64)})
    with ndfeed.loader(ds, 16, shuffle=True, processes=2, memory="4MB") as loader:
        for _ in range(3):
            found = {int(n): int(s) for b in loader for n, s in zip(b["n"], b["sum"], strict=True)}
            assert found == dict(enumerate(data.sum(1, dtype=np.int64).tolist()))


def test_a_damaged_member_is_the_same_error(tmp_path):
    """In the same place, with the same text."""
    ds, _ = compressed(tmp_path / "x", 6, ROWS, WIDTH)
    damaged(tmp_path / "x" / "004.npz")
    texts = []
    for processes in (0, 2):
        with ndfeed.loader(ds, 20, processes=processes, memory="4MB") as loader:
            for _ in range(4):
                got = []
                with pytest.raises(ndfeed.Error) as error:
                    got.extend(loader)
                texts.append(str(error.value))
    assert len(set(texts)) == 1, texts
    assert "004.npz" in texts[0]


def test_a_worker_that_is_killed_is_replaced(tmp_path):
    """Its member is decoded again."""
    ds, _ = compressed(tmp_path / "x", 12, ROWS, WIDTH)
    expected = epoch_of(ds, 8, shuffle=True, processes=0)
    with ndfeed.loader(ds, 8, shuffle=True, processes=2, memory="4MB") as loader:
        assert decoded_elsewhere(loader)
        loader.epoch = 0
        found = []
        for batch in loader:
            found.append(batch)
            if len(found) % 20 == 0:
                for child in running():
                    with contextlib.suppress(psutil.Error):
                        if not child.children():
                            child.kill()
        assert_same(found, expected)


def shared_bytes():
    """Bytes of shared memory that this process maps.

    ``psutil.Process().memory_maps()`` also counts pages: with all frameworks imported, that takes
    a tenth of a second.
    """
    total = 0
    with open("/proc/self/maps") as maps:
        for line in maps:
            if "memfd:ndfeed" in line:
                first, last = line.partition(" ")[0].split("-")
                total += int(last, 16) - int(first, 16)
    return total


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc for the memory in use")
def test_memory_stays_within_its_limit(tmp_path):
    """Blocks are used again, and those of other sizes freed."""
    folder = tmp_path / "x"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for i in range(30):
        x = rng.integers(0, 9, (60 + i, WIDTH), "u1")
        np.savez_compressed(folder / f"{i:02}.npz", x=x)
    ds = ndfeed.open(folder, sample="row")
    with ndfeed.loader(ds, 8, shuffle=True, processes=2, memory="8MB") as loader:
        assert decoded_elsewhere(loader)
        most = 0
        for _ in range(3):
            for _ in loader:
                most = max(most, shared_bytes())

    assert 0 < most <= 16 << 20
