"""What every framework's loader promises: the batches of ``ndfeed.loader``, in its own arrays."""

import copy
import inspect
import json
import pickle
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loader.making import MADE, collect, images, labels, made, numbers

import ndfeed

# Of how many samples, in batches of how many, for how many ranks; whole batches only, or not.
SHARES = {
    "n": st.integers(1, 300),
    "size": st.integers(1, 40),
    "world": st.integers(1, 3),
    "drop_last": st.booleans(),
}


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


class LoaderContract(IteratorContract):
    """Subclass in a test module, and say what is the framework's own.

    ``package`` is its package of ours, ``kind`` the class of its arrays, ``more`` the words that
    its loader has besides, and ``narrowed`` the types it holds NumPy's as, where they are others.
    """

    package = ndfeed
    kind: type = np.ndarray
    more: tuple[str, ...] = ()
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

    def test_words_are_the_same(self):
        """The copy of the signature must not drift. Only the ragged form may be another."""
        ours = inspect.signature(self.package.loader).parameters
        theirs = inspect.signature(ndfeed.loader).parameters
        same = [name for name in theirs if name != "ragged"]

        assert list(ours)[: len(theirs)] == list(theirs)
        assert [ours[n].default for n in same] == [theirs[n].default for n in same]
        assert tuple(ours)[len(theirs) :] == self.more

    def test_fields_make_tuples(self, tmp_path):
        """In the order they are named in."""
        loader = self.package.loader(images(tmp_path), 3, fields=("label", "image"))
        label, image = next(iter(loader))

        assert label.tolist() == [0, 1, 2]
        assert image.shape == (3, 4, 4, 3)

    def test_any_size_any_rank_and_the_state_at_any_batch(self, tmp_path_factory):
        """Short batches and empty ones come as they should, and only what was delivered counts."""

        @settings(max_examples=40)
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
        assert "samples left out" in repr(loader)
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
            [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=100
        )

        assert done.stdout == "False True\n", done.stderr

    def test_public_objects_have_a_docstring(self):
        """``help`` answers for everything a user can name."""
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
