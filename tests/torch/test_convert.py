"""``Convert``: values, dtypes and memory layouts, on their way into tensors."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from loading.making import images  # noqa: E402
from torch_making import first, texts  # noqa: E402

import ndfeed  # noqa: E402
import ndfeed.torch  # noqa: E402

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def test_convert(tmp_path):
    """Bytes to fractions, in the layout that convolutions like."""
    ds = images(tmp_path, 8)
    convert = {"image": ndfeed.torch.Convert(torch.float32, scale=1 / 255, hwc=True)}
    plain, found = first(ds)["image"], first(ds, convert=convert)

    assert found["label"].dtype == torch.int64
    assert found["image"].shape == (8, 3, 4, 4)
    assert found["image"].is_contiguous(memory_format=torch.channels_last)
    expected = plain.permute(0, 3, 1, 2).float() / 255
    torch.testing.assert_close(found["image"], expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.complex64])
def test_convert_rounds_once(dtype):
    """The product is computed in float32 or wider."""
    given = torch.arange(65536).to(torch.uint16)
    found = ndfeed.torch.Convert(dtype, scale=1 / 65535)(given)

    assert found.dtype == dtype
    wide = torch.float32 if dtype.itemsize < 4 else dtype
    assert torch.equal(found, (given.to(wide) * (1 / 65535)).to(dtype))


@pytest.mark.parametrize("hwc", [True, False])
@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_convert_normalizes(hwc, channels_last, dtype):
    """By channel, as ``Normalize`` of torchvision does; in whichever memory layout."""
    if hwc and channels_last:
        channels_last = False
    stored = torch.randint(0, 256, (5, 6, 7, 3) if hwc else (5, 3, 6, 7), dtype=torch.uint8)
    convert = ndfeed.torch.Convert(
        dtype, scale=1 / 255, hwc=hwc, channels_last=channels_last, mean=MEAN, std=STD
    )
    image = (stored.permute(0, 3, 1, 2) if hwc else stored).double() / 255
    expected = (image - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)
    found = convert(stored)

    assert found.dtype == dtype
    tolerance = 1e-2 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance)
    layout = torch.channels_last if hwc or channels_last else torch.contiguous_format
    assert found.is_contiguous(memory_format=layout)


def test_convert_normalizes_in_a_loader(tmp_path):
    """Fields of one axis have a mean for each of its places; a single number is for all."""
    np.savez(tmp_path / "x.npz", x=np.arange(12, dtype="f4").reshape(4, 3), y=np.arange(4.0))
    convert = {
        "x": ndfeed.torch.Convert(torch.float32, mean=np.array([0, 1, 2]), std=torch.tensor(2.0)),
        "y": ndfeed.torch.Convert(torch.float64, mean=1),
    }
    found = first(ndfeed.open(tmp_path / "x.npz"), convert=convert)

    assert found["x"].tolist() == [[1.5 * row] * 3 for row in range(4)]
    assert found["y"].tolist() == [-1, 0, 1, 2]


def test_convert_normalizes_a_copy():
    """What it is given stays as it is, also where the type is right already."""
    given = torch.ones(2, 3)

    assert (
        ndfeed.torch.Convert(torch.float32, mean=1, std=(1, 2, 4))(given).tolist() == [[0] * 3] * 2
    )
    assert given.tolist() == [[1] * 3] * 2


def test_convert_normalizes_ragged_samples(tmp_path):
    """With a number for all; which axis has the channels of a list could not be told."""
    ds = texts(tmp_path, [3, 1])
    convert = {"text": ndfeed.torch.Convert(torch.float32, mean=1, std=2)}

    assert [t.tolist() for t in first(ds, convert=convert)["text"]] == [[-0.5, 0, 0.5], [49.5]]
    with pytest.raises(ValueError, match="channels are the first axis"):
        first(ds, convert={"text": ndfeed.torch.Convert(torch.float32, mean=(1, 2))})


def test_channels_are_counted(tmp_path):
    """Images stored with their channels last are the usual mistake: nothing may be broadcast."""
    ds = images(tmp_path, 8)
    convert = ndfeed.torch.Convert(torch.float32, mean=MEAN, std=STD)
    with pytest.raises(ValueError, match=r"3 channels, .*'image' .*\(4, 4, 3\).*hwc=True"):
        first(ds, convert={"image": convert})
    with pytest.raises(ValueError, match=r"3 channels, .*\(2, 1, 4\)"):
        convert(torch.zeros(2, 1, 4))


def test_convert_leaves_what_it_is_given():
    """Also where the type is right already."""
    given = torch.ones(3)

    assert ndfeed.torch.Convert(torch.float32, scale=2)(given).tolist() == [2, 2, 2]
    assert given.tolist() == [1, 1, 1]


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (2, 3, 4, 5, 6)])
def test_channels_last(shape):
    """The same shape, other memory."""
    given = torch.rand(shape)
    found = ndfeed.torch.Convert(channels_last=True)(given)
    layout = torch.channels_last if len(shape) == 4 else torch.channels_last_3d

    assert torch.equal(found, given)
    assert found.is_contiguous(memory_format=layout)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ({"dtype": "float32"}, TypeError),
        ({"dtype": torch.int32, "scale": 0.5}, ValueError),
        ({"scale": 0.5}, ValueError),
        ({"dtype": torch.float32, "scale": float("nan")}, ValueError),
        ({"mean": 0.5}, ValueError),
        ({"dtype": torch.uint8, "std": 0.5}, ValueError),
        ({"dtype": torch.float32, "std": (1, 0)}, ValueError),
        ({"dtype": torch.float32, "mean": ()}, ValueError),
        ({"dtype": torch.float32, "mean": (1, 2), "std": (1, 2, 3)}, ValueError),
        ({"dtype": torch.float32, "mean": "half"}, TypeError),
        ({"dtype": torch.float32, "mean": [[1, 2]]}, TypeError),
    ],
)
def test_wrong_converts_are_refused(words, error):
    """Where they are made."""
    with pytest.raises(error):
        ndfeed.torch.Convert(**words)


def test_layout_needs_images(tmp_path):
    """A label has none."""
    with pytest.raises(ValueError, match="'label' has \\(\\)"):
        first(images(tmp_path), convert={"label": ndfeed.torch.Convert(channels_last=True)})
