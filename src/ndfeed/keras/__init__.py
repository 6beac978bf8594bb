"""ndfeed for Keras: a ``keras.utils.PyDataset`` over array files, with any backend.

    import ndfeed.keras

    data = ndfeed.keras.dataset(ds, 256, shuffle=True, fields=("image", "label"))
    model.fit(data, epochs=3, callbacks=[ndfeed.keras.Resume(data, save, every=100)])

``Resume`` is for ``ndfeed.tf.dataset`` as well.
"""

from ndfeed.keras.dataset import Batches, dataset
from ndfeed.keras.resume import Resume

__all__ = ["Batches", "Resume", "dataset"]
