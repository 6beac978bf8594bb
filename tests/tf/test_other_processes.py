"""Datasets that TensorFlow takes to other processes: they are read here, or refused there."""

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from loading.making import images  # noqa: E402
from tf_making import run_imported  # noqa: E402

SERVICE = """
import json, os, subprocess, sys, time
import tensorflow as tf
import ndfeed, ndfeed.tf

WORKER = '''
import sys, time
import tensorflow as tf
if len(sys.argv) > 2:
    import ndfeed, ndfeed.tf
    mine = ndfeed.tf.dataset(ndfeed.open(sys.argv[2]), 10, shuffle=True)
service = tf.data.experimental.service
worker = service.WorkerServer(service.WorkerConfig(dispatcher_address=sys.argv[1]))
print("ready", flush=True)
time.sleep(100)
'''
service = tf.data.experimental.service
dispatcher = service.DispatchServer()
address = dispatcher.target.split("://")[1]
command = [sys.executable, "-c", WORKER, address, *sys.argv[2:]]
worker = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
worker.stdout.readline()
data = ndfeed.tf.dataset(ndfeed.open(sys.argv[1]), 10, shuffle=True)
served = data.apply(service.distribute(service.ShardingPolicy.OFF, dispatcher.target))
try:
    found = [batch["label"].numpy().tolist() for batch in served]
except tf.errors.OpError as error:
    found = str(error)
worker.kill()
print(json.dumps(found), flush=True)
os._exit(0)
"""

PARAMETER_SERVER = """
import json, os, socket, subprocess, sys
import tensorflow as tf
import ndfeed, ndfeed.tf

SERVER = '''
import json, sys
import tensorflow as tf
spec = tf.train.ClusterSpec(json.loads(sys.argv[1]))
server = tf.distribute.Server(spec, job_name=sys.argv[2], task_index=0, protocol="grpc")
print("ready", flush=True)
server.join()
'''
sockets = {job: socket.socket() for job in ("worker", "ps")}
for one in sockets.values():
    one.bind(("127.0.0.1", 0))
cluster = {job: [f"127.0.0.1:{one.getsockname()[1]}"] for job, one in sockets.items()}
for one in sockets.values():
    one.close()
servers = []
for job in cluster:
    command = [sys.executable, "-c", SERVER, json.dumps(cluster), job]
    servers.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL))
    servers[-1].stdout.readline()
resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
    tf.train.ClusterSpec(cluster), rpc_layer="grpc")
strategy = tf.distribute.ParameterServerStrategy(resolver)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
ds = ndfeed.open(sys.argv[1])


@tf.function
def step(batches):
    return next(batches)["label"]


found = []
try:
    for made in (ndfeed.tf.dataset(ds, 10, shuffle=True),
                 lambda: ndfeed.tf.dataset(ds, 10, shuffle=True, shard=(0, 1))):
        batches = iter(coordinator.create_per_worker_dataset(made))
        results = [coordinator.schedule(step, args=(batches,)) for _ in range(10)]
        coordinator.join()
        found.append(sorted(v for one in results for v in one.fetch().tolist()))
finally:
    for one in servers:
        one.kill()
print(json.dumps(found), flush=True)
os._exit(0)
"""


@pytest.fixture
def ds(tmp_path):
    return images(tmp_path)


def test_a_service_s_worker_in_another_process_says_so_at_once(ds):
    """It has none of our Python; what it must not do is wait for it."""
    found, _ = run_imported(SERVICE, ds.files[0])

    assert "Could not find callback" in found


def test_a_worker_with_a_dataset_of_its_own_does_not_serve_that(ds, tmp_path):
    """TensorFlow numbers functions in every process from 0: ours was another dataset's there."""
    np.savez(tmp_path / "other.npz", **{n: a + 1 for n, a in ds[:].items()})
    found, _ = run_imported(SERVICE, ds.files[0], tmp_path / "other.npz")

    assert "RuntimeError: this dataset was made in another process" in found


def test_a_parameter_server_s_workers_read_from_here(ds):
    """Steps run in a worker's process, and TensorFlow asks the coordinator's for batches."""
    found, _ = run_imported(PARAMETER_SERVER, ds.files[0])

    assert found == [list(range(100))] * 2
