"""``ndfeed.torch.cuda_feed``: what needs no GPU, and deflated files inflated on a real one."""

import contextlib
import itertools
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from cuda.test_inflate import (  # noqa: E402
    STRATEGIES,
    compare_images,
    deflated,
    image,
    images,
    replaced,
    truncated,
)
from formats.making import Entry, archive, saved  # noqa: E402

import ndfeed  # noqa: E402
import ndfeed.torch  # noqa: E402
from ndfeed.cuda.driver import Refused  # noqa: E402
from ndfeed.cuda.nvcomp import load_nvcomp  # noqa: E402
from ndfeed.cuda.side import Sent  # noqa: E402
from ndfeed.loading.engine import BatchGroup  # noqa: E402
from ndfeed.loading.flips import DRAWN, Flips  # noqa: E402
from ndfeed.loading.options import Structure  # noqa: E402
from ndfeed.torch.batch_format import BatchFormat  # noqa: E402
from ndfeed.torch.cuda_feed import Feed, mark_used  # noqa: E402
from ndfeed.torch.torch_loader import adapter_for  # noqa: E402


def why_not():
    """Why these tests cannot run here."""
    if not torch.cuda.is_available():
        return "needs a CUDA device"
    try:
        load_nvcomp()
    except Refused as error:
        return f"{error}"
    return ""


needs_nvcomp = pytest.mark.skipif(bool(why_not()), reason=why_not())


def test_a_group_is_cut_into_batches():
    """They share its event; the last one may be short."""
    group = {"x": torch.arange(20).reshape(10, 2), "y": torch.arange(10)}
    event = object()
    first, second, third = Feed.send(None, BatchGroup(Sent(group, event), 3, 4))

    assert [one.event for one in (first, second, third)] == [event] * 3
    assert second.made["x"].tolist() == [[8, 9], [10, 11], [12, 13], [14, 15]]
    assert [one.made["y"].tolist() for one in (first, third)] == [[0, 1, 2, 3], [8, 9]]


def test_what_was_sent_is_flipped_where_it_is():
    """The bytes that say what to flip came with it, and are not sent once more."""
    feed = SimpleNamespace(
        _form=BatchFormat(
            ndfeed.open({"x": np.zeros((4, 3))}), Structure(), flips=Flips({"x": (0,)})
        ),
        _side=SimpleNamespace(event=None),
        _work=contextlib.nullcontext,
    )
    drawn = torch.tensor([0, 1, 0, 1], dtype=torch.uint8)
    sent = Feed._convert(feed, {"x": torch.arange(12).reshape(4, 3), DRAWN: drawn})

    assert sent.made["x"].tolist() == [[0, 1, 2], [5, 4, 3], [6, 7, 8], [11, 10, 9]]


class OnDevice(torch.Tensor):
    """A tensor that is said to be on a GPU, and notes who uses it."""

    is_cuda = True

    def record_stream(self, stream):
        self.used_by = stream


def test_ragged_samples_are_marked_as_used_as_well():
    """Otherwise the allocator gives their memory away while the consumer's kernels read it."""
    alone, *listed = (torch.zeros(length).as_subclass(OnDevice) for length in range(1, 5))
    mark_used({"x": alone, "r": listed, "s": ["text", "more"], "c": torch.zeros(2)}, "consumer's")
    assert [one.used_by for one in (alone, *listed)] == ["consumer's"] * 4


def test_random_crops_are_not_resident(tmp_path):
    """What is drawn for an epoch is none of the samples that were loaded."""
    np.save(tmp_path / "x.npy", np.zeros((3, 20, 20), np.uint8))
    ds = ndfeed.open(tmp_path / "x.npy", sample="row").crops({"data": (8, 8)}, each=2)
    form = BatchFormat(ds, Structure(), None, "list")
    with pytest.raises(ValueError, match="random crops are drawn in each; leave out resident"):
        adapter_for(ds, form, torch.device("cuda", 0), resident=True)


@pytest.fixture
def inflating(monkeypatch):
    """On the GPU, however small the dataset and however fast the CPU."""
    monkeypatch.setattr(Feed, "least", 0)
    monkeypatch.setattr(Feed, "compared", 8)
    monkeypatch.setattr(Feed, "prefer", staticmethod(lambda rates: True))


def on_the_gpu(test):
    """A test that inflates there, if it can."""
    return needs_nvcomp(pytest.mark.usefixtures("inflating")(test))


def compare(ds, batch_size, **options):
    """Compare two epochs with those of a loader of arrays; return the way they took."""
    expected = ndfeed.loader(ds, batch_size, **options)
    with ndfeed.torch.loader(ds, batch_size, device="cuda", **options) as loader:
        for _ in range(2):
            for batch, arrays in zip(loader, expected, strict=True):
                assert list(batch) == list(arrays)
                for name, values in arrays.items():
                    np.testing.assert_array_equal(batch[name].cpu().numpy(), values)
        return loader.report().way


@on_the_gpu
@pytest.mark.parametrize("processes", [0, 2])
@pytest.mark.parametrize("batch_size", [1, 33, 400])
def test_batches_have_the_right_values(tmp_path, batch_size, processes):
    ds = images(tmp_path, 400, (30, 31, 3))

    way = compare(ds, batch_size, shuffle=True, processes=processes)

    assert "inflated on cuda:0 by nvCOMP: about" in way


@on_the_gpu
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("level", [0, 1, 6, 9])
def test_any_array_by_any_deflate(tmp_path, strategy, level):
    """Stored blocks, fixed codes, nothing but a header; lengths that are no multiple of a word."""
    rng = np.random.default_rng(level)
    for number in range(120):
        fields = {
            "empty": np.zeros((0, 3), "<f4"),
            "odd": rng.integers(0, 1 + number, 997).astype("u1"),
            "noise": rng.random((41, 43)),
            "flat": np.full((300, 200), number, "<i2"),
            "label": np.int64(number),
        }
        members = (deflated(name, values, level, strategy) for name, values in fields.items())
        (tmp_path / f"{number:03}.npz").write_bytes(archive(*members))

    way = compare(ndfeed.open(tmp_path, sample="file"), 32, shuffle=True)

    assert "inflated on cuda:0 by nvCOMP: about" in way


@on_the_gpu
def test_fields_that_are_not_deflated_come_beside_the_others(tmp_path):
    for number in range(60):
        stored = Entry("stored.npy", saved(np.full(7, number)))
        turned = deflated("turned", np.asfortranarray(image(number, (9, 5))))
        content = archive(deflated("x", image(number)), stored, turned)
        (tmp_path / f"{number:02}.npz").write_bytes(content)
    np.save(tmp_path / "labels.npy", np.arange(60))
    ds = ndfeed.open({"file": tmp_path / "*.npz", "label": tmp_path / "labels.npy"})

    assert "inflated on cuda:0" in compare(ds, 16, shuffle=True)


@on_the_gpu
@pytest.mark.parametrize("busy", [False, True])
def test_every_value_is_right_at_any_pace(tmp_path, busy):
    """Compared on the device, which lags far behind Python where it is busy."""
    ds = images(tmp_path, 600, (64, 65, 3))
    truth = torch.from_numpy(np.stack([image(n, (64, 65, 3)) for n in range(600)])).cuda()
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    load = torch.rand(3000, 3000, device="cuda")
    kept = []
    with ndfeed.torch.loader(ds, 32, shuffle=True, device="cuda") as loader:
        batches = itertools.islice(itertools.chain.from_iterable(itertools.repeat(loader)), 300)
        for number, batch in enumerate(batches):
            for _ in range(4 if busy else 0):
                load = load @ load / load.norm()
            wrong += (batch["x"] != truth[batch["y"]]).any()
            if number % 37 == 0:
                kept.append(batch)
        way = loader.report().way
    for batch in kept:
        wrong += (batch["x"] != truth[batch["y"]]).any()

    assert int(wrong) == 0
    assert "inflated on cuda:0 by nvCOMP: about" in way


@on_the_gpu
def test_conversions_follow(tmp_path):
    ds = images(tmp_path, 100, (16, 16, 3))
    convert = {"x": ndfeed.torch.Convert(torch.float32, scale=1 / 255)}
    loader = ndfeed.torch.loader(ds, 10, fields=("x", "y"), device="cuda", convert=convert)
    for number, (x, y) in enumerate(loader):
        expected = np.stack([image(n, (16, 16, 3)) for n in range(10 * number, 10 * number + 10)])
        assert y.tolist() == list(range(10 * number, 10 * number + 10))
        np.testing.assert_allclose(x.cpu().numpy(), expected / np.float32(255), rtol=1e-6)
    loader.close()


@on_the_gpu
@pytest.mark.parametrize("damage", ["the checksum", "the data"])
def test_a_damaged_file_is_named_in_its_batch(tmp_path, damage):
    images(tmp_path, 300)
    entry = deflated("x", image(101))
    if damage == "the checksum":
        entry.crc ^= 1
    else:
        entry.data = entry.data[:900] + bytes([entry.data[900] ^ 4]) + entry.data[901:]
    (tmp_path / "0101.npz").write_bytes(archive(entry, deflated("y", np.int64(101))))
    ds = ndfeed.open(tmp_path, sample="file")
    with ndfeed.torch.loader(ds, 20, device="cuda") as loader:
        batches = iter(loader)
        for number in range(5):
            assert next(batches)["y"].tolist() == list(range(20 * number, 20 * number + 20))
        with pytest.raises(ndfeed.FormatError, match=r"0101\.npz"):
            next(batches)
        assert "inflated on cuda:0" in loader.report().way


@on_the_gpu
@pytest.mark.parametrize("change", [truncated, replaced])
def test_a_file_that_changes_is_an_error_and_no_wrong_batch(tmp_path, change):
    ds = images(tmp_path, 120)
    with ndfeed.torch.loader(ds, 20, device="cuda") as loader:
        assert sum(len(batch["y"]) for batch in loader) == 120
        change(tmp_path / "0077.npz")
        with pytest.raises(ndfeed.ChangedError, match=r"0077\.npz"):
            compare_images(({k: v.cpu() for k, v in b.items()} for b in loader) for _ in range(3))


@on_the_gpu
def test_a_loop_that_ends_early(tmp_path):
    ds = images(tmp_path, 200)
    for seed in range(5):
        with ndfeed.torch.loader(ds, 20, shuffle=True, seed=seed, device="cuda") as loader:
            next(iter(loader))
    torch.cuda.synchronize()
