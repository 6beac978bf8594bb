"""What every framework's loader promises: the batches of ``ndfeed.loader``, in its own arrays.

Two contracts hold for all five of NumPy, torch, TensorFlow, Keras and JAX:

- ``ArgumentContract``: what the arguments mean and how wrong ones are refused: ``fields`` of any
  structure, padding, and arguments of other libraries.
- ``EpochContract``: which samples come, in which order, in which of several runs. Each framework
  supplies a ``Feed``, which drives its loader the way its users do.

Two more hold for the loaders that are iterated as ``ndfeed.loader`` is: NumPy's, torch's and JAX's.

- ``IteratorContract``: several iterators of one loader, and copies of it.
- ``LoaderContract``: all of that, for the loader of a framework.

``ndfeed.tf.dataset`` and ``ndfeed.keras.dataset`` cannot keep these two. A ``tf.data.Dataset`` and
a ``keras.utils.PyDataset`` have no position of their own: TensorFlow and Keras prefetch, so only
``ndfeed.tf.State`` and ``ndfeed.keras.Resume`` know what was used. Neither has a ``close()``, and
a ``tf.data.Dataset`` can be neither copied nor pickled.
"""

import copy
import gc
import inspect
import itertools
import json
import pickle
import subprocess
import sys
from typing import NamedTuple

import numpy as np
import pytest
from children import examples
from growing import expected as numbers_in
from growing import write
from hypothesis import given, settings
from hypothesis import strategies as st
from loading.making import (
    MADE,
    collect,
    cropped,
    eventually,
    images,
    labels,
    made,
    numbers,
    ragged,
    threads,
    with_half,
)

import ndfeed

# Of how many samples, in batches of how many, for how many ranks; whole batches only, or not.
SHARES = {
    "n": st.integers(1, 300),
    "size": st.integers(1, 40),
    "world": st.integers(1, 3),
    "drop_last": st.booleans(),
}


LENGTHS = [1, 12, 5, 30, 2, 7, 3, 19, 1, 4, 8, 15, 26, 6, 2, 9, 11, 3, 21, 10, 5, 2, 13, 4] * 2


def numbers_of(batches):
    """The numbers of the samples of ``ragged``, batch by batch."""
    return [np.asarray(batch["n"]).tolist() for batch in batches]


def pickled(loader):
    """What comes out of another process."""
    return pickle.loads(pickle.dumps(loader))


class IteratorContract:
    """What holds for the iterators and copies of every loader; ``package`` makes the loader."""

    package = ndfeed

    def test_iterators_are_independent(self, tmp_path):
        """As those of a list: each is an epoch, whole, whoever else is in the middle of one."""
        ds = images(tmp_path)
        loader, expected = (p.loader(ds, 10, shuffle=True) for p in (self.package, ndfeed))
        epochs = [labels(expected) for _ in range(5)]
        first = iter(loader)
        seen = labels([next(first)])
        second = labels(loader)
        assert (seen + labels(first), second) == (epochs[0], epochs[1])
        left, right = zip(*zip(loader, loader, strict=True), strict=True)

        assert (labels(left), labels(right)) == (epochs[2], epochs[3])
        assert labels(loader) == epochs[4]
        assert loader.epoch == 5

    def test_the_loader_stands_where_the_iterator_begun_last_stands(self, tmp_path):
        """Its state is that of one place, whatever others do."""
        loader = self.package.loader(images(tmp_path), 10, shuffle=True)
        first, second = iter(loader), iter(loader)
        next(first), next(second), next(second), next(first), next(first)
        state = loader.state_dict()
        assert (state["epoch"], state["samples"], loader.epoch) == (1, 20, 1)
        list(first)
        assert loader.state_dict() == state
        list(second)

        assert (loader.state_dict()["epoch"], loader.state_dict()["samples"]) == (2, 0)

    @pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, pickled])
    def test_copies_go_on_where_it_stands(self, tmp_path, again):
        """Without its threads, and without a say in what it does."""
        loader = self.package.loader(images(tmp_path), 10, shuffle=True, seed=3)
        fresh = again(loader)
        first = labels(loader)
        batches = iter(loader)
        next(batches), next(batches)
        within = again(loader)
        rest = labels(batches)
        for _ in loader:
            break
        left = again(loader)
        last = labels(loader)

        assert labels(fresh) == first
        assert (labels(within), labels(left)) == (rest, last)
        assert within.epoch == 2
        assert (loader.epoch, len(left)) == (4, len(loader))


class Pair(NamedTuple):
    """A structure with a name of its own."""

    inputs: object
    target: object


# Structures of the fields of ``images``.
STRUCTURES = (
    "image",
    ("label",),
    ("label", "image"),
    ["image", "label"],
    {"y": "label", "x": "image"},
    ({"a": "image", "b": "label"}, "label"),
    ("image", "image"),
    ({"in": ["image", ("label",)]}, "label", "label"),
    Pair({"x": "image"}, "label"),
)
# What people write who come from other loaders, and what the answer must name.
FOREIGN = {
    "num_workers": "threads= .* processes=",
    "collate_fn": r"ds\.map",
    "generator": "seed=",
    "worker_init_fn": "seed=",
    "pin_memory": "device=",
    "prefetch_factor": "memory=",
    "persistent_workers": "live from one epoch to the next",
    "sampler": "shuffle=",
    "batch_sampler": "shuffle=",
    "buffer_size": "shuffle=True",
    "drop_remainder": "drop_last=",
    "world_size": r"shard=\(rank, world\)",
    "padded_shapes": "pad_to=",
    "transform": r"ds\.map",
    "batchsize": "did you mean batch_size=",
    "xyzzy": "it takes ds, batch_size, shuffle, ",
}


def built(nest, batch, listed=list):
    """What a structure makes of a batch: written down again, as simply as can be."""
    if isinstance(nest, str):
        return batch[nest]
    if isinstance(nest, dict):
        return {key: built(one, batch, listed) for key, one in nest.items()}
    items = [built(one, batch, listed) for one in nest]
    return Pair(*items) if isinstance(nest, Pair) else (listed if nest == [*nest] else tuple)(items)


class ArgumentContract:
    """What holds for the arguments of every entry function of every framework.

    ``make`` is that function, ``listed`` what a list in ``fields`` becomes, ``padded`` what asks
    for padding.
    """

    make = staticmethod(ndfeed.loader)
    listed: type = list
    padded: dict[str, str] = {"ragged": "pad"}  # noqa: RUF012 - never changed

    def alike(self, found, expected):
        """Are both the same nest, to the type of every container, of arrays with equal values?"""
        if isinstance(expected, dict | tuple | list):
            assert type(found) is type(expected)
            assert len(found) == len(expected)
            if isinstance(expected, dict):
                assert list(found) == list(expected)
                found, expected = found.values(), expected.values()
            for one, other in zip(found, expected, strict=True):
                self.alike(one, other)
            return
        np.testing.assert_array_equal(np.asarray(found), np.asarray(expected))

    @pytest.mark.parametrize("memory", [None, 3_000])
    @pytest.mark.parametrize("nest", STRUCTURES, ids=repr)
    def test_batches_have_the_structure_of_fields(self, tmp_path, nest, memory):
        """Any nest of names is the same nest of arrays, also if small batches travel together."""
        ds = images(tmp_path)
        words = {"shuffle": True, "seed": 3, "memory": memory}
        found = list(self.make(ds, 7, fields=nest, **words))
        expected = list(ndfeed.loader(ds, 7, shuffle=True, seed=3))

        assert len(found) == len(expected) == 15
        for one, other in zip(found, expected, strict=True):
            self.alike(one, built(nest, other, self.listed))

    @pytest.mark.parametrize("words", [{}, {"processes": 1}])
    def test_structures_behind_a_map(self, tmp_path, words):
        """Of what the function makes; what it makes besides goes nowhere, be it text."""
        nest = {"x": ("half", "label"), "y": "label"}
        ds = images(tmp_path).map(with_half)
        found = list(self.make(ds, 30, fields=nest, **words))

        for one, other in zip(found, ndfeed.loader(ds, 30), strict=True):
            self.alike(one, built(nest, other))

    def test_lengths_are_parts_of_structures_too(self, tmp_path):
        """What padding adds has a name, which may stand anywhere in the nest."""
        ds = ragged(tmp_path / "r", [3, 1, 2, 5])
        (found,) = self.make(ds, 4, fields=({"x": "x", "mask": "x_length"}, "n"), **self.padded)
        x, n = found

        assert np.asarray(x["x"]).shape == (4, 5)
        assert np.asarray(x["mask"]).tolist() == [3, 1, 2, 5]
        assert np.asarray(n).tolist() == [0, 1, 2, 3]

    @pytest.mark.parametrize(
        ("fields", "error", "text"),
        [
            (
                {"label", "image"},
                TypeError,
                r"which a set does not have; write \('image', 'label'\)",
            ),
            (({"label"}, "image"), TypeError, r"which a set does not have; write \('label',\)"),
            (("image", 3), TypeError, r"fields must be a tuple of names.*got \('image', 3\)"),
            ((None, "image"), TypeError, "fields must be a tuple of names"),
            ({1: "image"}, TypeError, "a dict's keys are text"),
            (b"image", TypeError, "fields must be a tuple of names"),
            ((), ValueError, "fields must name at least one field"),
            (({}, []), ValueError, "fields must name at least one field"),
            ({"image": "x"}, ndfeed.FieldError, "no field 'x'; the fields are 'image', 'label'"),
            ("x", ndfeed.FieldError, "no field 'x'"),
        ],
    )
    def test_what_is_no_structure_is_refused(self, tmp_path, fields, error, text):
        """In one line; a set above all, whose order is another in every process."""
        with pytest.raises(error, match=text) as caught:
            self.make(images(tmp_path), 5, fields=fields)

        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize("packed", [False, True])
    @pytest.mark.parametrize("way", [8, (8,), {"x": 8}])
    def test_pad_to_gives_all_batches_one_shape(self, tmp_path, way, packed):
        """With zeros, or with what is asked for; lengths stay what they are."""
        ds = ragged(tmp_path / "r", [3, 1, 2, 5, 4])
        ds = ndfeed.pack(ds, tmp_path / "packed") if packed else ds
        fields = ("x", "x_length")
        for value in (None, -100, {"x": -100}):
            found = list(
                self.make(ds, 2, fields=fields, pad_to=way, pad_value=value, **self.padded)
            )
            x = np.concatenate([np.asarray(batch[0]) for batch in found])
            lengths = np.concatenate([np.asarray(batch[1]) for batch in found])
            beyond = np.arange(8) >= lengths[:, None]

            assert [np.asarray(batch[0]).shape for batch in found] == [(2, 8), (2, 8), (1, 8)]
            assert lengths.tolist() == [3, 1, 2, 5, 4]
            assert (x[beyond] == (0 if value is None else -100)).all()
            np.testing.assert_array_equal(
                x[~beyond], np.concatenate([ds[i]["x"] for i in range(len(ds))])
            )

    def test_pad_value_alone(self, tmp_path):
        """To the longest of each batch, as ever."""
        ds = ragged(tmp_path / "r", [3, 1, 2, 5])
        found = list(self.make(ds, 2, fields="x", pad_value=7, **self.padded))

        assert [np.asarray(x).shape for x in found] == [(2, 3), (2, 5)]
        assert np.asarray(found[0])[1].tolist() == [100, 7, 7]

    def test_padding_behind_a_map(self, tmp_path):
        """Lengths that a function makes, one sample at a time or in lists, are padded as well."""
        for ds in (
            numbers(tmp_path, 6, width=9).map(cropped, batched=False),
            ragged(tmp_path / "r", [1, 2, 3, 1, 2, 3]).map(dict),
        ):
            words = {"pad_to": {"x": 4}, "pad_value": {"x": 9}} | self.padded
            found = list(self.make(ds, 3, fields="x", **words))

            assert [np.asarray(x).shape for x in found] == [(3, 4), (3, 4)]
            assert [(np.asarray(x)[0, 1:] == 9).all() for x in found] == [True, True]

    @pytest.mark.parametrize(
        ("words", "error", "text"),
        [
            ({"pad_to": {"y": 8}}, ndfeed.FieldError, "no field 'y'"),
            ({"pad_to": {"n": 8}}, ValueError, "pad_to is for fields whose samples differ"),
            ({"pad_value": {"n": 8}}, ValueError, "pad_value is for fields whose samples differ"),
            ({"pad_to": 8, "fields": "n"}, ValueError, "samples differ in length, and none do"),
            ({"pad_to": {"x": (8, 8)}}, ValueError, "a length for each of 1 axes"),
            ({"pad_to": -1}, ValueError, "pad_to takes a length"),
            ({"pad_to": "long"}, ValueError, "pad_to takes a length"),
            ({"pad_to": 4}, ndfeed.SchemaError, r"003\.npz: field 'x' has a sample of \(5,\)"),
            ({"pad_value": "no"}, TypeError, "pad_value takes a number, got 'no'"),
            ({"pad_value": 1e300}, ValueError, "does not fit field 'x', which has dtype float32"),
        ],
    )
    def test_wrong_padding_is_refused_at_once(self, tmp_path, words, error, text):
        """Headers say how long samples are, and types what they hold."""
        with pytest.raises(error, match=text):
            self.make(ragged(tmp_path / "r", [3, 1, 2, 5]), 2, **(self.padded | words))

    @pytest.mark.parametrize("name", FOREIGN)
    def test_arguments_of_others_are_answered_with_ours(self, tmp_path, name):
        """The error is Python's own, and says what to write instead."""
        with pytest.raises(TypeError, match=f"argument {name!r}: .*{FOREIGN[name]}") as caught:
            self.make(images(tmp_path), 5, **{name: None})

        assert "\n" not in str(caught.value)

    def test_the_signature_stays_whole(self):
        """For help, editors and type checkers: nothing passes through ``**kwargs``."""
        parameters = inspect.signature(self.make).parameters

        assert list(parameters)[:2] == ["ds", "batch_size"]
        assert {"fields", "pad_to", "pad_value", "seed"} <= set(parameters)
        assert not any(p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL) for p in parameters.values())
        assert "``fields``" in self.make.__doc__


class Feed:
    """A loader under test, driven as its users drive it. This one drives ``ndfeed.loader``.

    ``state`` is that of another run, which this one resumes.
    """

    make = staticmethod(ndfeed.loader)

    def __init__(self, ds, batch_size, state=None, **arguments):
        self.data = self.make(ds, batch_size, **arguments)
        if state is not None:
            self.data.load_state_dict(state)

    def __iter__(self):
        """Iterate over one epoch: the next one, however many iterators there are."""
        return iter(self.data)

    def epoch(self):
        """Run the next epoch, or the rest of one, and return its batches."""
        return list(self.data)

    def begin(self, count):
        """Run so many batches of the next epoch; return them and the state to resume from."""
        batches = iter(self.data)
        return list(itertools.islice(batches, count)), self.data.state_dict()

    @property
    def skipped(self):
        """The samples that ``on_error="skip"`` left out: rows and errors."""
        return self.data.skipped

    def close(self):
        """End the loader."""
        self.data.close()


class EpochContract:
    """Which samples come, and when: the same for all five, whatever drives the loader.

    What a framework leaves no way to do is said here, once, by an attribute:

    - ``errors`` are the classes of errors that come out of a pass. TensorFlow turns every error
      of Python code into one of its own, which has our message in its text.
    - ``loops_advance`` is false for Keras, where ``fit`` advances the epochs: a loop over a
      ``PyDataset`` reads the epoch in progress, as often as one likes.
    - ``lacking`` are the arguments that do not apply. Keras has no ragged tensors: it always pads.
    - ``more`` are the arguments that a framework adds.
    """

    feed = Feed
    package = ndfeed
    errors: tuple[type[Exception], ...] = (ndfeed.Error,)
    loops_advance = True
    lacking: tuple[str, ...] = ()
    more: tuple[str, ...] = ()

    @pytest.mark.parametrize("shuffle", [False, True, ndfeed.Blocks(rows=4, window=2)], ids=str)
    def test_an_epoch_has_every_sample_once(self, tmp_path, shuffle):
        """None twice and none left out; only the last batch may be short."""
        batches = self.feed(images(tmp_path), 7, shuffle=shuffle).epoch()

        assert [len(batch["label"]) for batch in batches] == [7] * 14 + [2]
        assert sorted(labels(batches)) == list(range(100))
        assert (labels(batches) == list(range(100))) == (shuffle is False)

    def test_the_same_seed_gives_the_same_batches(self, tmp_path):
        """Row for row and value for value those of NumPy, in every epoch; another seed, others."""
        ds = images(tmp_path)
        feed, other = (self.feed(ds, 7, shuffle=True, seed=seed) for seed in (5, 6))
        expected = ndfeed.loader(ds, 7, shuffle=True, seed=5)
        for _ in range(3):
            found = feed.epoch()
            for one, batch in zip(found, expected, strict=True):
                assert list(one) == list(batch)
                for name, values in batch.items():
                    np.testing.assert_array_equal(np.asarray(one[name]), values)

        assert labels(other.epoch()) != labels(ndfeed.loader(ds, 7, shuffle=True, seed=5))

    def test_the_order_says_how_well_it_mixes(self, tmp_path):
        """In every framework the same, and the order is still the one that was asked for."""
        ds, order = images(tmp_path), ndfeed.Blocks(rows=4, window=2)
        feed = self.feed(ds, 10, shuffle=order)
        found = feed.data.order

        assert found == order
        assert isinstance(found, ndfeed.Blocks)
        assert found.mixing == ndfeed.loader(ds, 10, shuffle=order).order.mixing
        assert (found.mixing.batch, found.mixing.parts) == (10, 25)
        assert f"  mixing: {found.mixing}" in f"{feed.data.report()}".splitlines()
        assert "of 25 blocks: if the rows of a block are alike, it is worth" in f"{found.mixing}"

    def test_drop_last_leaves_out_the_short_batch(self, tmp_path):
        """And nothing else: the others are the batches that come without it."""
        ds = images(tmp_path)
        found = self.feed(ds, 7, shuffle=True, drop_last=True).epoch()

        assert [len(batch["label"]) for batch in found] == [7] * 14
        assert labels(found) == labels(self.feed(ds, 7, shuffle=True).epoch())[:98]

    @pytest.mark.parametrize("size", [10, 25])
    @pytest.mark.parametrize("taken", [0, 3, 9])
    def test_a_resumed_run_is_the_uninterrupted_one(self, tmp_path, taken, size):
        """From the middle of the second epoch; with other batches, too. States are NumPy's."""
        ds = images(tmp_path)
        feed = self.feed(ds, 10, shuffle=True, seed=8)
        whole = ndfeed.loader(ds, 10, shuffle=True, seed=8)
        expected = [labels(whole) for _ in range(3)]
        first = labels(feed.epoch())
        seen, state = feed.begin(taken)
        state = json.loads(json.dumps(state))
        resumed = self.feed(ds, size, state=state, shuffle=True)
        rest, after = labels(resumed.epoch()), labels(resumed.epoch())

        assert [first, labels(seen) + rest, after] == expected
        assert (state["epoch"], state["samples"]) == (1, 10 * taken)
        numpy = Feed(ds, size, state=state, shuffle=True)
        assert [labels(numpy.epoch()), labels(numpy.epoch())] == [rest, after]

    def test_a_mixture_resumes_with_the_same_weights_and_with_others(self, tmp_path):
        """Epochs of different lengths, left in the middle of one; every batch is NumPy's."""
        sources = {"web": images(tmp_path / "a", 60), "code": images(tmp_path / "b", 20)}
        stages = {0: [2, 1], 2: [1, 1]}
        ds = ndfeed.mix(sources, weights=stages, end="last", source="source")

        def told(batches):
            pairs = [(np.asarray(b["label"]), np.asarray(b["source"])) for b in batches]
            return [
                (a, b) for one in pairs for a, b in zip(*map(np.ndarray.tolist, one), strict=True)
            ]

        whole = ndfeed.loader(ds, 10, shuffle=True, seed=8)
        expected = [told(whole) for _ in range(3)]
        feed = self.feed(ds, 10, shuffle=True, seed=8)
        first = told(feed.epoch())
        seen, state = feed.begin(4)
        state = json.loads(json.dumps(state))
        resumed = self.feed(ds, 16, state=state, shuffle=True)
        assert [first, told(seen) + told(resumed.epoch()), told(resumed.epoch())] == expected
        assert [len(one) for one in expected] == [90, 90, 120]

        other = ndfeed.mix(sources, weights=[1, 3], end="last", source="source")
        changed, numpy = (make(other, 16, state=state, shuffle=True) for make in (self.feed, Feed))
        for _ in range(2):
            assert told(changed.epoch()) == told(numpy.epoch())

    @pytest.mark.parametrize("drop_last", [False, True])
    def test_ranks_together_see_every_sample_once(self, tmp_path, drop_last):
        """Each has its share of every global batch, and all have as many batches."""
        ds = images(tmp_path)
        words = {"shuffle": True, "seed": 4, "drop_last": drop_last}
        found = [self.feed(ds, 7, shard=(rank, 3), **words).epoch() for rank in range(3)]
        expected = labels(ndfeed.loader(ds, 21, **words))

        assert len({len(one) for one in found}) == 1
        assert sorted(label for one in found for label in labels(one)) == sorted(expected)
        assert len(expected) == (84 if drop_last else 100)

    def test_a_budget_of_tokens_makes_the_same_batches(self, tmp_path):
        """Of similar length and within the budget, each sample once; as many as were announced."""
        ds = ragged(tmp_path / "r", LENGTHS)
        words = {"tokens": 40, "shuffle": True, "seed": 3}
        feed, expected = self.feed(ds, None, **words), ndfeed.loader(ds, **words)
        for _ in range(2):
            found = numbers_of(feed.epoch())
            assert found == numbers_of(expected)
            assert len(found) == len(expected)
            assert sorted(itertools.chain(*found)) == list(range(len(LENGTHS)))
            assert all(max(LENGTHS[n] for n in some) * len(some) <= 40 for some in found)
        assert len({len(some) for some in found}) > 2

    @pytest.mark.parametrize(
        "then", [{"tokens": 40}, {"tokens": 64}, {"batch_size": 5}, {"batch_size": 40}], ids=str
    )
    def test_a_run_by_length_resumes(self, tmp_path, then):
        """With the same budget the same batches remain, with another one the same samples.

        From the middle of the second epoch. With large batches it has more of them than others.
        """
        ds = ragged(tmp_path / "r", LENGTHS)
        words = {"shuffle": ndfeed.Buckets("x"), "seed": 3}
        feed = self.feed(ds, None, tokens=40, **words)
        whole = ndfeed.loader(ds, tokens=40, **words)
        expected = [numbers_of(whole) for _ in range(3)]
        assert numbers_of(feed.epoch()) == expected[0]
        seen, state = feed.begin(4)
        again = {"batch_size": None} | then
        resumed = self.feed(ds, state=json.loads(json.dumps(state)), **again, **words)
        rest, after = numbers_of(resumed.epoch()), numbers_of(resumed.epoch())

        assert numbers_of(seen) == expected[1][:4]
        if then == {"tokens": 40}:
            assert [rest, after] == [expected[1][4:], expected[2]]
        left = sorted(itertools.chain(*expected[1][4:]))
        assert sorted(itertools.chain(*rest)) == left
        assert sorted(itertools.chain(*after)) == list(range(len(LENGTHS)))

    def test_two_iterators_do_not_disturb_each_other(self, tmp_path):
        """Each is one whole epoch, whatever the other does in between."""
        ds = images(tmp_path)
        feed = self.feed(ds, 10, shuffle=True)
        loader = ndfeed.loader(ds, 10, shuffle=True)
        expected = [labels(loader), labels(loader)]
        first = iter(feed)
        begun = [next(first), next(first)]
        second = iter(feed)
        other = [next(second)]
        found = [labels(begun + list(first)), labels(other + list(second))]

        assert found == (expected if self.loops_advance else [expected[0]] * 2)

    def test_an_error_names_the_file(self, tmp_path):
        """In the batch that it belongs to, with those before it delivered."""
        ds = ragged(tmp_path / "r", [2] * 12).select("n")
        (tmp_path / "r" / "007.npz").write_bytes(b"")
        seen = []

        with pytest.raises(self.errors, match=r"007\.npz"):
            collect(self.feed(ds, 3), seen, "n")
        assert seen == list(range(6))

    def test_skipped_samples_are_listed(self, tmp_path):
        """By row, with the error; the rest of their batch is delivered."""
        ds = ragged(tmp_path / "r", [2] * 6).select("n")
        (tmp_path / "r" / "004.npz").write_bytes(b"")
        feed = self.feed(ds, 3, on_error="skip")
        found = [np.asarray(batch["n"]).tolist() for batch in feed.epoch()]

        assert found == [[0, 1, 2], [3, 5]]
        ((row, error),) = feed.skipped
        assert row == 4
        assert "004.npz" in error

    def test_closing_leaves_no_thread(self, tmp_path):
        """Also in the middle of an epoch."""
        before = set(threads())
        feed = self.feed(images(tmp_path, n=2000), 7, shuffle=True)
        batches = iter(feed)
        next(batches), next(batches)
        assert set(threads()) - before
        del batches
        feed.close()
        del feed

        assert eventually(lambda: gc.collect() is None or set(threads()) <= before)

    def test_arguments_are_those_of_the_loader(self):
        """Copies of a signature must not drift. Only the default of ``ragged`` may differ."""
        ours = inspect.signature(self.feed.make).parameters
        theirs = inspect.signature(ndfeed.loader).parameters
        same = [name for name in theirs if name not in self.lacking]
        compared = [name for name in same if name != "ragged"]

        assert list(ours)[: len(same)] == same
        assert [ours[n].default for n in compared] == [theirs[n].default for n in compared]
        assert tuple(ours)[len(same) :] == self.more

    def test_public_objects_have_a_docstring(self):
        """``help`` answers for everything that a user can name."""
        for name in self.package.__all__:
            thing = getattr(self.package, name)
            members = vars(thing).items() if inspect.isclass(thing) else ()
            public = [
                value
                for key, value in members
                if key[0] != "_" and (inspect.isroutine(value) or isinstance(value, property))
            ]

            assert thing.__doc__, name
            assert all(inspect.getdoc(value) for value in public), name


class LoaderContract(IteratorContract):
    """Subclass in a test module, and say what is the framework's own.

    ``package`` is its package of ours, ``kind`` the class of its arrays, and ``narrowed`` the
    dtypes that it holds those of NumPy as, where they differ.
    """

    package = ndfeed
    kind: type = np.ndarray
    narrowed: dict[str, str] = {}  # noqa: RUF012 - never changed

    def same(self, found, expected):
        """Is there an array of the framework's for every one of NumPy's, with its values?"""
        if isinstance(expected, dict):
            assert list(found) == list(expected)
            found, expected = list(found.values()), list(expected.values())
        if isinstance(expected, list | tuple):
            assert len(found) == len(expected)
            for one, other in zip(found, expected, strict=True):
                self.same(one, other)
            return
        assert isinstance(found, self.kind)
        name = expected.dtype.name
        assert np.asarray(found).dtype.name == self.narrowed.get(name, name)
        np.testing.assert_array_equal(np.asarray(found), expected)

    @pytest.mark.filterwarnings("ignore:.*Fortran order")
    @pytest.mark.parametrize("name", MADE)
    def test_batches_are_those_of_arrays(self, tmp_path, name):
        """Whatever the files, the order and the values are those of ndfeed.loader."""
        ds = made(tmp_path / "files", name)
        with ndfeed.loader(ds, 5, shuffle=True, seed=7) as arrays:
            expected = [list(arrays), list(arrays)]
        with self.package.loader(ds, 5, shuffle=True, seed=7, ragged="list") as loader:
            assert len(loader) == len(expected[0])
            self.same([list(loader), list(loader)], expected)
            assert loader.epoch == 2

    @pytest.mark.parametrize("shuffle", [False, ndfeed.Blocks(rows=4, window=2)])
    @pytest.mark.parametrize("shard", [(0, 1), (1, 3)])
    @pytest.mark.parametrize("drop_last", [False, True])
    def test_words_mean_the_same(self, tmp_path, shuffle, shard, drop_last):
        """Every word is passed on."""
        words = {"shuffle": shuffle, "shard": shard, "drop_last": drop_last, "seed": 3}
        ds = images(tmp_path)

        assert labels(self.package.loader(ds, 7, **words)) == labels(ndfeed.loader(ds, 7, **words))

    def test_fields_make_tuples(self, tmp_path):
        """In the order they are named in."""
        loader = self.package.loader(images(tmp_path), 3, fields=("label", "image"))
        label, image = next(iter(loader))

        assert label.tolist() == [0, 1, 2]
        assert image.shape == (3, 4, 4, 3)

    def test_a_state_is_that_of_any_structure(self, tmp_path):
        """A run may go on with other fields in another nest: the order does not depend on them."""
        ds = images(tmp_path)
        batches = iter(self.package.loader(ds, 10, shuffle=True, fields=({"a": "image"}, "label")))
        seen = [np.asarray(next(batches)[1]).tolist() for _ in range(3)]
        loader = self.package.loader(ds, 10, shuffle=True, fields=("label", "image"))
        other = self.package.loader(ds, 10, shuffle=True, fields="label")
        first = iter(loader)
        next(first), next(first), next(first)
        state = json.loads(json.dumps(loader.state_dict()))
        other.load_state_dict(state)
        rest = [np.asarray(label).tolist() for label in other]

        assert [label for some in seen + rest for label in some] == labels(
            ndfeed.loader(ds, 10, shuffle=True)
        )

    @pytest.mark.parametrize("shuffle", [True, ndfeed.Sorted("data", reverse=True)], ids=str)
    def test_data_that_grows(self, tmp_path, shuffle):
        """Files that come are seen between epochs, and after a resume in the middle of one."""
        write(tmp_path, 10, 20, 30)

        def take(loader, count=None):
            batches = itertools.islice(loader, count)
            return [x for batch in batches for x in np.asarray(batch["data"]).tolist()]

        loader = self.package.loader(ndfeed.open(tmp_path, sample="row"), 3, shuffle=shuffle)
        seen = take(loader, 2)
        state = json.loads(json.dumps(loader.state_dict()))
        write(tmp_path, 5, 40)
        assert loader.refresh() == 8
        assert sorted(take(loader)) == numbers_in(5, 10, 20, 30, 40)
        ds = ndfeed.open(tmp_path, sample="row")
        arrays, other = (p.loader(ds, 4, shuffle=shuffle) for p in (ndfeed, self.package))
        for one in (arrays, other):
            one.load_state_dict(state, grown=True)
        rest = take(other, 1)
        assert other.state_dict() == (take(arrays, 1) and arrays.state_dict())
        last = self.package.loader(ds, 5, shuffle=shuffle)
        last.load_state_dict(other.state_dict())
        assert sorted(seen + rest + take(last)) == numbers_in(5, 10, 20, 30, 40)

    def test_any_size_any_rank_and_the_state_at_any_batch(self, tmp_path_factory):
        """Short batches and empty ones come as they should, and only what was delivered counts."""

        @settings(max_examples=examples(40))
        @given(**SHARES, stop=st.integers(0, 20))
        def agree(n, size, world, drop_last, stop):
            ds = numbers(tmp_path_factory.mktemp("n"), n)
            for rank in range(world):
                words = {"shuffle": True, "shard": (rank, world), "drop_last": drop_last}
                arrays, loader = (p.loader(ds, size, **words) for p in (ndfeed, self.package))
                self.same(list(loader), list(arrays))
                for _, mine, theirs in zip(range(stop), loader, arrays, strict=False):
                    self.same(mine, theirs)
                    assert loader.state_dict() == arrays.state_dict()

        agree()

    @pytest.mark.parametrize("taken", [0, 1, 9, 10])
    def test_resume(self, tmp_path, taken):
        """A state goes through JSON, to another batch size, and to a loader of arrays as well."""
        ds = images(tmp_path)
        loader = self.package.loader(ds, 10, shuffle=True, seed=8)
        expected = ndfeed.loader(ds, 10, shuffle=True, seed=8)
        labels(loader), labels(expected)
        batches = iter(loader)
        seen = labels([next(batches) for _ in range(taken)])
        state = json.loads(json.dumps(loader.state_dict()))
        rest, after = labels(batches), labels(loader)

        assert seen + rest == labels(expected)
        for make in (self.package.loader, ndfeed.loader):
            other = make(ds, 25, shuffle=True)
            other.load_state_dict(state)
            assert labels(other) == rest
            assert labels(other) == after

    def test_state_of_other_data_is_refused(self, tmp_path):
        """Before anything is read."""
        loader = self.package.loader(images(tmp_path / "a"), 10)
        other = self.package.loader(numbers(tmp_path, 50), 10)

        with pytest.raises(ndfeed.ResumeError, match="other data"):
            other.load_state_dict(loader.state_dict())

    def test_skipped_samples_and_the_report(self, tmp_path):
        """What a loader of arrays can tell, this one can."""
        for i in range(4):
            np.savez(tmp_path / f"{i}.npz", x=np.full(3, i))
        ds = ndfeed.open(tmp_path, sample="file")
        (tmp_path / "2.npz").write_bytes(b"")
        loader = self.package.loader(ds, 4, on_error="skip")
        (batch,) = loader

        assert batch["x"][:, 0].tolist() == [0, 1, 3]
        assert [row for row, _ in loader.skipped] == [2]
        assert loader.report().skipped == 1
        assert "samples skipped" in repr(loader)
        assert isinstance(loader.order, ndfeed.Sequential)
        assert loader.dataset is ds

    def test_errors_come_in_their_batch(self, tmp_path):
        """And the loader can be used again."""

        def broken(batch):
            if 13 in batch["label"]:
                raise ZeroDivisionError
            return batch

        ds = images(tmp_path).map(broken)
        with self.package.loader(ds, 5) as loader:
            seen = []
            with pytest.raises(ZeroDivisionError):
                collect(loader, seen, "label")

            assert seen == list(range(10))
            assert next(iter(loader))["label"].tolist() == list(range(5))

    @pytest.mark.parametrize(
        ("words", "error", "text"),
        [
            ({"on_error": "no"}, ValueError, "on_error"),
            ({"ragged": "no"}, ValueError, "ragged must be one of.*, got 'no'"),
            ({"fields": ("image", "no")}, ndfeed.FieldError, "no field 'no'"),
            ({"shard": (2, 2)}, ValueError, "rank"),
            ({"shard": 3}, TypeError, "shard must be"),
            ({"threads": 0}, ValueError, "threads"),
        ],
    )
    def test_wrong_words_are_refused_at_once(self, tmp_path, words, error, text):
        """Nothing waits for the first batch."""
        with pytest.raises(error, match=text):
            self.package.loader(images(tmp_path), 5, **words)

    def test_not_a_dataset(self):
        """Somebody will pass a path."""
        with pytest.raises(TypeError, match=r"ndfeed\.open"):
            self.package.loader("x.npy", 5)

    def test_import_ndfeed_does_not_import_the_framework(self):
        """And our package for it does."""
        package = self.package.__name__
        framework = package.rpartition(".")[2]
        code = (
            f"import sys, ndfeed; before = {framework!r} in sys.modules; import {package}; "
            f"print(before, {framework!r} in sys.modules)"
        )
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=250
        )

        assert done.stdout == "False True\n", done.stderr
