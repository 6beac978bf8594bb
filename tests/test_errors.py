"""An error says what is wrong and what to do about it, as text and as data."""

import pickle

import numpy as np
import pytest
from formats.making import Entry, archive, saved

import ndfeed
from ndfeed.errors import Error, MissingError, ResumeError, SchemaError


def test_a_field_name_with_a_semicolon_keeps_its_remedy(tmp_path):
    """What a file holds cannot end the sentence about it."""
    path = tmp_path / "x.npz"
    path.write_bytes(archive(Entry("a;b.npy", saved(np.array([object()])))))
    with pytest.raises(ndfeed.UnsupportedError) as caught:
        ndfeed.open(path, cache=False)

    assert "'a;b.npy' holds Python objects" in caught.value.problem
    assert caught.value.remedy.startswith("save the numbers instead")
    assert str(caught.value).endswith(f"; {caught.value.remedy}")


def test_an_error_has_the_remedy_of_its_class_unless_it_has_another(tmp_path):
    """Programs show it where they like; nobody has to cut a message into pieces."""
    with pytest.raises(MissingError) as caught:
        ndfeed.open(tmp_path / "none.npy")

    assert caught.value.path == str(tmp_path / "none.npy")
    assert (caught.value.problem, caught.value.remedy) == (
        "no such file or folder",
        "check the path",
    )
    assert MissingError("x", "gone", remedy="put it back").remedy == "put it back"
    assert str(MissingError("x", "gone", remedy="")) == "x: gone"


@pytest.mark.parametrize(
    "error",
    [
        SchemaError("x.npy", "wrong", 3, "do this"),
        SchemaError("x.npy", "wrong"),
        ResumeError("the state is damaged", "start over"),
    ],
    ids=lambda error: str(error),
)
def test_errors_pickle_whole(error):
    """They come out of worker processes."""
    other = pickle.loads(pickle.dumps(error))

    assert isinstance(other, Error)
    assert str(other) == str(error)
    assert (other.problem, other.remedy) == (error.problem, error.remedy)
