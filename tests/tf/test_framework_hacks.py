"""``ndfeed.tf.framework_hacks``: TensorFlow is still as it was, and what happens if it is not."""

import gc
import weakref

import pytest

tf = pytest.importorskip("tensorflow")

from loading.making import images, labels  # noqa: E402

import ndfeed  # noqa: E402
import ndfeed.tf  # noqa: E402
from ndfeed.tf.framework_hacks import make_fast, tensor_that_keeps  # noqa: E402


class Kept:
    """An object whose end can be seen."""


def test_an_iterator_takes_another_class(tmp_path):
    """If this fails, loops still work and are slower: ``make_fast`` leaves iterators alone."""
    iterator = iter(ndfeed.tf.dataset(images(tmp_path), 10))

    assert isinstance(iterator, tf.data.Iterator)
    assert type(iterator) is not type(iter(tf.data.Dataset.range(1)))
    assert type(iterator).__base__ is type(iter(tf.data.Dataset.range(1)))
    assert type(iterator).__name__ == type(iterator).__base__.__name__
    assert labels(iterator) == list(range(100))


def test_an_iterator_that_refuses_stays_as_it_is():
    """The fallback: the same elements, by TensorFlow's own iterator."""
    kind = type(iter(tf.data.Dataset.range(1)))

    class Closed(kind):
        """As if TensorFlow gave its iterators a layout that no other class has."""

        def __setattr__(self, name, value):
            if name == "__class__":
                raise TypeError("object layout differs")
            super().__setattr__(name, value)

    iterator = iter(tf.data.Dataset.range(5))
    iterator.__class__ = Closed
    assert type(make_fast(iterator)) is Closed

    assert [int(n) for n in iterator] == list(range(5))


def test_ragged_elements_keep_the_iterator_of_tensorflow():
    """An element that consists of several tensors is put together by TensorFlow alone."""
    values = tf.ragged.constant([[1], [2, 3]])
    iterator = iter(tf.data.Dataset.from_tensors(values))
    kind = type(iterator)

    assert type(make_fast(iterator)) is kind
    assert next(iterator).to_list() == [[1], [2, 3]]


def test_a_tensor_keeps_an_object_alive():
    """If this fails, a graph may outlive the loader that it reads from."""
    kept = Kept()
    seen = weakref.ref(kept)
    (tensor,) = tensor_that_keeps(kept, b"content")
    del kept
    gc.collect()
    assert seen() is not None
    assert tensor.numpy().tobytes() == b"content"
    del tensor
    gc.collect()

    assert seen() is None


def test_a_tensor_that_is_a_copy_keeps_nothing(monkeypatch):
    """The fallback: there is no tensor, and the dataset itself keeps the loader."""
    monkeypatch.setattr(
        tf.experimental.dlpack, "from_dlpack", lambda capsule: tf.zeros(7, tf.uint8)
    )

    assert tensor_that_keeps(Kept(), b"content") == ()


def test_without_tensors_that_keep_the_dataset_does(tmp_path, monkeypatch):
    """Also in a graph, for as long as somebody holds the dataset."""
    monkeypatch.setattr(
        tf.experimental.dlpack, "from_dlpack", lambda capsule: tf.zeros(256, tf.uint8)
    )
    data = ndfeed.tf.dataset(images(tmp_path), 10, fields="label")

    @tf.function
    def total():
        return data.reduce(tf.constant(0, tf.int64), lambda sum, one: sum + tf.reduce_sum(one))

    assert int(total()) == sum(range(100))
    assert int(tf.reduce_sum(next(iter(data)))) == sum(range(10))
