"""Processes of one JAX, that meet through gloo: each reads its part, and all agree."""

import os

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax_making  # noqa: E402
from jax.sharding import Mesh, NamedSharding  # noqa: E402
from jax_making import ROWS, P, run_processes, table  # noqa: E402
from loading.making import labels  # noqa: E402

import ndfeed  # noqa: E402
import ndfeed.jax  # noqa: E402
from ndfeed.jax.jax_loader import agree, ranks  # noqa: E402


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    table(folder)
    return os.fspath(folder / "table.npz")


@pytest.fixture(scope="module")
def two(source, tmp_path_factory):
    return run_processes(jax_making.together, 2, tmp_path_factory.mktemp("two"), source)


def test_processes_share_the_order(two, source):
    """Without a sharding each has batches of its own; rank and world are JAX's."""
    for process, found in enumerate(two):
        arrays = ndfeed.loader(ndfeed.open(source), 8, shuffle=True, seed=5, shard=(process, 2))
        assert found["len"] == len(arrays) == 6
        assert (found["first"], found["second"]) == (labels(arrays), labels(arrays))
    assert sorted(two[0]["first"] + two[1]["first"]) == list(range(ROWS))


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("data", ROWS // 2),
        ("mixed", ROWS // 2),
        ("both", ROWS // 2),
        ("columns over processes", ROWS),
        ("columns alone", ROWS),
        ("copies", ROWS),
    ],
)
def test_each_process_reads_its_part_of_global_arrays(two, name, rows):
    """The rows that its own devices need and no others, also where they lie apart."""
    for found in two:
        assert found["laid out"][name] == {"rows": rows, "right": True, "len": ROWS // 16}


def test_processes_with_one_gpu_each(source, tmp_path):
    """As a launcher starts them: the GPU reads what its process has of the global arrays."""
    for one in run_processes(jax_making.one_device_each, 2, tmp_path, source):
        assert (one["devices"], one["faults"]) == (2, 0)
        found = one["found"]
        assert all(each["right"] for each in found.values())
        assert [each["rows"] for each in found.values()] == [ROWS // 2, ROWS, ROWS]
        reads = ["reads the files" in each["way"] for each in found.values()]
        assert reads == [True, True, False]  # columns of rows are cut by JAX


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("seed", "agree on seed, found 0 in process 0, 1 in process 1"),
        ("batch_size", "agree on batch_size, found 8 in process 0, 16 in process 1"),
        ("order", "agree on order"),
        ("drop_last", "agree on drop_last, found False in process 0, True in process 1"),
        ("rows", "agree on rows, found 80 in process 0, 81 in process 1"),
        ("epoch", "agree on epoch, found 0 in process 0, 1 in process 1"),
    ],
)
def test_processes_must_agree(two, name, text):
    """In every process, so that none waits for the others."""
    for found in two:
        assert text in found["refused"][name]


def test_a_loader_of_one_process_s_own(two):
    """With shard= nobody is asked."""
    assert two[1]["own"] == list(range(ROWS))


def test_a_mesh_of_one_process_s_own(two):
    """Arrays that no other process has a part of are batches of its own."""
    assert sorted(two[0]["local mesh"] + two[1]["local mesh"]) == list(range(ROWS))
    assert two[0]["local mesh"][:8] == list(range(8))


def test_a_global_sharding_says_the_shard(two):
    """Two words for one thing are refused."""
    for found in two:
        assert "leave out one of them" in found["two words"]


def test_resume_with_another_number_of_processes(two, source):
    """What two processes left, one goes on with; the same on a mesh of its own."""
    ds = ndfeed.open(source)
    whole = labels(ndfeed.loader(ds, 16, shuffle=True, seed=7))
    mesh = Mesh(np.array(jax.devices()), ("data",))
    assert two[0]["state"] == two[1]["state"]
    for found in two:
        assert found["rest"] == whole[32:]
    for options in ({}, {"sharding": NamedSharding(mesh, P("data"))}):
        loader = ndfeed.jax.loader(ds, 8, shuffle=True, **options)
        loader.load_state_dict(two[0]["state"])

        assert labels(loader) == whole[32:]
        assert loader.epoch == 1


def test_a_process_that_waits_says_so(source, tmp_path):
    """Validation in one process alone used to hang without a word."""
    one_first = jax_making.one_process_first
    found = run_processes(one_first, 2, tmp_path, source, tmp_path)

    assert found[0]["warning"].startswith("process 0 has waited 0 s for the other processes")
    assert "give shard=(0, 1) to a loader" in found[0]["warning"]
    assert sorted(found[0]["rows"] + found[1]["rows"]) == list(range(ROWS))


def test_alone():
    """One process has nobody to ask."""
    assert ranks() == (0, 1)
    agree({"seed": 0})
