"""The torch backend is handed tensors of the loader's own memory."""

import numpy as np
import pytest

pytest.importorskip("keras")
pytest.importorskip("torch")

from tf_making import run_imported

HANDED_OVER = """
import json, sys, warnings
import numpy as np
import keras, ndfeed, ndfeed.keras

warnings.simplefilter("error", UserWarning)
ds = ndfeed.open(sys.argv[1])
made = {}


def noted(batch):
    made[int(batch["n"][0])] = {name: values.ctypes.data for name, values in batch.items()}
    return batch


class Model(keras.Model):
    "Notes which of its inputs lie where a batch was made."
    def __init__(self):
        super().__init__()
        self.scale = keras.layers.Dense(1)
        self.shared, self.types, self.sums = [], {}, {}
        self.compile("sgd", "mse", run_eagerly=True)

    def call(self, x):
        if str(x["n"].device) != "meta" and int(x["n"][0]) in made:
            there = made[int(x["n"][0])]
            self.shared.append({name: values.data_ptr() == there[name]
                                for name, values in x.items() if name in there})
            self.types = {name: str(values.dtype) for name, values in x.items()}
            for name, values in x.items():
                self.sums[name] = self.sums.get(name, 0) + int(values.sum())
        return self.scale(keras.ops.cast(x["n"], "float32")[:, None]) * 0


model = Model()
names = {name: name for name in ds.fields}
model.fit(ndfeed.keras.dataset(ds.map(noted), 10, fields=(names, "n")), verbose=0)
found = {"shared": model.shared, "types": model.types, "sums": model.sums}


def awkward(batch):
    fixed = batch["f4"].copy()
    fixed.flags.writeable = False
    return noted(batch) | {"fixed": fixed, "backwards": batch["i8"][:, ::-1]}


model = Model()
names |= {"fixed": "fixed", "backwards": "backwards"}
data = ndfeed.keras.dataset(ds.map(awkward), 10, fields=(names, "n"))
model.fit(data, verbose=0, class_weight={i: 1.0 for i in range(30)})
found["awkward"] = dict(model.sums)
model.predict(ndfeed.keras.dataset(ds, 10, fields={"n": "n"}), verbose=0)
print(json.dumps(found))
"""

SAME = ("bool", "i1", "i2", "i4", "i8", "u1", "f4")  # other floats are cast by the model
CHANGED = {"u2": "torch.int32", "u4": "torch.int64"}  # by Keras, which has no such types on torch


def test_torch_gets_tensors_of_the_memory_that_was_read_into(tmp_path):
    """Keras copies every array that it makes a tensor of: twice the time with large batches."""
    one = np.arange(30 * 4).reshape(30, 4) % 100
    fields = {name: one.astype(name) for name in (*SAME, *CHANGED)}
    np.savez(tmp_path / "x.npz", n=np.arange(30), **fields)
    found, _ = run_imported(HANDED_OVER, tmp_path / "x.npz", KERAS_BACKEND="torch")

    assert len(found["shared"]) == 3
    for batch in found["shared"]:
        assert {name for name, shared in batch.items() if shared} == {"n", *SAME}
    assert {name: found["types"][name] for name in CHANGED} == CHANGED
    assert found["sums"] == {"n": 435} | {n: int(a.sum()) for n, a in fields.items()}
    rest = dict.fromkeys(("fixed", "backwards"), int(one.sum()))
    assert found["awkward"] == found["sums"] | rest
