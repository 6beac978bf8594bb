"""Ranks in processes of their own, that meet through gloo."""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("torch was built without distributed", allow_module_level=True)

import torch_making  # noqa: E402
from growing import expected as numbers  # noqa: E402
from growing import write  # noqa: E402
from loader_contract import LENGTHS  # noqa: E402
from loading.making import images, labels, ragged  # noqa: E402
from torch_making import run_ranks  # noqa: E402

import ndfeed  # noqa: E402
import ndfeed.torch  # noqa: E402
from ndfeed.torch.distributed import agree, ranks  # noqa: E402

EXAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "torch_ddp.py"


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    images(folder)
    return os.fspath(folder / "images.npz")


@pytest.fixture(scope="module")
def two(source, tmp_path_factory):
    """What two ranks found, and the folder that they left a checkpoint in."""
    folder = tmp_path_factory.mktemp("two")
    return run_ranks(torch_making.share_and_agree, 2, folder, source), folder


def expected(source, batch_size, rank, world, epochs, seed):
    loader = ndfeed.loader(
        ndfeed.open(source), batch_size, shuffle=True, seed=seed, shard=(rank, world)
    )
    return [labels(loader) for _ in range(epochs)]


def test_ranks_share_the_order(two, source):
    """Rank and world are those of torch.distributed."""
    for rank, found in enumerate(two[0]):
        first, second, third = expected(source, 8, rank, 2, 3, seed=5)
        assert found["len"] == 7
        assert (found["first"], found["second"]) == (first, second)
        assert found["third"] == third[:16]
    assert sorted(two[0][0]["first"] + two[0][1]["first"]) == list(range(100))


def test_ranks_follow_a_folder_together(tmp_path):
    """They take the files that rank 0 finds, also if another one finds more."""
    source = tmp_path / "data"
    source.mkdir()
    write(source, 10, 20, 30)
    found = run_ranks(torch_making.follow_a_folder, 2, tmp_path / "ranks", os.fspath(source))
    first, second = ([x for one in found for x in one["epochs"][i]] for i in range(2))
    assert sorted(first) == numbers(10, 20, 30)
    assert sorted(second) == numbers(5, 10, 20, 30)
    assert [one["new"] for one in found] == [[4, 4], [4, 4]]
    assert found[0]["state"] == found[1]["state"]
    assert found[0]["gone"].startswith("MissingError")
    assert "RuntimeError rank 0: " in found[1]["gone"]
    assert "005.npy: 1 of 5 files of the dataset is gone" in found[1]["gone"]


def test_a_state_of_two_ranks_resumes_on_three_with_more_files(tmp_path):
    """What two ranks had seen stays seen, what came since comes in; by shard= as by ranks."""
    write(tmp_path, 10, 20, 30)
    ds = ndfeed.open(tmp_path, sample="row")
    seen, state = [], None
    for rank in range(2):
        loader = ndfeed.torch.loader(ds, 2, shuffle=True, shard=(rank, 2))
        batches = iter(loader)
        seen += [x for _ in range(2) for x in next(batches)["data"].tolist()]
        state = json.loads(json.dumps(loader.state_dict()))
        loader.close()
    write(tmp_path, 5, 40)
    now, rest, counts = ndfeed.open(tmp_path, sample="row"), [], []
    for rank in range(3):
        loader = ndfeed.torch.loader(now, 2, shuffle=True, shard=(rank, 3))
        loader.load_state_dict(state, grown=True)
        own = [batch["data"].tolist() for batch in loader]
        counts.append(len(own))
        rest += [x for batch in own for x in batch]
    assert sorted(seen + rest) == numbers(5, 10, 20, 30, 40)
    assert len(set(counts)) == 1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("seed", "agree on seed, found 0 on rank 0, 1 on rank 1"),
        ("batch size", "agree on batch_size, found 8 on rank 0, 9 on rank 1"),
        ("order", "agree on order"),
        ("drop_last", "agree on drop_last, found False on rank 0, True on rank 1"),
        ("rows", "agree on rows, found 90 on rank 0, 91 on rank 1"),
        ("epoch", "agree on epoch, found 0 on rank 0, 1 on rank 1"),
    ],
)
def test_ranks_must_agree(two, name, text):
    """On every rank, so that none waits for the others."""
    for found in two[0]:
        assert text in found["refused"][name]


def test_a_refused_pass_costs_no_epoch(two):
    """The loop that comes after the mistake was mended begins with it."""
    for found in two[0]:
        assert found["epochs"] == [0, 0]


def test_a_mixture_is_trained_on_and_resumed_by_two_ranks(tmp_path):
    """DDP: as many batches on both, together those of one process, from any state on."""
    sources = {}
    for name, rows in (("web", 60), ("code", 20)):
        images(tmp_path / name, rows)
        sources[name] = os.fspath(tmp_path / name / "images.npz")
    found = run_ranks(torch_making.train_on_a_mixture, 2, tmp_path / "first", sources)
    state = found[0]["states"][2]
    again = run_ranks(torch_making.train_on_a_mixture, 2, tmp_path / "again", sources, state)

    opened = {name: ndfeed.open(path) for name, path in sources.items()}
    ds = ndfeed.mix(opened, weights=[3, 1], end="last", source="source")
    whole = list(ndfeed.loader(ds, 16, shuffle=True, seed=5))
    assert found[0]["states"] == found[1]["states"]
    assert found[0]["len"] == found[1]["len"] == len(whole) == 5
    for one, *both in zip(whole, *(rank["batches"] for rank in found), strict=True):
        for at, name in enumerate(("label", "source")):
            assert [n for batch in both for n in batch[at]] == one[name].tolist()
    assert [rank["batches"] for rank in again] == [rank["batches"][3:] for rank in found]


@pytest.fixture(scope="module")
def trained(source, tmp_path_factory):
    """What two ranks trained on by each order, and what three did from their states on."""
    folder = tmp_path_factory.mktemp("orders")
    two = run_ranks(torch_making.train_by_orders, 2, folder / "two", source, 8)
    states = {name: found["state"] for name, found in two[0].items()}
    states = json.loads(json.dumps(states))
    return two, run_ranks(torch_making.train_by_orders, 3, folder / "three", source, 5, states)


@pytest.mark.parametrize("name", torch_making.list_orders())
def test_ranks_train_by_any_order(source, trained, name):
    """DDP: as many batches on all, each those of its share, and together the order's epochs."""
    two = [found[name] for found in trained[0]]
    ds, order = ndfeed.open(source), torch_making.list_orders()[name]
    for rank, found in enumerate(two):
        loader = ndfeed.loader(ds, 8, shuffle=order, seed=5, shard=(rank, 2))
        assert found["len"] == len(loader)
        assert found["epochs"] == [[b["label"].tolist() for b in loader] for _ in range(2)]
    alone = ndfeed.loader(ds, 16, shuffle=order, seed=5)
    for epoch in range(2):
        batches = zip(*(found["epochs"][epoch] for found in two), strict=True)
        expected = labels(alone)
        rows = [n for step in batches for batch in step for n in batch]
        # Buckets are made for a number of ranks.
        assert sorted(rows) == sorted(expected) if name == "buckets" else rows == expected


@pytest.mark.parametrize("name", torch_making.list_orders())
def test_other_ranks_finish_an_epoch_of_any_order(source, trained, name):
    """Three go on where two were: what is left of the epoch, in its order, and the next one."""
    two, three = ([found[name] for found in ranks] for ranks in trained)
    assert two[0]["state"] == two[1]["state"]
    left = [found["epochs"][1][3:] for found in two]
    assert two[0]["state"]["epoch"] == 1

    rest, following = (
        [n for step in zip(*(found["epochs"][at] for found in three), strict=True)
         for batch in step for n in batch]
        for at in range(2)
    )  # fmt: skip
    expected = [n for step in zip(*left, strict=True) for batch in step for n in batch]
    assert rest == expected
    ranks = [
        ndfeed.loader(ndfeed.open(source), 5, shuffle=torch_making.list_orders()[name], seed=5,
                      shard=(rank, 3))
        for rank in range(3)
    ]  # fmt: skip
    for loader in ranks:
        loader.epoch = 2
    assert following == [n for step in zip(*ranks, strict=True) for b in step for n in b["label"]]


def test_a_loader_of_one_rank_s_own(two):
    """With shard= no rank is asked."""
    assert two[0][1]["own"] == list(range(100))


@pytest.mark.filterwarnings("ignore:.*:UserWarning")  # of torch: a checkpoint without a group
def test_checkpoint_of_torch(two, source):
    """Saved by two ranks, loaded by one: what is left of the epoch."""
    found, folder = two
    rest = torch_making.load_checkpoint(0, 1, None, source, folder / "saved")

    assert rest["epoch"] == 2
    seen = found[0]["third"] + found[1]["third"]
    assert sorted(rest["rest"] + seen) == list(range(100))


def test_a_killed_rank_and_another_world(source, tmp_path):
    """Three ranks go on where two were stopped: every sample once, in the one order."""
    ended = run_ranks(torch_making.train_until_killed, 2, tmp_path / "a", source, 1, 4)
    assert ended == [torch_making.LOST, None]
    state = (tmp_path / "a" / "state.json").read_text()
    steps = json.loads(state)["samples"] // 10
    assert steps == 4
    taken = [json.loads((tmp_path / "a" / f"taken{rank}.json").read_text()) for rank in range(2)]
    seen = [row for rank in taken for batch in rank[:steps] for row in batch]

    resumed = run_ranks(torch_making.go_on, 3, tmp_path / "b", source, state, 4)
    rest = [row for rank in resumed for row in rank["rest"]]
    assert sorted(seen + rest) == list(range(100))
    whole = expected(source, 10, 0, 1, 2, seed=3)
    assert sorted(seen) == sorted(whole[0][:40])
    for rank, found in enumerate(resumed):
        assert found["next"] == expected(source, 4, rank, 3, 2, seed=3)[1]


def test_ranks_that_read_by_length(tmp_path):
    """Two processes have equally many batches within the budget; three others finish the epoch."""
    ragged(tmp_path / "r", LENGTHS)
    source = os.fspath(tmp_path / "r")
    two = run_ranks(torch_making.by_length, 2, tmp_path / "two", source, None)
    loaders = [
        ndfeed.loader(ndfeed.open(source, sample="file"), tokens=40, shuffle=True, seed=3, shard=s)
        for s in ((0, 2), (1, 2))
    ]
    for found, loader in zip(two, loaders, strict=True):
        batches = found["first"] + found["rest"]
        assert [numbers for numbers, _ in batches] == [batch["n"].tolist() for batch in loader]
        assert len(batches) == found["len"] == len(loader)
        assert all(count * length <= 40 for _, (count, length) in batches)
        assert "agree on tokens, found 40 on rank 0, 41 on rank 1" in found["refused"]
    assert two[0]["state"] == two[1]["state"]
    left = sorted(n for found in two for numbers, _ in found["rest"] for n in numbers)

    state = json.loads(json.dumps(two[0]["state"]))
    three = run_ranks(torch_making.by_length, 3, tmp_path / "three", source, state)
    batches = [found["first"] + found["rest"] for found in three]
    assert len({len(some) for some in batches}) == 1
    assert sorted(n for some in batches for numbers, _ in some for n in numbers) == left
    assert all(count * length <= 40 for some in batches for _, (count, length) in some)


def test_group_that_begins_late(source, tmp_path):
    """A loader made before the group is one of its ranks all the same."""
    found = run_ranks(torch_making.late_group, 2, tmp_path, source, joined=False)

    assert [rank["alone"] for rank in found] == [13, 13]
    assert [rank["len"] for rank in found] == [7, 7]
    assert sorted(found[0]["rows"] + found[1]["rows"]) == list(range(100))


@pytest.mark.parametrize(("first", "absent"), [(0, 1), (1, 0)])
def test_a_rank_that_waits_says_so(source, tmp_path, first, absent):
    """Validation on rank 0 alone used to hang without a word: who waits for whom, and a remedy."""
    found = run_ranks(torch_making.one_rank_first, 2, tmp_path, source, first)

    text, category, file = found[0]["warning"]
    assert text.startswith(f"rank {first} has waited 0 s for rank {absent} to begin a pass")
    assert "give shard=(0, 1) to a loader" in text
    assert (category, file) == ("RuntimeWarning", "making.py")  # where the loop is
    assert sorted(found[0]["rows"] + found[1]["rows"]) == list(range(100))
    assert [rank["total"] for rank in found] == [100, 100]


def test_a_rank_that_never_comes(source, tmp_path):
    """An error in the end, and the collectives of the others meet only each other."""
    said, total = run_ranks(torch_making.a_rank_that_never_comes, 2, tmp_path, source)

    assert said.startswith("rank 0 has waited 1 s for rank 1 to begin a pass")
    assert total == 2


def test_alone():
    """Without a process group there is nobody to ask."""
    assert ranks() == (0, 1)
    agree({"seed": 0})


def test_example_under_torchrun(tmp_path):
    """Rank 0 speaks for all."""
    env = os.environ | {"TMPDIR": os.fspath(tmp_path), "OMP_NUM_THREADS": "1"}
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", EXAMPLE]
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=250, env=env
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    assert "2 ranks" in done.stdout


def test_ranks_draw_by_weight(source, tmp_path):
    """Two processes of one group share the draws of an epoch, and of the rest of one."""
    found = run_ranks(torch_making.draw_weighted, 2, tmp_path, source)
    order = ndfeed.Weighted(np.arange(100) % 7, rows=130)
    whole = ndfeed.loader(ndfeed.open(source), 130, shuffle=order, seed=5)

    def interleave(name):
        pairs = zip(*(rank[name] for rank in found), strict=True)
        return [row for pair in pairs for batch in pair for row in batch]

    assert interleave("first") == labels(whole)
    assert interleave("second") + interleave("rest") == labels(whole)


def test_ranks_must_agree_on_weights(source, tmp_path):
    """Each would draw from all samples, but not the same ones."""
    for text in run_ranks(torch_making.weights_disagree, 2, tmp_path, source):
        assert "must agree on order" in text


@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="no list of maps")
def test_ranks_of_one_machine_share_a_table(source, tmp_path):
    """Every process would hold eight bytes for each of a billion samples."""
    found = run_ranks(torch_making.share_weights, 2, tmp_path, source)

    assert found[0]["inode"] == found[1]["inode"]
    assert found[0]["rows"] != found[1]["rows"]
