"""Batches as tensors: the same as arrays, in the same memory, in the same order."""

import inspect
import json
import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from loader.making import MADE, collect, large_rows, made, numbers  # noqa: E402
from torch_making import images, labels  # noqa: E402

import ndfeed  # noqa: E402
import ndfeed.torch  # noqa: E402


def assert_same(found, expected):
    """A tensor for every array, with its values."""
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        found, expected = list(found.values()), list(expected.values())
    if isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
        return
    assert isinstance(found, torch.Tensor)
    assert found.numpy().dtype == expected.dtype
    np.testing.assert_array_equal(found.numpy(), expected)


@pytest.mark.filterwarnings("ignore:.*Fortran order")
@pytest.mark.parametrize("name", MADE)
def test_batches_are_those_of_arrays(tmp_path, name):
    """Whatever the files, the order and the values are those of ndfeed.loader."""
    ds = made(tmp_path / "files", name)
    with ndfeed.loader(ds, 5, shuffle=True, seed=7) as arrays:
        expected = [list(arrays), list(arrays)]
    with ndfeed.torch.loader(ds, 5, shuffle=True, seed=7) as loader:
        assert len(loader) == len(expected[0])
        assert_same([list(loader), list(loader)], expected)
        assert loader.epoch == 2


@pytest.mark.parametrize("shuffle", [False, ndfeed.Blocks(rows=4, window=2)])
@pytest.mark.parametrize("shard", [(0, 1), (1, 3)])
@pytest.mark.parametrize("drop_last", [False, True])
def test_words_mean_the_same(tmp_path, shuffle, shard, drop_last):
    """Every word is passed on."""
    words = {"shuffle": shuffle, "shard": shard, "drop_last": drop_last, "seed": 3}
    ds = images(tmp_path)

    assert labels(ndfeed.torch.loader(ds, 7, **words)) == labels(ndfeed.loader(ds, 7, **words))


def test_words_are_the_same():
    """The copy of the signature must not drift."""
    ours = inspect.signature(ndfeed.torch.loader).parameters
    theirs = inspect.signature(ndfeed.loader).parameters

    assert list(ours)[: len(theirs)] == list(theirs)
    assert [ours[n].default for n in theirs] == [p.default for p in theirs.values()]
    assert list(ours)[len(theirs) :] == ["device", "convert", "resident"]


def test_fields_make_tuples(tmp_path):
    """In the order they are named in."""
    label, image = next(iter(ndfeed.torch.loader(images(tmp_path), 3, fields=("label", "image"))))

    assert label.tolist() == [0, 1, 2]
    assert image.shape == (3, 4, 4, 3)


def test_memory_is_the_batch_s(tmp_path):
    """One copy, from the file: the tensor sees the array, and may be written to."""
    ds = large_rows(tmp_path, 8)
    with ndfeed.torch.loader(ds, 4) as loader:
        batch = next(iter(loader))
        seen = batch["image"].numpy()
        batch["image"].fill_(9)

        assert seen.flags.writeable
        assert (seen == 9).all()
        assert batch["image"].is_contiguous()


def test_kept_batches_never_change(tmp_path):
    """Memory is used again only when no tensor sees it any more."""
    ds = large_rows(tmp_path, 64)
    kept = []
    with ndfeed.torch.loader(ds, 4, shuffle=True, memory="4MB") as loader:
        count = 0
        while count < 1000:
            for batch in loader:
                count += 1
                if count % 97 == 0:
                    kept.append((batch["image"][:, :2].detach(), batch["label"].tolist()))
        buffers = loader.report().buffers
    for view, rows in kept:
        assert view[:, 1].tolist() == rows
    assert len(kept) == 10
    assert buffers < 100  # and it is used again


def test_epoch_begins_with_its_first_batch(tmp_path):
    """Frameworks call iter() to look at a loader: that must not cost an epoch."""
    loader = ndfeed.torch.loader(images(tmp_path), 10, shuffle=True)
    iter(loader), iter(loader)
    assert loader.epoch == 0
    first = labels(loader)
    for _ in loader:
        break
    assert loader.epoch == 1
    batches = iter(loader)
    assert loader.epoch == 1
    next(batches)
    assert loader.epoch == 2
    loader.epoch = 0

    assert labels(batches) != first[10:]
    assert loader.epoch == 0
    assert labels(loader) == first


def test_epoch_can_be_set_behind_iter(tmp_path):
    """As Lightning does."""
    ds = images(tmp_path)
    loader, other = (ndfeed.torch.loader(ds, 10, shuffle=True) for _ in range(2))
    batches = iter(loader)
    loader.batch_sampler.sampler.set_epoch(4)
    other.epoch = 4

    assert labels(batches) == labels(other)


def test_a_second_pass_ends_the_first(tmp_path):
    """Two at a time would be two places in one order."""
    loader = ndfeed.torch.loader(images(tmp_path), 10)
    first = iter(loader)
    next(first)
    next(iter(loader))

    with pytest.raises(RuntimeError, match="another pass"):
        next(first)


@pytest.mark.parametrize("taken", [0, 1, 9, 10])
def test_resume(tmp_path, taken):
    """A state goes through JSON, and into a loader of arrays as well."""
    ds = images(tmp_path)
    loader = ndfeed.torch.loader(ds, 10, shuffle=True, seed=8)
    labels(loader)
    batches = iter(loader)
    for _ in range(taken):
        next(batches)
    state = json.loads(json.dumps(loader.state_dict()))
    rest, after = labels(batches), labels(loader)

    for make in (ndfeed.torch.loader, ndfeed.loader):
        other = make(ds, 25, shuffle=True)
        other.load_state_dict(state)
        assert labels(other) == rest
        assert labels(other) == after


def test_state_of_other_data_is_refused(tmp_path):
    """Before anything is read."""
    loader = ndfeed.torch.loader(images(tmp_path / "a"), 10)
    other = ndfeed.torch.loader(numbers(tmp_path, 50), 10)

    with pytest.raises(ndfeed.ResumeError, match="other data"):
        other.load_state_dict(loader.state_dict())


def test_skipped_samples_and_the_report(tmp_path):
    """What a loader of arrays can tell, this one can."""
    for i in range(4):
        np.savez(tmp_path / f"{i}.npz", x=np.full(3, i))
    ds = ndfeed.open(tmp_path, sample="file")
    (tmp_path / "2.npz").write_bytes(b"")
    loader = ndfeed.torch.loader(ds, 4, on_error="skip")
    (batch,) = loader

    assert batch["x"][:, 0].tolist() == [0, 1, 3]
    assert loader.skipped[0][0] == 2
    assert loader.report().skipped == 1
    assert "samples left out" in repr(loader)
    assert isinstance(loader.order, ndfeed.Sequential)
    assert loader.batch_size == 4
    assert loader.dataset is ds


def test_errors_come_in_their_batch(tmp_path):
    """And the loader can be used again."""

    def broken(batch):
        if 13 in batch["label"]:
            raise ZeroDivisionError
        return batch

    ds = images(tmp_path).map(broken)
    with ndfeed.torch.loader(ds, 5) as loader:
        seen = []
        with pytest.raises(ZeroDivisionError):
            collect(loader, seen, "label")

        assert seen == list(range(10))
        assert next(iter(loader))["label"].tolist() == list(range(5))


@pytest.mark.parametrize(
    ("words", "error", "text"),
    [
        ({"device": "meta"}, ValueError, "CUDA device"),
        ({"device": "nonsense"}, ValueError, "nonsense"),
        ({"resident": True}, ValueError, "in_memory"),
        ({"on_error": "no"}, ValueError, "on_error"),
        ({"ragged": "no"}, ValueError, "'nested', got 'no'"),
        ({"ragged": "nested", "fields": ("no",)}, ndfeed.FieldError, "no field 'no'"),
        ({"fields": ("image", "no")}, ndfeed.FieldError, "no field 'no'"),
        ({"shard": (2, 2)}, ValueError, "rank"),
        ({"threads": 0}, ValueError, "threads"),
        ({"convert": {"no": None}}, ndfeed.FieldError, "no field 'no'"),
        ({"convert": {"image": torch.float32}}, TypeError, "a Convert for each"),
    ],
)
def test_wrong_words_are_refused_at_once(tmp_path, words, error, text):
    """Nothing waits for the first batch."""
    with pytest.raises(error, match=text):
        ndfeed.torch.loader(images(tmp_path), 5, **words)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_no_cuda(tmp_path):
    """The way out is in the message."""
    with pytest.raises(RuntimeError, match="device=None gives CPU tensors"):
        ndfeed.torch.loader(images(tmp_path), 5, device="cuda")


def test_not_a_dataset():
    """Somebody will pass a path."""
    with pytest.raises(TypeError, match=r"ndfeed\.open"):
        ndfeed.torch.loader("x.npy", 5)


def test_import_ndfeed_does_not_import_torch():
    """And ndfeed.torch does."""
    code = (
        "import sys, ndfeed; before = 'torch' in sys.modules; import ndfeed.torch; "
        "print(before, 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=100
    )

    assert done.stdout == "False True\n", done.stderr


@pytest.mark.parametrize("name", ndfeed.torch.__all__)
def test_public_objects_have_a_docstring(name):
    """``help`` answers for everything a user can name."""
    thing = getattr(ndfeed.torch, name)
    members = vars(thing).items() if inspect.isclass(thing) else ()
    public = [
        value
        for key, value in members
        if key[0] != "_" and (inspect.isroutine(value) or isinstance(value, property))
    ]

    assert thing.__doc__
    assert all(inspect.getdoc(value) for value in public)
