"""ndfeed for Keras: a ``keras.utils.PyDataset`` over array files, with any backend.

    import ndfeed.keras

    data = ndfeed.keras.dataset(ds, 256, shuffle=True, fields=("image", "label"))
    model.fit(data, shuffle=False, epochs=3)

With the TensorFlow backend ``ndfeed.tf.dataset`` is faster; ``Resume`` is for that one.
"""

from ndfeed.keras.dataset import Batches, dataset
from ndfeed.keras.resume import Resume

__all__ = ["Batches", "Resume", "dataset"]
