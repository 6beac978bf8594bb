"""A Keras model that remembers what it was given, with any backend."""

import keras


class Recorder(keras.Model):
    """Trains and evaluates on nothing, and keeps the batches as NumPy arrays."""

    def __init__(self):
        super().__init__()
        self.seen = []
        self.compile(run_eagerly=True)

    def train_step(self, data):
        self.seen.append(keras.tree.map_structure(keras.ops.convert_to_numpy, data))
        return {"loss": 0.0}

    test_step = train_step
