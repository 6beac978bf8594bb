"""ndfeed for Keras: a ``keras.utils.PyDataset`` over array files, with any backend.

    import ndfeed.keras

    data = ndfeed.keras.dataset(ds, 256, shuffle=True, fields=("image", "label"))
    model.fit(data, epochs=3, callbacks=[ndfeed.keras.Resume(data, save, every=100)])

``Resume`` is for ``ndfeed.tf.dataset`` as well.
"""

from importlib import import_module

from ndfeed.errors import not_installed

try:
    import_module("keras")
except ModuleNotFoundError as error:
    raise not_installed(error, "keras", "keras") from None

from ndfeed.keras.keras_dataset import Batches, Resume, dataset

__all__ = ["Batches", "Resume", "dataset"]
