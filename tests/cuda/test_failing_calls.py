"""Every call to the driver fails once, or all do from one on: right values or an error, no leak.

A campaign on the stand-in: whatever fails, batches that arrive are those of a loader of arrays,
nothing hangs, and when the loader is closed its threads have ended, the files may be written to,
and, if the driver still works, all memory has been given back.
"""

import gc
import threading
from functools import partial

import numpy as np
import pytest
from cuda import test_feed, test_inflate
from cuda.failing import Failing
from cuda.stand_in import StandInNvcomp
from loading.making import eventually, files

import ndfeed
from ndfeed.dataset.reader import reader_of
from ndfeed.files.platform_calls import elapsed
from ndfeed.loading.loader import Loader


def make_crops(folder):
    boxes = {"image": (9, 8, 17), "mask": (9, 8, 17)}
    return test_feed.volumes(folder).crops(boxes, each=1, place=True)


def make_pinned(folder):
    np.savez_compressed(folder / "x.npz", x=np.arange(600).reshape(60, 10))
    return ndfeed.open(folder / "x.npz", sample="row")


class Inflating(test_inflate.Inflating):
    """Delivers arrays as they are where the CPU inflates."""

    def finish(self, made):
        on_device = any(hasattr(values, "address") for values in made.values())
        return super().finish(made) if on_device else made

    def send(self, made):
        return (made,) if isinstance(made, dict) else super().send(made)

    def receive(self, made):
        return made if isinstance(made, dict) else super().receive(made)


# How data are made, the size of batches, and arguments of the loader.
CASES = {
    "small": (lambda folder: files(folder, x=("<f4", 60, 7)), 16, {}),
    "large": (lambda folder: files(folder, x=("u1", 24, 40_000)), 8, {}),
    "both": (lambda folder: files(folder, x=("u1", 24, 40_000), y=("<i8", 24)), 8, {}),
    "crops": (make_crops, 2, {}),
    "pinned": (make_pinned, 16, {}),
    "resident": (lambda folder: files(folder, x=("<f4", 60, 7)), 16, {"resident": True}),
    "inflated": (lambda folder: test_inflate.images(folder, 24), 8, {}),
}


def make_loader(case, ds, size, driver, words):
    given = {"shuffle": True, "threads": 2, "memory": "2MB", **words}
    if case == "inflated":
        request = test_feed.settle_for(ds, size, processes=0, **given)
        return Loader(request, lambda: Inflating(ds, driver, StandInNvcomp(driver)))
    return test_feed.load(ds, size, driver, **given)


def take_all(loader, expected):
    """Compare the batches of an epoch; return the error that ended it, if one did."""
    try:
        for batch, arrays in zip(loader, expected, strict=True):
            for name, values in arrays.items():
                np.testing.assert_array_equal(batch[name], values)
    except (RuntimeError, MemoryError) as error:
        return error
    return None


def run(case, ds, driver, expected, *, broken):
    """One loader, from its first batch to its end."""
    _, size, words = CASES[case]
    before = set(threading.enumerate())
    loader = make_loader(case, ds, size, driver, words)
    error = take_all(loader, expected)
    if error is not None and not broken:
        assert "on purpose" in str(error)
    loader.close()
    del loader, error
    assert eventually(lambda: not {t for t in threading.enumerate() if is_ours(t)} - before)
    for group in ds.groups:
        maps = reader_of(group).maps
        assert maps is None or maps.release(elapsed() + 10), "somebody is said to be reading"


def gave_all_back(driver):
    gc.collect()
    return not driver.in_use


def is_ours(thread):
    """Those that look for what is done end by themselves, some time later."""
    name = thread.name
    return name.startswith("ndfeed") and "flight" not in name and "lease" not in name


@pytest.mark.parametrize("broken", [False, True], ids=["once", "from then on"])
@pytest.mark.parametrize("case", CASES)
def test_any_call_may_fail(tmp_path, case, broken):
    """Each of them, in one loader after the other."""
    make, size, _ = CASES[case]
    ds = make(tmp_path)
    expected = list(ndfeed.loader(ds, size, shuffle=True))
    healthy = Failing()
    run(case, ds, healthy, expected, broken=False)
    assert healthy.calls
    for fails in range(1, len(healthy.calls) + 1):
        driver = Failing(fails, broken=broken)
        run(case, ds, driver, expected, broken=broken)
        if not broken:
            name = f"call {fails}, {(driver.calls + ['none'] * fails)[fails - 1]}"
            assert eventually(partial(gave_all_back, driver), 5), name
            assert driver.faults == [], name
