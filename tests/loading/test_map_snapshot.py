"""All that functions given to map refer to: what is seen, and what cannot be looked at."""

import array
import functools
import itertools
import math
import random
import re
import sys
import types

import numpy as np
import pytest
from dataset import layouts
from loading.making import numbers

from ndfeed.loading.map_snapshot import take_snapshot

strength = 1
settings = types.SimpleNamespace(parts=[{"deep": [[[[1]]]]}])
generator = np.random.default_rng(0)
module = types.ModuleType("made_here")


@functools.cache
def table():
    return strength


class Pipeline:
    """A class whose method refers to a global variable, and which has attributes of its own."""

    scale = 1

    def __init__(self):
        self.array = np.zeros((3, 4)).T
        self.many = list(range(1000))

    def __call__(self, batch):
        return self._go_on(batch)

    def _go_on(self, batch):
        return batch["data"] * strength


def use(batch):
    return module.factor, helper(batch), settings, table()


def helper(batch):
    return [generator.random() + strength for _ in batch]


pipeline = Pipeline()


def set_strength():
    global strength
    strength += 1


def set_class():
    Pipeline.scale += 1


def set_deep():
    settings.parts[0]["deep"][0][0][0][0] += 1


def set_many():
    pipeline.many[500] = -1


CHANGES = {
    "a variable that a method uses": (pipeline, set_strength),
    "an attribute of a class": (pipeline, set_class),
    "an element of an array": (pipeline, lambda: pipeline.array.__setitem__((1, 1), 5)),
    "an element of a long list": (pipeline, set_many),
    "a variable that a function uses that is called": (use, set_strength),
    "something deep": (use, set_deep),
    "a generator": (use, generator.random),
    "a variable of a module": (use, lambda: setattr(module, "factor", module.factor + 1)),
    "a cache": (use, table),
}


@pytest.fixture(autouse=True)
def _begin(monkeypatch):
    module.factor = 1
    monkeypatch.setitem(sys.modules, "made_here", module)
    table.cache_clear()


@pytest.mark.parametrize("what", CHANGES)
def test_changes_are_seen(tmp_path, what):
    """However deep they are: processes that were forked before do not have them."""
    function, change = CHANGES[what]
    steps = numbers(tmp_path, 3).map(function).steps
    before = take_snapshot(steps)
    assert before is not None
    assert take_snapshot(steps) == before
    change()

    assert take_snapshot(steps) != before


def test_nothing_is_known_of_what_cannot_be_looked_at(tmp_path):
    """State that an object does not show, and very many values."""
    ds = numbers(tmp_path, 3)
    hidden = [
        array.array("i", [1]),
        itertools.count(),
        open(__file__),  # noqa: SIM115 - closed below
        np.empty(3, object),
        np.zeros(10 << 20),
        [[] for _ in range(20_000)],
    ]
    for one in hidden:
        assert take_snapshot(ds.map(lambda batch, one=one: batch).steps) is None, type(one)
    hidden[2].close()


def test_what_most_functions_use_is_known(tmp_path):
    """NumPy, modules, patterns, generators, cyclic objects."""
    pattern, mine, cycle = re.compile("x"), random.Random(1), []
    scale, options = np.float32(2.5), types.SimpleNamespace(nan=math.nan)
    cycle.append(cycle)

    many = (1, 2.5, None, "x", b"y", np.int64(3), np.dtype("f4"))

    def f(batch, rng, mode="reflect"):
        np.ascontiguousarray(batch["data"][::-1], np.float32)
        return math.sqrt(scale), pattern, mine, cycle, options, many

    steps = numbers(tmp_path, 3).map(f).steps
    found = take_snapshot(steps)

    assert found is not None
    assert len(found) < 1000
    assert take_snapshot(steps) == found


def test_an_installed_package_is_not_searched(tmp_path):
    """Or nothing would ever be known of a function that uses one."""
    steps = numbers(tmp_path, 3).map(lambda batch: (layouts, pytest.approx(3), batch)).steps

    assert take_snapshot(steps) is not None
