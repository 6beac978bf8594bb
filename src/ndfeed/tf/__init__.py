"""ndfeed for TensorFlow: a ``tf.data.Dataset`` over array files.

    import ndfeed.tf

    model.fit(ndfeed.tf.dataset(ds, 256, shuffle=True, fields=("image", "label")))

Batches, order and states are those of ``ndfeed.loader``: the same seed gives the same rows.
"""

from ndfeed.tf.dataset import dataset
from ndfeed.tf.state import State

__all__ = ["State", "dataset"]
