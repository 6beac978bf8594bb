"""Your own order: two functions, checked by a contract, and never wrong data from a bad one."""

import json
import pickle
from http import HTTPStatus
from pathlib import Path

import numpy as np
import pytest
from children import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from order.known import Known, check_resume
from order.own_orders import (
    Backwards,
    Bad,
    First,
    Inner,
    Remembering,
    Scaled,
    Slotted,
    Strided,
    Told,
    Tupled,
)

import ndfeed
from ndfeed.order.attributes import find_opaque
from ndfeed.order.own import Own


@pytest.fixture(scope="module")
def ds(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "x.npy"
    np.save(path, np.arange(30))
    return ndfeed.open(path)


def rows_in(loader):
    return [row for batch in loader for row in batch["data"].tolist()]


def test_an_order_of_two_functions(ds):
    """Length and rows are all it takes; a state refers to it by its class and its spec."""
    with ndfeed.loader(ds, 4, shuffle=Backwards()) as loader:
        assert rows_in(loader) == list(range(29, -1, -1))
        assert loader.state_dict()["order"] == {
            "kind": "own",
            "class": "order.own_orders.Backwards",
        }
    with ndfeed.loader(ds, 4, shuffle=Strided(7), seed=1) as loader:
        assert len(loader) == 15
        first = rows_in(loader)
        assert rows_in(pickle.loads(pickle.dumps(loader))) == rows_in(loader) != first
        assert first == [(7 * at + 1) % 30 for at in range(60)]
        state = json.loads(json.dumps(loader.state_dict()))
    other = ndfeed.loader(ds, 4, shuffle=Strided(11))
    with pytest.raises(ndfeed.ResumeError, match="another order"):
        other.load_state_dict(state)


class Drawing(Backwards):
    """Adds the seed to positions, and makes a generator of it: both as anybody would."""

    def rows(self, positions, n, seed, epoch):
        start = np.random.default_rng([seed, epoch]).integers(n)
        return (positions + seed + start) % n


@pytest.mark.parametrize("seed", [0, -1, 2**63, -(2**70)])
def test_any_seed_of_a_loader_can_be_reckoned_with(ds, seed):
    """Neither negative nor of more than 63 bits, also for a source of a mixture."""
    both = ndfeed.mix({"a": ds, "b": ds.take(slice(None))}, weights=[1, 1])
    for data in (ds, both):
        loader = ndfeed.loader(data, 4, shuffle=Drawing(), seed=seed)
        assert sorted(rows_in(loader)) == sorted(data[:]["data"].tolist())


@settings(max_examples=examples(2000), deadline=None)
@given(
    n=st.integers(1, 40),
    step=st.integers(0, 50),
    seed=st.integers(0, 2**40),
    epoch=st.integers(0, 2**40),
    first=st.tuples(st.integers(1, 9), st.integers(1, 5)),
    second=st.tuples(st.integers(1, 9), st.integers(1, 5)),
    batches=st.integers(0, 9),
)
def test_resume_into_another_world(n, step, seed, epoch, first, second, batches):
    """What holds for our orders holds for anybody's."""
    order = Own(Strided(step)).bind(Known(n))
    check_resume(order, n, seed, epoch, first, second, batches)


@pytest.mark.parametrize("n", [1, 2, 1000, 100_000])
def test_good_orders_pass(n):
    """Repeated rows are allowed, and reported."""
    assert ndfeed.check_order(Backwards(), n) == (n, 0, 0)
    made = ndfeed.check_order(Strided(2), n)
    assert made.length == 2 * n
    if n == 1000:
        assert (made.repeated, made.missing) == (500, 500)


def test_a_long_epoch_is_looked_at_in_part():
    """Beginning and end; what comes how often is not known then."""
    assert ndfeed.check_order(Backwards(), 10**12) == (10**12, None, None)


@pytest.mark.parametrize(
    ("mistake", "text"),
    [
        ("no length", r"length\(1000\) returned 0; return a number from 1 on"),
        ("float length", r"length\(1000\) returned 1000.0; return an int"),
        ("None length", r"length\(1000\) returned None; return an int"),
        ("counting length", "return the same for the same n"),
        ("beyond", r"returned 1000 for position 0, of 1,000 samples; return rows in \[0, 1000\)"),
        ("negative", r"returned -1 for position 999"),
        ("short", r"shape \(999,\) and dtype int64 for 1000 positions"),
        ("float", "dtype float64 for 1000 positions; return an array"),
        ("list", "returned a list for 1000 positions"),
        ("none", "returned None for 1000 positions"),
        ("table", r"shape \(1000, 1\)"),
        ("relative", "other rows for the same positions"),
        ("random", "other rows for the same positions"),
        ("counts", "other rows for the same positions"),
        ("pickle", "cannot be pickled.*define its class at the top of a module"),
        ("float spec", r"spec\(\) returned {'x': 0.5}; return a dict of whole numbers"),
        ("list spec", r"spec\(\) returned \[1\]; return a dict"),
        ("long spec", r"spec\(\) returned a dict; return a dict"),
    ],
)
def test_the_check_finds_every_mistake(mistake, text):
    """One error, which says what is wrong and what to return instead."""
    with pytest.raises(ndfeed.OrderError, match=f"order Bad: .*{text}") as caught:
        ndfeed.check_order(Bad(mistake))

    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "mistake",
    ["no length", "float length", "beyond", "negative", "short", "float", "none", "table"],
)
@pytest.mark.parametrize("threads", [1, 4])
def test_a_bad_order_in_a_loader_is_one_clear_line(ds, mistake, threads):
    """At construction or in the first batch, and never with wrong data."""
    with pytest.raises(ndfeed.OrderError, match="order Bad: ") as caught:
        rows_in(ndfeed.loader(ds, 4, shuffle=Bad(mistake), threads=threads))

    assert "\n" not in str(caught.value)


def test_a_spec_that_no_state_can_hold_is_refused_at_once(ds):
    """Not hours later, when the run resumes."""
    for mistake in ("float spec", "list spec"):
        with pytest.raises(ndfeed.OrderError, match=r"spec\(\) returned"):
            ndfeed.loader(ds, 4, shuffle=Bad(mistake))


@pytest.mark.parametrize(
    "spec", [{"shape": (3, (4, 5))}, {"a": {"b": {"c": 1}}}, {"a": list(range(250))}], ids=str
)
def test_what_spec_may_return_comes_back_from_json(ds, spec):
    """Tuples as well, however deep it is, and for the sources of a mixture."""
    for data in (ds, ndfeed.mix({"a": ds, "b": ds.take(np.arange(5))})):
        first, second = (ndfeed.loader(data, 2, shuffle=Told(spec)) for _ in range(2))
        batches = iter(first)
        next(batches)
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        assert rows_in(second) == rows_in(batches)


def test_a_spec_of_too_many_values_is_refused_at_once(ds):
    """No state could be loaded again."""
    with pytest.raises(ndfeed.OrderError, match=r"spec\(\) returned a dict"):
        ndfeed.loader(ds, 4, shuffle=Told({"a": [[1] * 200] * 200}))


@pytest.mark.parametrize("wrong", [None, 3, Backwards, object()])
def test_what_is_no_order(ds, wrong):
    """A class is not one of its objects."""
    with pytest.raises(TypeError, match="an order has the functions length"):
        ndfeed.check_order(wrong)
    with pytest.raises(TypeError, match="shuffle must be"):
        ndfeed.loader(ds, 4, shuffle=wrong)


class Lengthless:
    """An order that is not finished."""

    def rows(self, positions, n, seed, epoch):
        return positions


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (Backwards, r"the class Backwards; pass an object of the class: Backwards\(…\)"),
        (ndfeed.Balanced, r"the class Balanced; pass an object of the class: Balanced\(…\)"),
        (
            np.arange(30),
            r"type ndarray; pass rows to ds.take\(rows\) .* ndfeed.Weighted\(weights\)",
        ),
        (list(range(30)), r"type list; pass rows to ds.take\(rows\)"),
        (
            Lengthless(),
            r"type Lengthless, which lacks length\(\); an order of your own has length\(n\)",
        ),
        (object(), r"type object, which lacks length\(\) and rows\(\); an order of your own has"),
        ("yes", r"got 'yes'$"),
    ],
)
def test_what_is_no_order_says_what_was_probably_meant(ds, given, text):
    """The class in place of an object, rows, or an order that lacks a function."""
    with pytest.raises(TypeError, match=text):
        ndfeed.loader(ds, 4, shuffle=given)


DIFFERENT = {
    "numbers": (Scaled, 3, 7),
    "floats": (Scaled, 0.5, 0.25),
    "texts": (Scaled, "3", "7"),
    "types": (Scaled, "3", 3),
    "large numbers": (Scaled, 10**9000, 10**9000 + 1),
    "tuples": (Scaled, (1, 2), (2, 1)),
    "nested lists": (Scaled, [[1], [2]], [[1, 2], []]),
    "dicts": (Scaled, {"a": 1}, {"a": 2}),
    "sets": (Scaled, {1, 2}, {1, 3}),
    "arrays": (Scaled, np.arange(3), np.arange(3) + 1),
    "shapes": (Scaled, np.zeros((2, 3)), np.zeros((3, 2))),
    "times": (Scaled, np.array(["2020"], "M8[s]"), np.array(["2021"], "M8[s]")),
    "single times": (Scaled, np.datetime64("2020"), np.datetime64("2021")),
    "long doubles": (Scaled, np.longdouble("0.1"), np.longdouble("0.2")),
    "paths": (Scaled, Path("a"), Path("b")),
    "members of an enum": (Scaled, HTTPStatus.OK, HTTPStatus.CREATED),
    "arrays of objects": (Scaled, np.array([1, None]), np.array([2, None])),
    "a long array": (Scaled, np.zeros(1 << 21), np.append(np.zeros((1 << 21) - 1), 1)),
    "dtypes": (Scaled, np.dtype("f4"), np.dtype("f8")),
    "classes": (Scaled, np.float32, np.float64),
    "functions": (Scaled, rows_in, examples),
    "dataclasses": (Scaled, Inner(3), Inner(7)),
    "other orders": (Scaled, Scaled(3), Scaled(7)),
    "long texts": (Scaled, "a" * 9000, "a" * 8999 + "b"),
    "slots": (Slotted, 3, 7),
    "a named tuple": (Tupled, 3, 7),
}


@pytest.mark.parametrize("case", DIFFERENT)
def test_a_state_refuses_an_order_with_other_attributes(ds, case):
    """It resumed with the other one: samples were repeated and left out, and nobody was told."""
    kind, before, after = DIFFERENT[case]
    assert find_opaque(kind(before)) is None
    state = json.loads(json.dumps(ndfeed.loader(ds, 4, shuffle=kind(before)).state_dict()))
    assert len(json.dumps(state)) < 1000

    with pytest.raises(ndfeed.ResumeError, match=r"with other attributes: .*or write spec"):
        ndfeed.loader(ds, 4, shuffle=kind(after)).load_state_dict(state)
    ndfeed.loader(ds, 4, shuffle=kind(before)).load_state_dict(state)
    ndfeed.loader(ds, 4, shuffle=kind(pickle.loads(pickle.dumps(before)))).load_state_dict(state)


def test_a_run_cannot_go_on_with_another_order(ds):
    """In the middle of an epoch, some samples would come again and others never."""
    with ndfeed.loader(ds, 3, shuffle=Scaled(7)) as loader:
        batches = iter(loader)
        first = [row for _ in range(5) for row in next(batches)["data"].tolist()]
        state = loader.state_dict()
    with pytest.raises(ndfeed.ResumeError, match="other attributes"):
        ndfeed.loader(ds, 3, shuffle=Scaled(11)).load_state_dict(state)
    with ndfeed.loader(ds, 3, shuffle=Scaled(7)) as same:
        same.load_state_dict(state)
        assert sorted(first + rows_in(same)) == list(range(30))


def test_the_refusal_says_which_attributes(ds):
    """Numbers and short texts are written out."""
    state = ndfeed.loader(ds, 4, shuffle=Scaled(3)).state_dict()
    with pytest.raises(
        ndfeed.ResumeError, match="an order Scaled with other attributes: w=3, but this one has w=7"
    ):
        ndfeed.loader(ds, 4, shuffle=Scaled(7)).load_state_dict(state)


def test_attributes_count_in_a_mixture(ds):
    """Its state holds the order of every source."""

    def make(w):
        mixed = ndfeed.mix({"a": ds, "b": ds.take(range(9))})
        return ndfeed.loader(mixed, 4, shuffle={"a": Scaled(w), "b": True})

    state = json.loads(json.dumps(make(3).state_dict()))
    make(3).load_state_dict(state)
    with pytest.raises(ndfeed.ResumeError, match="another order"):
        make(7).load_state_dict(state)


def test_many_attributes_fit_into_a_state(ds):
    """A state stays small, and still tells them apart."""

    def make(last):
        order = Backwards()
        vars(order).update({f"attribute{at}": at for at in range(2000)}, last=last)
        return ndfeed.loader(ds, 4, shuffle=order)

    state = json.loads(json.dumps(make(1).state_dict()))
    make(1).load_state_dict(state)
    assert len(json.dumps(state)) < 1000
    with pytest.raises(ndfeed.ResumeError, match="other attributes"):
        make(2).load_state_dict(state)


def test_what_an_order_remembers_does_not_keep_it_from_resuming(ds):
    """Attributes count as they are before the first epoch; the check says that they change."""
    with ndfeed.loader(ds, 4, shuffle=Remembering()) as loader:
        expected = rows_in(loader)
        state = loader.state_dict()
        loader.load_state_dict(state)
    with ndfeed.loader(ds, 4, shuffle=Remembering()) as other:
        other.load_state_dict(state)
        assert rows_in(other) == expected
    with pytest.raises(ndfeed.OrderError, match=r"order Remembering: .*change in rows\(\).*spec"):
        ndfeed.check_order(Remembering())


def test_the_check_names_an_attribute_that_cannot_be_told_from_another():
    """A state could not refuse another one; ``spec`` can say what counts."""
    for opaque in (np.random.default_rng(1), [np.random.default_rng(1)], Inner(object())):
        order = Backwards()
        order.source = opaque
        with pytest.raises(ndfeed.OrderError, match=r"order Backwards: .*'source'.*write spec"):
            ndfeed.check_order(order)
    assert ndfeed.check_order(Scaled(3)) == (1000, 0, 0)


def test_an_error_in_rows_names_the_order(ds):
    """A piece of an epoch may be empty; what rows() raises then says nothing by itself."""
    with pytest.raises(
        ndfeed.OrderError,
        match=r"order First: rows\(\) raised IndexError for 0 positions: .*; return an empty array",
    ) as caught:
        ndfeed.check_order(First(), 1)
    assert isinstance(caught.value.__cause__, IndexError)
    broken = Scaled("text")
    with pytest.raises(
        ndfeed.OrderError, match=r"order Scaled: rows\(\) raised .* for 30 positions"
    ):
        rows_in(ndfeed.loader(ds, 4, shuffle=broken))
