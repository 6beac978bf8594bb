"""Text among tensors: ``tf.string``, of any width and in any script."""

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

import ndfeed  # noqa: E402
import ndfeed.tf  # noqa: E402

NAMES = ["cat", "a much longer name", "dög", "猫", "e", ""]


@pytest.fixture
def ds(tmp_path):
    for i, name in enumerate(NAMES):
        np.savez(
            tmp_path / f"{i}.npz",
            x=np.full(3, i, "f4"),
            name=np.array(name),
            raw=np.array(name.encode()),
        )
    return ndfeed.open(tmp_path)


def strings(batches, name):
    return [one.decode() for batch in batches for one in batch[name].numpy().tolist()]


@pytest.mark.parametrize("size", [2, 4])
def test_text_of_any_script_arrives_as_utf_8(ds, size):
    """TensorFlow's own conversion takes ASCII alone, and failed with the first umlaut."""
    data = ndfeed.tf.dataset(ds, size)

    assert data.element_spec["name"].dtype == data.element_spec["raw"].dtype == tf.string
    assert strings(data, "name") == strings(data, "raw") == NAMES


def test_text_in_graphs_behind_maps_and_in_lists_of_text(ds, tmp_path):
    """Whichever way it takes; a map may make text, too, and a sample may have several."""
    louder = ds.map(lambda batch: batch | {"name": np.char.add(batch["name"], "ß")})
    data = ndfeed.tf.dataset(louder, 4).map(lambda batch: batch)
    np.save(tmp_path / "words.npy", np.array([["ä", "bc"], ["ü", ""]]))
    (words,) = ndfeed.tf.dataset(ndfeed.open(tmp_path / "words.npy"), 2)

    assert strings(data, "name") == [name + "ß" for name in NAMES]
    assert words["data"].numpy().tolist() == [["ä".encode(), b"bc"], ["ü".encode(), b""]]


@pytest.mark.parametrize("ragged", ["ragged", "pad"])
def test_ragged_text(tmp_path, ragged):
    """Words of sentences, padded with empty text."""
    for i, words in enumerate((["grüß", "dich"], ["ja"])):
        np.savez(tmp_path / f"{i}.npz", words=np.array(words), n=i)
    (batch,) = ndfeed.tf.dataset(ndfeed.open(tmp_path, sample="file"), 2, ragged=ragged)
    rest = [b""] if ragged == "pad" else []
    found = batch["words"].numpy() if ragged == "pad" else batch["words"].to_list()

    assert np.asarray(found[0]).tolist() == ["grüß".encode(), b"dich"]
    assert np.asarray(found[1]).tolist() == [b"ja", *rest]
