"""What the tests of ``ndfeed.tf`` and ``ndfeed.keras`` share, and what they run in other processes.

It lies beside their folders, not in them: see ``torch_making``.
"""

import json
import os
import signal
import socket
import subprocess
import sys

import imported
import numpy as np


def as_arrays(batch):
    """A batch of any framework, as arrays."""
    if isinstance(batch, dict):
        return {name: np.asarray(values) for name, values in batch.items()}
    return tuple(np.asarray(values) for values in batch)


def same(found, expected):
    """Are these the same batches, bit by bit?"""
    found, expected = [as_arrays(one) for one in found], list(expected)
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        pairs = [(one[name], other[name]) for name in other] if isinstance(other, dict) else None
        assert pairs is None or one.keys() == other.keys()
        for mine, theirs in pairs or zip(one, other, strict=True):
            assert mine.dtype == theirs.dtype
            np.testing.assert_array_equal(mine, theirs)


def recorder(**compiled):
    """A Keras model for TensorFlow that trains on nothing and notes the labels it is given."""
    import tensorflow as tf

    class Recorder(tf.keras.Model):
        def train_step(self, batch):
            done = tf.py_function(self.note, [batch["label"]], tf.float32)
            return {"loss": tf.ensure_shape(done, ())}

        def note(self, label):
            self.seen.append(label.numpy().tolist())
            return np.float32(0)

    made = Recorder()
    made.seen = []
    made.compile(**compiled)
    return made


def environment(**more):
    """That of a child process, which imports what this one does and sees no GPU."""
    path = os.pathsep.join([os.fspath(p) for p in sys.path if p])
    return os.environ | {"PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""} | more


def run(code, *args, timeout=250, **env):
    """A program in a process of its own; what its last line says in JSON, and its log."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, args)],
        capture_output=True,
        text=True,
        timeout=timeout,
        env=environment(**env),
    )
    return _result(done.returncode, done.stdout, done.stderr)


def _result(status, out, log):
    how = f"exit status {status}" if status >= 0 else f"ended by {signal.Signals(-status).name}"
    assert status == 0, f"{how}\n{log[-4000:]}"
    return json.loads(out.strip().splitlines()[-1]), log


def run_imported(code, *args, timeout=250, **env):
    """The same, where importing Keras, its backend and TensorFlow is not part of the test."""
    if not hasattr(os, "fork"):
        return run(code, *args, timeout=timeout, **env)
    env = environment(**{"KERAS_BACKEND": "tensorflow"} | env)
    modules = "keras", "ndfeed.keras"
    if env["KERAS_BACKEND"] == "tensorflow":
        modules += "tensorflow", "ndfeed.tf"
    return _result(*imported.run(modules, code, *args, env=env, timeout=timeout))


def run_workers(code, world, *args, timeout=250):
    """The same in as many processes, which are the workers of one cluster."""
    sockets = [socket.socket() for _ in range(world)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    hosts = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    for one in sockets:
        one.close()
    children = []
    for rank in range(world):
        config = {"cluster": {"worker": hosts}, "task": {"type": "worker", "index": rank}}
        children.append(
            subprocess.Popen(
                [sys.executable, "-c", code, *map(str, args)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=environment(TF_CONFIG=json.dumps(config)),
            )
        )
    found = []
    try:
        for child in children:
            out, log = child.communicate(timeout=timeout)
            assert child.returncode == 0, log[-4000:]
            found.append((json.loads(out.strip().splitlines()[-1]), log))
    finally:
        for child in children:
            child.kill()
            child.wait()
    return found
