"""Batches that processes build: the memory they take."""

import pytest
from children import run
from loading.making import one_per_file

from ndfeed.files import process_server

pytestmark = pytest.mark.skipif(process_server.why_not() != "", reason="needs fork")


@pytest.mark.parametrize("mapped", [False, True])
def test_memory_of_all_processes_together(tmp_path, mapped):
    """No more than ``memory``, 60 MB for each process, and something besides."""
    one_per_file(tmp_path / "x", "npz", n=120, shape=(200, 200))
    code = """
    import psutil
    me = psutil.Process()

    def taken():
        found = me.memory_full_info().pss
        for child in me.children(recursive=True):
            try:
                found += child.memory_full_info().pss
            except psutil.Error:
                pass
        return found

    ds = ndfeed.open(args[0], sample="file")
    if args[1] == "True":
        ds = ds.map(lambda batch: {"x": batch["x"].astype("f8"), "y": batch["y"]})
    before, most = taken(), 0
    with ndfeed.loader(ds, 16, shuffle=True, processes=4, memory="32MB") as loader:
        while loader.report().processes < 4:
            list(loader)
        for number in range(3):
            for batch in loader:
                most = max(most, taken() - before)
    print(most >> 20)
    """
    assert int(run(code, tmp_path / "x", str(mapped))) <= 32 + 4 * 60 + 150
