"""Cells of a notebook, in a real kernel: their functions are in no module, and Stop is pressed."""

import os
import time

import pytest
from children import PRELUDE
from loading.making import one_per_file

from ndfeed.files import process_server

manager = pytest.importorskip("jupyter_client.manager")
pytest.importorskip("ipykernel")

pytestmark = pytest.mark.skipif(process_server.why_not() != "", reason="needs fork")

# The first cell of every notebook here.
FIRST = (
    PRELUDE
    + """
import psutil

def left(seconds=20):
    until = time.monotonic() + seconds
    while psutil.Process().children() and time.monotonic() < until:
        time.sleep(0.01)
    return psutil.Process().children()

def numbers(batches):
    return sorted(int(y) for batch in batches for y in batch["y"])

def brighter(batch):
    return {"x": batch["x"] + scale, "y": batch["y"]}

def in_process(batch):
    return brighter(batch) | {"pid": [os.getpid() for _ in batch["y"]]}

scale = 2
"""
)


class Notebook:
    """A kernel that runs cells."""

    def __init__(self, folder):
        environment = {"IPYTHONDIR": folder, "JUPYTER_RUNTIME_DIR": folder}
        self._kernel = manager.KernelManager(kernel_name="python3")
        with open(folder / "stderr", "w") as errors:
            self._kernel.start_kernel(env=os.environ | environment, stderr=errors, cwd=folder)
        self._client = self._kernel.client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=100)

    def run(self, code, *, interrupt_at=None):
        """What a cell prints, and its error; it is interrupted once it has printed that."""
        said = []

        def listen(message):
            content = message["content"]
            said.append(content.get("text", content.get("ename", "")))
            if said[-1] == interrupt_at:
                time.sleep(0.2)
                self._kernel.interrupt_kernel()

        self._client.execute_interactive(code, timeout=200, output_hook=listen)
        return "".join(said)

    def close(self):
        self._client.stop_channels()
        self._kernel.shutdown_kernel(now=True)


@pytest.fixture
def notebook(tmp_path):
    one_per_file(tmp_path / "x", "npz")
    made = Notebook(tmp_path)
    try:
        assert made.run(FIRST) == ""
        yield made
    finally:
        made.close()


def test_functions_of_a_cell_run_in_processes(notebook):
    """Also as they are once a cell has been run again: no module has them."""
    code = """
    ds = ndfeed.open("x", sample="file").map(in_process)
    with ndfeed.loader(ds, 8, shuffle=True, processes=2) as loader:
        for scale in (2, 5):
            batches = list(loader)
            assert all((batch["x"][:, 0, 0] == batch["y"] + scale).all() for batch in batches)
            pids = {pid for batch in batches for pid in batch["pid"]}
            print(len(pids - {os.getpid()}), numbers(batches) == list(range(40)))
    print(left())
    """

    assert notebook.run(code) == "2 True\n2 True\n[]\n"


@pytest.mark.parametrize("processes", [None, 2])
def test_files_are_read_in_a_notebook(notebook, processes):
    """By lean processes, which run nothing of the notebook; and by whatever is chosen."""
    code = f"""
    asked = {processes}
    for made in (ndfeed.open("x", sample="file"), ndfeed.open("x", sample="file").map(brighter)):
        loader = ndfeed.loader(made, 8, shuffle=True, processes=asked)
        until = time.monotonic() + (100 if asked else 2)
        while time.monotonic() < until and not (asked and loader.report().processes):
            assert numbers(loader) == list(range(40))
        loader.close()
        print(left(), time.monotonic() < until)
    """

    assert notebook.run(code) == 2 * ("[] True\n" if processes else "[] False\n")


def test_stop_ends_a_cell_and_the_next_one_goes_on(notebook):
    """One error, no process more than before, and the same loader can be used again."""
    code = """
    ds = ndfeed.open("x", sample="file").map(brighter)
    loader = ndfeed.loader(ds, 8, shuffle=True, processes=2)
    count = 0
    while True:
        for batch in loader:
            count += 1
        if count == 20:
            print("at work", flush=True)
    """
    again = """
    del batch
    print(left())
    print(numbers(loader) == list(range(40)), loader.report().processes)
    loader.close()
    print(left())
    """

    assert notebook.run(code, interrupt_at="at work\n") == "at work\nKeyboardInterrupt"
    assert notebook.run(again) == "[]\nTrue 2\n[]\n"
