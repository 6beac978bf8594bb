"""All that functions given to map refer to: what is seen, and what cannot be looked at."""

import array
import calendar
import collections
import dataclasses
import enum
import functools
import importlib
import itertools
import json
import math
import os
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


def by_module(settings=module):
    """Refers to a module by another name than a global variable."""
    return lambda batch: settings.factor


class Private:
    __slots__ = ("__own",)

    def __init__(self):
        self.__own = 1

    def __call__(self, batch):
        return self.__own

    def change(self):
        self.__own += 1


class Numbers(np.ndarray):
    """An array with attributes."""


class Named(str):
    """A text with attributes."""


class Options(dict):
    """A dict whose class has attributes."""

    default = 1

    def __missing__(self, key):
        return self.default


class Kind(type):
    scale = 1


class OfKind(metaclass=Kind):
    def __call__(self, batch):
        return type(type(self)).scale


@functools.wraps(json.dumps)
def wrapped(batch):
    return strength


@functools.lru_cache(maxsize=1)
def newest(key):
    return [key]


private, masked = Private(), np.ma.MaskedArray([1, 2], [False, False])
marked, named, missing = np.zeros(2).view(Numbers), Named("a"), Options()
counted = collections.defaultdict(int)


def set_missing():
    Options.default += 1


def set_kind():
    Kind.scale += 1


def set_environment():
    os.environ["NDFEED_TEST"] = f"{random.random()}"


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
    "a result of a cache": (lambda batch: newest(1), lambda: newest(1).append(1)),
    "a module in a closure": (by_module(), lambda: setattr(module, "factor", module.factor + 1)),
    "a variable found by its name": (
        lambda batch: getattr(module, "factor"),  # noqa: B009 - what is tested
        lambda: setattr(module, "factor", module.factor + 1),
    ),
    "what a function uses that wraps an installed one": (
        lambda batch: wrapped(batch),
        set_strength,
    ),
    "a private slot": (private, private.change),
    "a mask": (lambda batch: masked, lambda: masked.__setitem__(1, np.ma.masked)),
    "an attribute of an array": (lambda batch: marked, lambda: setattr(marked, "scale", 2)),
    "an attribute of a text": (lambda batch: named, lambda: setattr(named, "scale", 2)),
    "the class of a dict": (lambda batch: missing["x"], set_missing),
    "the class of a class": (OfKind(), set_kind),
    "what a dict makes": (
        lambda batch: counted["x"],
        lambda: setattr(counted, "default_factory", float),
    ),
    "the environment": (lambda batch: os.getenv("NDFEED_TEST"), set_environment),
    "the working folder": (lambda batch: os.path.exists("x"), lambda: os.chdir("/")),
}


@pytest.fixture(autouse=True)
def _begin(monkeypatch, tmp_path):
    module.factor = 1
    monkeypatch.setitem(sys.modules, "made_here", module)
    monkeypatch.setenv("NDFEED_TEST", "1")
    monkeypatch.chdir(tmp_path)
    table.cache_clear()
    newest.cache_clear()
    newest(1)


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


def test_what_is_seen_of_torch(tmp_path):
    """Generators, and attributes of tensors."""
    torch = pytest.importorskip("torch")
    mine, held = torch.Generator(), torch.zeros(2)
    steps = numbers(tmp_path, 3).map(lambda batch: torch.rand(1, generator=mine) + held).steps
    found = [take_snapshot(steps)]
    assert take_snapshot(steps) == found[0]
    for change in (
        lambda: torch.rand(1, generator=mine),
        lambda: setattr(held, "scale", 2),
        lambda: held.requires_grad_(),
    ):
        change()
        found.append(take_snapshot(steps))

        assert None not in found
        assert found[-1] != found[-2]


def test_nothing_is_known_of_functions_that_compute_names(tmp_path):
    """Of variables that they use."""
    ds = numbers(tmp_path, 3)
    for one in (
        lambda batch: eval("strength"),
        lambda batch: globals()["strength"],
        lambda batch: importlib.import_module("made_here").factor,
    ):
        assert take_snapshot(ds.map(one).steps) is None


def test_a_function_of_an_installed_package_is_looked_into(tmp_path, monkeypatch):
    """Also with some of its arguments given."""
    steps = numbers(tmp_path, 3).map(functools.partial(calendar.prcal, 2000)).steps
    before = take_snapshot(steps)
    assert before is not None
    monkeypatch.setattr(calendar.TextCalendar, "formatyear", None)

    assert take_snapshot(steps) != before


@dataclasses.dataclass
class Crop:
    sizes: list[int] = dataclasses.field(default_factory=list)
    pad: int | None = None


class Side(enum.IntEnum):
    LEFT = 0


def test_what_most_functions_use_is_known(tmp_path):
    """NumPy, modules, patterns, generators, cyclic objects."""
    pattern, mine, cycle = re.compile("x"), random.Random(1), []
    scale, options = np.float32(2.5), types.SimpleNamespace(nan=math.nan)
    middle, own = slice(2, 5), (Crop(), Side.LEFT, Side)
    cycle.append(cycle)

    many = (1, 2.5, None, "x", b"y", np.int64(3), np.dtype("f4"))

    def f(batch, rng, mode="reflect"):
        np.ascontiguousarray(batch["data"][::-1], np.float32)
        return math.sqrt(scale), pattern, mine, cycle, options, many, middle, own

    steps = numbers(tmp_path, 3).map(f).steps
    found = take_snapshot(steps)

    assert found is not None
    assert len(found) < 1000
    assert take_snapshot(steps) == found


def test_an_installed_package_is_not_searched(tmp_path):
    """Or nothing would ever be known of a function that uses one."""
    steps = numbers(tmp_path, 3).map(lambda batch: (layouts, pytest.approx(3), batch)).steps

    assert take_snapshot(steps) is not None
