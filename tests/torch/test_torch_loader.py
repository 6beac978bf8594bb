"""Batches as tensors: the same as arrays, in the same memory, in the same order."""

import inspect

import pytest

torch = pytest.importorskip("torch")

from loader_contract import ArgumentContract, EpochContract, Feed, LoaderContract  # noqa: E402
from loading.making import images, labels, large_rows  # noqa: E402

import ndfeed  # noqa: E402
import ndfeed.torch  # noqa: E402


class TestContract(LoaderContract):
    package = ndfeed.torch
    kind = torch.Tensor


class TorchFeed(Feed):
    make = staticmethod(ndfeed.torch.loader)


class TestEpochs(EpochContract):
    feed = TorchFeed
    package = ndfeed.torch
    more = ("device", "convert", "flip", "resident")


class TestArguments(ArgumentContract):
    make = staticmethod(ndfeed.torch.loader)


def test_the_ragged_form_is_that_of_arrays():
    """Also where none is said."""
    default = inspect.signature(ndfeed.torch.loader).parameters["ragged"].default

    assert default == inspect.signature(ndfeed.loader).parameters["ragged"].default


def test_what_a_data_loader_is_asked(tmp_path):
    """Frameworks look for it by name."""
    assert ndfeed.torch.loader(images(tmp_path), 4).batch_size == 4


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


@pytest.mark.parametrize(
    ("words", "error", "text"),
    [
        ({"device": "meta"}, ValueError, "CUDA device"),
        ({"device": "nonsense"}, ValueError, "nonsense"),
        ({"resident": True}, ValueError, "in_memory"),
        ({"ragged": "no"}, ValueError, "'nested', got 'no'"),
        ({"ragged": "nested", "fields": ("no",)}, ndfeed.FieldError, "no field 'no'"),
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
