"""ndfeed for TensorFlow: a ``tf.data.Dataset`` over array files.

    import ndfeed.tf

    model.fit(ndfeed.tf.dataset(ds, 256, shuffle=True, fields=("image", "label")))

Batches, order and states are those of ``ndfeed.loader``: the same seed gives the same rows.
"""

from importlib import import_module

from ndfeed.errors import not_installed

try:
    import_module("tensorflow")
except ModuleNotFoundError as error:
    raise not_installed(error, "tf", "tensorflow") from None

from ndfeed.tf.generator import State
from ndfeed.tf.tf_dataset import dataset

__all__ = ["State", "dataset"]
