"""What functions given to map refer to, and whether a change of it is noticed."""

import collections
import functools
import itertools
import pathlib
import random
import tracemalloc
import types

import numpy as np
import pytest
from loading.making import numbers

from ndfeed.loading.map_state import find_changed, observe, observe_generators

total = 0
table = {"a": 1}
options = types.SimpleNamespace(width=3)


def change_global(batch):
    global total
    total += 1
    return batch


def change_table(batch):
    table["a"] += 1
    return batch


def change_attribute(batch):
    options.width += 1
    return batch


def call_another(batch):
    return change_global(batch)


def nested(batch):
    return {name: change_global(batch)[name] for name in batch}


def read_only(batch):
    return {name: values + table["a"] + options.width for name, values in batch.items()}


class Counting:
    def __init__(self):
        self.count = 0

    def __call__(self, batch):
        self.count += 1
        return batch

    def method(self, batch):
        self.count += 1
        return batch


def closure(kind):
    """A function that changes a variable of its closure."""
    held = kind

    def change(batch):
        nonlocal held
        if isinstance(held, int):
            held += 1
        elif isinstance(held, np.ndarray):
            held[1] += 1
        elif isinstance(held, set):
            held.add(len(held))
        elif isinstance(held, dict):
            held[1] = held.get(1, 0) + 1
        else:
            held.append(1)
        return batch

    return change


def extra(batch, collected):
    collected.append(1)
    return batch


big = np.zeros(1 << 21)
stats = {"hist": np.zeros(4)}
numbered = itertools.count()
deep = types.SimpleNamespace(a=types.SimpleNamespace(b=0))


class Slotted:
    __slots__ = ("n",)

    def __init__(self):
        self.n = 0

    def __call__(self, batch):
        self.n += 1
        return batch


class Private:
    __slots__ = ("__n",)

    def __init__(self):
        self.__n = 0

    def __call__(self, batch):
        self.__n += 1
        return batch


class OfClass:
    n = 0

    def __call__(self, batch):
        type(self).n += 1
        return batch


def change_big(batch):
    big[:] += 1
    return batch


def change_inside(batch):
    stats["hist"][0] += 1
    return batch


def change_iterator(batch):
    next(numbered)
    return batch


def change_deep(batch):
    deep.a.b += 1
    return batch


def change_default(batch, seen=[]):  # noqa: B006 - what people write
    seen.append(1)
    return batch


def change_own(batch):
    change_own.n += 1
    return batch


change_own.n = 0


def change_module(batch):
    types.ndfeed_test = getattr(types, "ndfeed_test", 0) + 1
    return batch


types.ndfeed_test = 0

CHANGING = {
    "a large array": change_big,
    "an array in a dict": change_inside,
    "an iterator": change_iterator,
    "an object in an object": change_deep,
    "a default": change_default,
    "an attribute of the function": change_own,
    "an attribute of a module": change_module,
    "a slot": Slotted(),
    "a private slot": Private(),
    "an attribute of a class": OfClass(),
    "a global": change_global,
    "a table": change_table,
    "an attribute": change_attribute,
    "a function that it calls": call_another,
    "inside a comprehension": nested,
    "an object": Counting(),
    "a method": Counting().method,
    "a number": closure(0),
    "a list": closure([]),
    "a set": closure(set()),
    "a counter": closure(collections.Counter()),
    "a deque": closure(collections.deque(maxlen=3)),
    "an array": closure(np.zeros(100)),
    "an argument": functools.partial(extra, collected=[]),
}


@pytest.mark.parametrize("kind", CHANGING)
def test_a_change_is_seen(tmp_path, kind):
    """In whatever the function refers to."""
    steps = numbers(tmp_path, 4).map(CHANGING[kind]).steps
    before = observe(steps)
    assert find_changed(before, observe(steps)) == ""
    for _ in range(2):
        CHANGING[kind]({"x": np.zeros(3)})

    assert find_changed(before, observe(steps)) != ""


def test_a_file_that_is_written_to_is_seen(tmp_path):
    """Its position changes."""
    with open(tmp_path / "log", "w") as file:

        def log(batch):
            file.write("a line\n")
            return batch

        steps = numbers(tmp_path, 4).map(log).steps
        before = observe(steps)
        log({})

        assert find_changed(before, observe(steps)) == "file"


def test_what_is_only_read_does_not_count(tmp_path):
    """Nor what a function makes for itself."""
    steps = numbers(tmp_path, 4).map(read_only).map(np.square, batched=False).steps
    before = observe(steps)
    read_only({"x": np.zeros(3)})

    assert before
    assert find_changed(before, observe(steps)) == ""


def test_a_path_that_is_looked_at_has_not_changed(tmp_path):
    """Although it keeps its own text, once that was asked for."""
    path = pathlib.Path(tmp_path) / "x"
    ds = numbers(tmp_path, 4).map(lambda batch: {**batch, "found": path.exists()})
    before = observe(ds.steps)
    str(path), hash(path)

    assert find_changed(before, observe(ds.steps)) == ""


def test_drawing_from_a_global_generator_is_seen():
    """From any of them, and torch's if it is there."""
    draws = [random.random, np.random.rand]
    try:
        import torch

        draws.append(lambda: torch.rand(1))
    except ImportError:
        pass
    for draw in draws:
        before = observe_generators()
        assert observe_generators() == before
        draw()
        assert observe_generators() != before


def test_a_tensor_that_is_changed_in_place_is_seen(tmp_path):
    """By the number of its changes."""
    torch = pytest.importorskip("torch")
    held = torch.zeros(3)

    def change(batch):
        held.add_(1)
        return batch

    steps = numbers(tmp_path, 4).map(change).steps
    before = observe(steps)
    assert find_changed(before, observe(steps)) == ""
    change({})

    assert find_changed(before, observe(steps)) == "held"


def test_looking_takes_a_moment(tmp_path):
    """However much there is to look at."""
    much = dict.fromkeys(range(2_000_000))

    def look_up(batch):
        return {name: values for name, values in batch.items() if name not in much}

    steps = numbers(tmp_path, 4).map(look_up).steps
    tracemalloc.start()
    observe(steps)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert most < 1 << 20
