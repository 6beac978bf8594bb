"""Loaders of data that grows: refresh, resuming with more files, replay buffers."""

import copy
import json
import os
import pickle
import threading
import time
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from children import run
from growing import ROWS, age, expected, name_of, write

import ndfeed
from ndfeed.errors import ChangedError, MissingError, ResumeError, SchemaError

ORDERS = {
    "sequential": False,
    "exact": True,
    "blocks": ndfeed.Blocks(rows=3, window=2),
    "windows": ndfeed.Windows(files=2),
    "windows of ranks": ndfeed.Windows(files=2, ranks=2),
}


def load(folder, size=3, shuffle=True, world=1, **options):
    """The loaders of all ranks."""
    ds = ndfeed.open(folder, sample="row")
    return [
        ndfeed.loader(ds, size, shuffle=shuffle, shard=(rank, world), **options)
        for rank in range(world)
    ]


def take(loaders, count=None):
    """What all ranks get in so many batches, or in the rest of the epoch."""
    found = []
    for batches in zip(*(islice(loader, count) for loader in loaders), strict=True):
        for batch in batches:
            found += batch["data"].tolist()
    return found


def through_json(state):
    """A state as another run gets it."""
    return json.loads(json.dumps(state))


# Refreshing a loader


@pytest.mark.parametrize("shuffle", ORDERS.values(), ids=ORDERS)
def test_the_next_epoch_has_the_files_there_are_then(three, shuffle):
    """Also files that sort before the others."""
    (loader,) = load(three, shuffle=shuffle)
    assert sorted(take([loader])) == expected(10, 20, 30)
    write(three, 5, 40)
    assert loader.refresh() == 2 * ROWS
    assert len(loader) == 7
    assert sorted(take([loader])) == expected(5, 10, 20, 30, 40)
    assert loader.refresh() == 0
    assert sorted(take([loader])) == expected(5, 10, 20, 30, 40)
    assert loader.epoch == 3


def test_an_epoch_in_progress_ends_as_it_began(three):
    """And its state is that of the old data until then."""
    (loader,) = load(three)
    (same,) = load(three)
    whole, batches = take([same]), iter(loader)
    found = next(batches)["data"].tolist()
    before = loader.state_dict()
    write(three, 5)
    assert loader.refresh() == ROWS
    assert loader.state_dict() == before
    assert len(loader.dataset) == 3 * ROWS
    found += [value for batch in batches for value in batch["data"].tolist()]
    assert found == whole
    assert loader.state_dict()["rows"] == 4 * ROWS
    assert sorted(take([loader])) == expected(5, 10, 20, 30)


def test_an_epoch_that_was_left_is_over(three):
    """The next loop is the next epoch, with what is new; until then the state is as it was."""
    (loader,) = load(three)
    take([loader], 2)
    before = loader.state_dict()
    write(three, 5)
    loader.refresh()
    assert loader.state_dict() == before
    assert sorted(take([loader])) == expected(5, 10, 20, 30)
    assert loader.epoch == 2


def test_setting_the_epoch_takes_what_is_new(three):
    """Nothing of the epoch that was left is to come any more."""
    (loader,) = load(three)
    take([loader], 2)
    write(three, 5)
    loader.refresh()
    loader.epoch = 7
    assert len(loader.dataset) == 4 * ROWS
    assert sorted(take([loader])) == expected(5, 10, 20, 30)


def test_epochs_after_a_refresh_are_those_of_a_new_loader(three):
    """The order is a function of data, seed and epoch: how the data was found does not count."""
    (loader,) = load(three, seed=3)
    take([loader])
    write(three, 5, 25, 40)
    loader.refresh()
    (fresh,) = load(three, seed=3)
    fresh.epoch = 1
    assert loader.state_dict() == fresh.state_dict()
    assert take([loader]) == take([fresh])


@pytest.mark.parametrize("processes", [0, 2])
def test_views_are_refreshed_with_their_loader(three, processes):
    """Maps, labels and chosen fields, in threads and in processes."""
    ds = ndfeed.open(three, sample="row").with_labels(name_of).map(add_one)
    with ndfeed.loader(
        ds, 5, shuffle=True, fields=("data", "label"), processes=processes
    ) as loader:
        list(loader)
        write(three, 5)
        assert loader.refresh() == ROWS
        found = [pair for x, y in loader for pair in zip(x.tolist(), y.tolist(), strict=True)]
    assert sorted(found) == [(v + 1, v // ROWS) for v in expected(5, 10, 20, 30)]


def add_one(batch):
    """A map that other processes know."""
    return {**batch, "data": batch["data"] + 1}


def test_files_that_vanish_are_named_or_skipped(three):
    """The count of new samples does not pay for those that are gone."""
    (loader,) = load(three)
    (three / "020.npy").unlink()
    write(three, 40)
    with pytest.raises(MissingError, match=r"020\.npy: 1 of 3 files of the dataset is gone"):
        loader.refresh()
    assert loader.refresh(missing="skip") == ROWS
    assert sorted(take([loader])) == expected(10, 30, 40)
    assert [os.path.basename(one.path) for one in loader.dataset.skipped] == ["020.npy"]


def test_a_changed_file_is_named(three):
    """Never other rows under the same numbers."""
    (loader,) = load(three)
    write(three, 20)
    with pytest.raises(ChangedError, match=r"020\.npy: 1 of 3 files of the dataset is not as"):
        loader.refresh()


def test_new_files_must_be_of_the_same_kind(three):
    """A loader's batches keep their shape; the dataset alone may become ragged."""
    ds = ndfeed.open(three, sample="file")
    loader = ndfeed.loader(ds, 2)
    np.save(three / "040.npy", np.arange(ROWS + 1))
    with pytest.raises(SchemaError, match=r"with the new files, field 'data' is int64.*it was int"):
        loader.refresh()
    assert len(ds.refresh()) == 4
    assert len(list(loader)) == 2


def test_a_loader_follows_a_folder_while_it_is_written(tmp_path):
    """Every epoch has whole files, never fewer than before; in the end, all of them."""
    write(tmp_path, 0)
    count = 80

    def work():
        for number in range(1, count):
            with open(tmp_path / f"{number:03}.npy", "wb", buffering=0) as file:
                np.save(file, np.arange(ROWS * number, ROWS * (number + 1)))
            time.sleep(0.002)

    (loader,) = load(tmp_path, size=7)
    writer = threading.Thread(target=work)
    writer.start()
    sizes = [len(loader.dataset)]
    while writer.is_alive():
        new = loader.refresh()
        found = sorted(take([loader]))
        assert len(found) == sizes[-1] + new
        assert all(value - value % ROWS + row in found for value in found for row in range(ROWS))
        sizes.append(len(found))
    writer.join()
    loader.refresh()
    assert sorted(take([loader])) == expected(*range(count))


def test_a_copy_has_the_data_that_was_found(three):
    """Pickled or copied between epochs."""
    (loader,) = load(three)
    write(three, 5)
    loader.refresh()
    wanted = take([copy.copy(loader)])
    assert sorted(wanted) == expected(5, 10, 20, 30)
    assert take([pickle.loads(pickle.dumps(loader))]) == wanted


def test_a_copy_made_within_an_epoch_begins_the_next_with_what_was_found(three):
    """As the loader itself does: the epoch in progress ends as it began."""
    (loader,) = load(three)
    batches = iter(loader)
    next(batches)
    write(three, 40)
    loader.refresh()
    for one in (copy.copy(loader), pickle.loads(pickle.dumps(loader))):
        assert len(take([one])) == 9
        assert sorted(take([one])) == expected(10, 20, 30, 40)


# Resuming with more files


@pytest.mark.parametrize("shuffle", ORDERS.values(), ids=ORDERS)
@pytest.mark.parametrize("new", [(40, 50), (5, 25)], ids=["after", "before"])
@pytest.mark.parametrize("worlds", [(1, 1), (2, 1), (2, 3), (3, 2)])
def test_what_was_seen_stays_seen_and_what_is_new_comes(three, shuffle, new, worlds):
    """In the epoch of the state, for any ranks and batch sizes before and after."""
    first, then = worlds
    write(three, 31, 32)
    before = load(three, 2, shuffle, first)
    seen = take(before, 2)
    state = through_json(before[0].state_dict())
    write(three, *new)
    after = load(three, 3, shuffle, then)
    with pytest.raises(ResumeError, match="pass grown=True if there are more now"):
        after[0].load_state_dict(state)
    for loader in after:
        loader.load_state_dict(state, grown=True)
    assert len({len(loader) for loader in after}) == 1
    rest = take(after)
    every = expected(10, 20, 30, 31, 32, *new)
    assert sorted(seen + rest) == sorted(every)
    assert after[0].epoch == 1
    assert sorted(take(after)) == sorted(every)
    plain = load(three, 3, shuffle, then)
    for loader in plain:
        loader.epoch = 2
    assert take(plain) == take(after)  # back to the order of all


@pytest.mark.parametrize("shuffle", ORDERS.values(), ids=ORDERS)
def test_data_may_grow_again_and_again_within_an_epoch(three, shuffle):
    """The state lists the generations, in a few hundred bytes of JSON."""
    seen, state, numbers = [], None, [10, 20, 30]
    for step, new in enumerate([(5,), (40, 41), (7, 42), ()]):
        world = 1 + step % 3
        loaders = load(three, 1 + step, shuffle, world)
        for loader in loaders if state else ():
            loader.load_state_dict(state, grown=True)
        seen += take(loaders, 2)
        state = through_json(loaders[0].state_dict())
        assert len(json.dumps(state)) < 600
        time.sleep(0.02)
        write(three, *new)
        for number in new:
            age(three / f"{number:03}.npy", 500 - 10 * step)
        numbers += new
    (again,) = load(three, 4, shuffle)
    again.load_state_dict(state)  # nothing came since, so that this is no question
    rest = take([again])
    assert sorted(seen + rest) == sorted(expected(*numbers))
    (other,) = load(three, 3, shuffle)
    other.load_state_dict(state, grown=True)
    assert take([other]) == rest


def test_files_of_another_kind_do_not_change_what_was_delivered(tmp_path):
    """Compressed files make ``shuffle=True`` a window from the next epoch on, and not before."""
    rows, seen, state = 0, [], None
    for number, (count, save) in enumerate(
        [(20, np.savez), (1, np.savez_compressed), (9, np.savez_compressed), (5, np.savez)]
    ):
        save(tmp_path / f"{9 - number}.npz", data=np.arange(rows, rows + count))
        age(tmp_path / f"{9 - number}.npz", 500 - 10 * number)
        rows += count
        loaders = load(tmp_path, 2, world=2)
        for loader in loaders if state else ():
            loader.load_state_dict(state, grown=True)
        seen += take(loaders, 2)
        state = through_json(loaders[0].state_dict())
    (last,) = load(tmp_path)
    last.load_state_dict(state)
    assert sorted(seen + take([last])) == list(range(rows))
    assert isinstance(last.order, ndfeed.Windows)


def test_a_state_within_a_grown_epoch_resumes_anywhere(three):
    """Also in a copy of the loader, and in a loader that had another order of the epoch."""
    (loader,) = load(three)
    take([loader], 1)
    state = loader.state_dict()
    write(three, 5)
    (now,) = load(three)
    now.load_state_dict(state, grown=True)
    take([now], 2)
    later = through_json(now.state_dict())
    assert later["more"]["grown"] == [[12, 3, state["data"]]]
    (other,) = load(three)
    other.load_state_dict(later)
    twin = pickle.loads(pickle.dumps(other))
    rest = take([other])
    assert take([twin]) == rest
    other.load_state_dict(state, grown=True)
    take([other], 2)
    (fresh,) = load(three)
    other.load_state_dict(fresh.state_dict())  # a plain one again
    assert take([other]) == take([fresh])


def test_refreshing_a_loader_and_loading_an_older_state(three):
    """The state is compared with the files that were found."""
    (loader,) = load(three)
    seen = take([loader], 2)
    state = loader.state_dict()
    write(three, 5)
    loader.refresh()
    loader.load_state_dict(state, grown=True)
    assert sorted(seen + take([loader])) == expected(5, 10, 20, 30)


def test_a_state_at_the_start_of_an_epoch_needs_no_history(three):
    """Nothing was delivered, so it is an epoch like any other."""
    (loader,) = load(three)
    take([loader])
    state = loader.state_dict()
    write(three, 5)
    (now,) = load(three)
    now.load_state_dict(state, grown=True)
    (plain,) = load(three)
    plain.epoch = 1
    assert now.state_dict() == plain.state_dict()
    assert take([now]) == take([plain])


def test_the_old_dataset_tells_where_times_do_not(three):
    """Files that were copied in between, for example."""
    (loader,) = load(three)
    seen, state = take([loader], 2), loader.state_dict()
    write(three, 5, 25)
    for number in (5, 10, 25, 20, 30):
        age(three / f"{number:03}.npy", 1000 - number % 7)
        time.sleep(0.02)
    (now,) = load(three)
    with pytest.raises(ResumeError, match=r"cannot tell which of 5 files were there.*grown="):
        now.load_state_dict(state, grown=True)
    old = ndfeed.open([three / f"{n:03}.npy" for n in (10, 20, 30)], sample="row")
    now.load_state_dict(state, grown=old)
    assert sorted(seen + take([now])) == expected(5, 10, 20, 25, 30)


def test_states_that_did_not_grow_are_refused(three):
    """Other data, other orders, damaged histories: in one line."""
    (loader,) = load(three)
    take([loader], 2)
    state = loader.state_dict()
    write(three, 40)
    (now,) = load(three)
    (blocks,) = load(three, shuffle=ndfeed.Blocks(4))
    with pytest.raises(ResumeError, match=r"another order: exact\(\), but this is blocks"):
        blocks.load_state_dict(state, grown=True)
    with pytest.raises(ResumeError, match="cannot tell"):
        now.load_state_dict(state | {"data": "0" * 16}, grown=True)
    with pytest.raises(ResumeError, match="damaged: 13 of 12 samples"):
        now.load_state_dict(state | {"samples": 13}, grown=True)
    with pytest.raises(TypeError, match="grown must be True, False or a Dataset"):
        now.load_state_dict(state, grown="yes")
    now.load_state_dict(state, grown=True)
    good = now.state_dict()
    for bad in ([[17, 6, "x"]], [[12, 7, "x"]], [[12, 6]], ["x"], [[12, "6", "x"]]):
        with pytest.raises(ResumeError, match="damaged"):
            now.load_state_dict(good | {"more": {"grown": bad}})
    many = [[12, 6, state["data"]]] * 65
    with pytest.raises(ResumeError, match="grown more than 64 times"):
        now.load_state_dict(good | {"more": {"grown": many}})


OTHERS = {
    "recent": ndfeed.Recent(9),
    "balanced": ndfeed.Balanced("label"),
    "sorted": ndfeed.Sorted("label"),
    "buckets": ndfeed.Buckets("data", edges=(3, 5)),
}


@pytest.mark.parametrize("order", OTHERS.values(), ids=OTHERS)
def test_orders_by_facts_follow_files_from_epoch_to_epoch(three, order):
    """They ask for the facts of new samples."""
    ds = ndfeed.open(three, sample="file").with_labels(name_of)
    loader = ndfeed.loader(ds, 1, shuffle=order)
    list(loader)
    write(three, 5, 40)
    assert loader.refresh() == 2
    assert {5, 10, 20, 30, 40} == {y for batch in loader for y in batch["label"].tolist()}
    next(iter(loader))
    write(three, 50)
    loader.refresh()
    loader.epoch = 3
    assert 50 in {y for batch in loader for y in batch["label"].tolist()}


def test_an_order_that_was_resumed_follows_files_too(three):
    """From the epoch after the one that was resumed."""
    ds = ndfeed.open(three, sample="file").with_labels(name_of)
    for order in OTHERS.values():
        loader = ndfeed.loader(ds, 1, shuffle=order)
        next(iter(loader))
        again = ndfeed.loader(ds, 1, shuffle=order)
        again.load_state_dict(loader.state_dict())
        write(three, 77)
        assert again.refresh() == 1
        list(again)
        for _ in range(2):
            assert 77 in {y for batch in again for y in batch["label"].tolist()}
        (three / "077.npy").unlink()


def test_generations_that_do_not_contain_each_other_are_refused(three):
    """A state that says so was made by hand: samples would be lost, or come twice."""
    other = ndfeed.open([three / "030.npy"], sample="row")
    (loader,) = load(three)
    take([loader], 2)
    state = loader.state_dict()
    first = ndfeed.open([three / "010.npy", three / "020.npy"], sample="row")
    history = [[4, 1, other.fingerprint], [8, 3, first.fingerprint]]
    with pytest.raises(ResumeError, match="cannot tell which files came when"):
        loader.load_state_dict(state | {"more": {"grown": history}})


def test_weights_for_fewer_samples_are_refused(three):
    """Whoever gives a weight for each sample has to give them for the new ones; nothing is lost."""
    ds = ndfeed.open(three, sample="row")
    loader = ndfeed.loader(ds, 3, shuffle=ndfeed.Weighted(np.ones(3 * ROWS)))
    write(three, 5)
    with pytest.raises(ValueError, match="12"):
        loader.refresh()
    assert len(take([loader])) == 3 * ROWS


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_compressed_files_grow_as_well(tmp_path, save):
    """A window over files that are decoded: the rest of the old epoch, then the new files."""
    write(tmp_path, *range(10, 20), save=lambda path, rows: save(path, data=rows), suffix=".npz")
    (loader,) = load(tmp_path, 3)
    seen, state = take([loader], 4), through_json(loader.state_dict())
    for number in (5, 21, 22):
        save(tmp_path / f"{number:03}.npz", data=np.arange(ROWS * number, ROWS * (number + 1)))
    loaders = load(tmp_path, 2, world=2)
    for one in loaders:
        one.load_state_dict(state, grown=True)
    assert sorted(seen + take(loaders)) == expected(5, *range(10, 20), 21, 22)
    assert sorted(take(loaders)) == expected(5, *range(10, 20), 21, 22)


def test_random_maps_go_on_as_they_were(three):
    """What a map draws is fixed by the position, which an epoch that grew goes on counting."""

    def draw(ds):
        return ds.map(lambda one, rng: {**one, "noise": rng.random()}, batched=False)

    ds = draw(ndfeed.open(three, sample="row"))
    loader = ndfeed.loader(ds, 3, shuffle=True)
    list(islice(loader, 2))
    state = loader.state_dict()
    write(three, 40)
    now = draw(ndfeed.open(three, sample="row"))
    found = []
    for size in (1, 5):
        loader = ndfeed.loader(now, size, shuffle=True)
        loader.load_state_dict(state, grown=True)
        batches = list(loader)
        found.append([np.concatenate([b[name] for b in batches]) for name in ("data", "noise")])
    np.testing.assert_array_equal(found[0], found[1])


# A replay buffer


def test_recent_is_a_replay_buffer(three):
    """The samples of the newest files, also while they come; resumed as any order is."""
    (loader,) = load(three, shuffle=ndfeed.Recent(2 * ROWS))
    assert sorted(take([loader])) == expected(20, 30)
    assert len(loader) == 3
    write(three, 40)
    loader.refresh()
    assert sorted(take([loader])) == expected(30, 40)
    seen = take([loader], 1)
    state = through_json(loader.state_dict())
    ranks = load(three, 2, ndfeed.Recent(2 * ROWS), 2)
    for one in ranks:
        one.load_state_dict(state)
    assert sorted(seen + take(ranks)) == expected(30, 40)
    assert loader.order.mixing.ratio == 1.0
    (all_of_them,) = load(three, shuffle=ndfeed.Recent(1000))
    assert sorted(take([all_of_them])) == expected(10, 20, 30, 40)


def test_a_writer_in_another_process_is_followed(tmp_path):
    """A job that is ended and resumed all the time, while files come: an epoch has all of them."""
    write(tmp_path, 0)
    code = """
    for number in range(1, 30):
        np.save(f"{args[0]}/{number:03}.npy", np.arange(4 * number, 4 * (number + 1)))
        time.sleep(0.02)
    """
    ds = ndfeed.open(tmp_path, sample="row")
    writer = threading.Thread(target=run, args=(code, tmp_path))
    writer.start()
    state, epoch, seen = ndfeed.loader(ds, 5, shuffle=True).state_dict(), 0, []
    while True:
        done = not writer.is_alive()
        ds = ds.refresh()
        loader = ndfeed.loader(ds, 5, shuffle=True)
        loader.load_state_dict(state, grown=True)
        if loader.epoch > epoch:
            epoch, seen = loader.epoch, []
        seen += take([loader], None if done else 1)
        if done:
            break
        state = through_json(loader.state_dict())
    writer.join()
    assert sorted(seen) == expected(*range(30))


@pytest.mark.parametrize("order", [ndfeed.Weighted, ndfeed.Sorted, ndfeed.Balanced])
def test_an_array_for_an_order_does_not_grow_with_the_data(three, order):
    """Neither more numbers nor take() can be given to a loader; a field or a new loader can."""
    loader = ndfeed.loader(
        ndfeed.open(three, sample="row"), 4, shuffle=order(np.arange(1, 3 * ROWS + 1))
    )
    write(three, 3)
    with pytest.raises(ValueError, match=r"use the name of a field, or make a new loader"):
        loader.refresh()
    again = ndfeed.loader(ndfeed.open(three, sample="row"), 4, shuffle=order("data"))
    write(three, 4)
    assert again.refresh() == ROWS


def find_values(folder):
    """What an order by value goes by, as an array: the rows of files, which are numbers."""
    return np.concatenate([np.load(path) for path in sorted(folder.glob("*.npy"))])


# Orders that need to know something of samples, made for the files there are; and whether an array
# says it.
BY_VALUE = {
    "sorted": lambda folder: ndfeed.Sorted("data", reverse=True),
    "sorted by an array": lambda folder: ndfeed.Sorted(find_values(folder), reverse=True),
    "sorted in stages": lambda folder: ndfeed.Sorted("data", stages=3),
    "recent": lambda folder: ndfeed.Recent(10_000),
    "buckets": lambda folder: ndfeed.Buckets("data"),
    "buckets of an array": lambda folder: ndfeed.Buckets(find_values(folder), (60, 120)),
}


@pytest.mark.parametrize("order", BY_VALUE.values(), ids=BY_VALUE)
@pytest.mark.parametrize("worlds", [(1, 1), (2, 1), (2, 3)])
def test_orders_by_value_take_in_new_files_within_an_epoch(three, order, worlds):
    """Again and again: what was seen stays seen, what is new comes, and nothing comes twice."""
    numbers, seen, state = [10, 20, 30], [], None
    for step, new in enumerate([(5,), (40, 41), (7, 42)]):
        loaders = load(three, 1 + step, order(three), worlds[0])
        for loader in loaders if state else ():
            loader.load_state_dict(state, grown=True)
        seen += take(loaders, 2)
        state = through_json(loaders[0].state_dict())
        write(three, *new)
        for number in new:
            age(three / f"{number:03}.npy", 500 - 10 * step)
        numbers += new
    after = load(three, 2, order(three), worlds[1])
    with pytest.raises(ResumeError, match="pass grown=True if there are more now"):
        after[0].load_state_dict(state)
    for loader in after:
        loader.load_state_dict(state, grown=True)
    middle = take(after, 2)
    later = through_json(after[0].state_dict())
    assert len(json.dumps(later)) < 700
    for loader in after:
        loader.load_state_dict(later)
    rest = take(after)
    assert sorted(seen + middle + rest) == sorted(expected(*numbers))
    again = load(three, 5, order(three))
    again[0].load_state_dict(later)
    twins = pickle.loads(pickle.dumps(again[0])), copy.copy(again[0])
    found = take(again)
    assert sorted(found) == sorted(rest)
    assert [take([twin]) for twin in twins] == [found, found]
    assert after[0].epoch == 1
    (plain,) = load(three, 5, order(three))
    plain.epoch = 1
    assert take(again) == take([plain])  # the next epoch is one like any other


def write_texts(folder, *numbers):
    """Write nine texts of several lengths each, whose words tell which text they are of."""
    for number in numbers:
        for row in range(9):
            path = folder / f"{number:03}-{row}.npy"
            np.save(path, np.full(1 + 7 * (number + row) % 20, 100 * number + row))
            age(path)


def load_texts(folder, tokens, world=1):
    """The loaders of all ranks, for batches of so many tokens."""
    ds = ndfeed.open(folder, sample="file")
    return [
        ndfeed.loader(ds, tokens=tokens, shuffle=True, shard=(rank, world)) for rank in range(world)
    ]


def take_texts(loaders, tokens, count=None):
    """Which texts all ranks get; no batch is over the budget."""
    found = []
    for batches in zip(*(islice(loader, count) for loader in loaders), strict=True):
        for batch in batches:
            assert max(map(len, batch["data"]), default=0) * len(batch["data"]) <= tokens
            found += [int(words[0]) for words in batch["data"]]
    return found


@pytest.mark.parametrize("worlds", [(1, 1), (2, 1), (2, 3)])
def test_batches_of_tokens_take_in_new_files_within_an_epoch(tmp_path, worlds):
    """No batch is over the budget, on any rank, and a state says for which one it was made."""
    write_texts(tmp_path, 10, 20, 30)
    before = load_texts(tmp_path, 50, worlds[0])
    seen = take_texts(before, 50, 2)
    state = through_json(before[0].state_dict())
    write_texts(tmp_path, 5, 40)
    now = load_texts(tmp_path, 40, worlds[1])
    for loader in now:
        loader.load_state_dict(state, grown=True)
    assert len({len(loader) for loader in now}) == 1
    seen += take_texts(now, 40, 2)
    later = through_json(now[0].state_dict())
    assert later["more"] == {
        "grown": [[27, state["samples"], state["data"], {"ranks": worlds[0], "tokens": 50}]],
        "ranks": worlds[1],
        "tokens": 40,
    }
    rests = []
    for tokens, world in ((40, worlds[1]), (33, 2), (100, 1)):
        loaders = load_texts(tmp_path, tokens, world)
        for loader in loaders:
            loader.load_state_dict(later)
        rests.append(take_texts(loaders, tokens))
    assert rests[0] == rests[1] == rests[2]
    texts = [100 * number + row for number in (5, 10, 20, 30, 40) for row in range(9)]
    assert sorted(seen + rests[0]) == texts
    assert sorted(take_texts(now, 40)) == texts  # the next epoch


def test_a_text_over_the_budget_is_refused_when_it_comes(tmp_path):
    """As in any epoch."""
    write_texts(tmp_path, 10)
    (loader,) = load_texts(tmp_path, 20)
    take_texts([loader], 20, 1)
    np.save(tmp_path / "020.npy", np.arange(21))
    with pytest.raises(ValueError, match="tokens must hold the longest sample"):
        loader.refresh()


@pytest.mark.parametrize("damage", [{}, {"ranks": 0, "tokens": 3}, {"ranks": "2", "tokens": 9}])
def test_a_damaged_history_of_buckets_is_refused(tmp_path, damage):
    """In one line."""
    write_texts(tmp_path, 10)
    (loader,) = load_texts(tmp_path, 20)
    take_texts([loader], 20, 2)
    state = loader.state_dict()
    write_texts(tmp_path, 20)
    (now,) = load_texts(tmp_path, 20)
    now.load_state_dict(state, grown=True)
    good = now.state_dict()
    for more in (
        {"grown": good["more"]["grown"]} | damage,
        good["more"] | {"grown": [[*good["more"]["grown"][0][:3], damage]]},
        good["more"] | {"grown": [[*good["more"]["grown"][0][:3], 5]]},
    ):
        with pytest.raises(ResumeError, match="damaged"):
            now.load_state_dict(good | {"more": more})


def load_kinds(folder, size, world=1):
    """The loaders of all ranks, whose samples have as many classes as there are tens of files."""
    ds = ndfeed.open(folder, sample="row").with_labels(kind_of, field="kind")
    return [
        ndfeed.loader(ds, size, shuffle=ndfeed.Balanced("kind"), shard=(rank, world))
        for rank in range(world)
    ]


def kind_of(path):
    """A class that other processes know."""
    return name_of(path) // 10


@pytest.mark.parametrize("worlds", [(1, 1), (2, 1), (2, 3)])
def test_balanced_classes_stay_even_when_files_and_classes_come(three, worlds):
    """The round is finished; then all classes take turns, with what each has not had first."""
    write(three, 11, 12)  # the first class has 12 samples, the others 4
    before = load_kinds(three, 2, worlds[0])
    seen = take(before, 1)
    state = through_json(before[0].state_dict())
    write(three, 5, 13)
    now = load_kinds(three, 3, worlds[1])
    for loader in now:
        loader.load_state_dict(state, grown=True)
    assert len({len(loader) for loader in now}) == 1
    middle = take(now, 1)
    later = through_json(now[0].state_dict())
    assert len(json.dumps(later)) < 500
    rests = []
    for size, world in ((3, worlds[1]), (4, 2), (1, 3)):
        loaders = load_kinds(three, size, world)
        for loader in loaders:
            loader.load_state_dict(later)
        rests.append(take(loaders))
    assert sorted(rests[0]) == sorted(rests[1]) == sorted(rests[2])
    found = take_in_order(three, later)
    end = -(-len(seen) // 3) * 3 - len(seen) - len(middle)  # of the round that was begun
    assert len(found) == len(rests[0])
    assert end <= 0 or len({value // (10 * ROWS) for value in found[:end]}) == end
    for begin in range(end % 4, len(found) - 3, 4):
        assert {value // (10 * ROWS) for value in found[begin : begin + 4]} == {0, 1, 2, 3}
    first = [value for value in seen + middle + rests[0] if 1 <= value // (10 * ROWS) < 2]
    assert len(first) == len(set(first))  # 16 samples: none comes again before all have come
    assert len(seen + middle + rests[0]) >= 7 * ROWS


def take_in_order(folder, state):
    """The rest of an epoch as one rank has it."""
    (loader,) = load_kinds(folder, 1)
    loader.load_state_dict(state)
    return take([loader])


@pytest.mark.parametrize(
    "order", [ndfeed.Buckets("data"), ndfeed.Balanced("data"), ndfeed.Sorted("data")], ids=str
)
def test_the_rest_keeps_its_order_when_batches_change(three, order):
    """A loader whose share is set anew, and a pass over the epoch from its beginning."""
    (loader,) = load(three, 2, order)
    seen, state = take([loader], 1), through_json(loader.state_dict())
    write(three, 5, 40)
    (now,) = load(three, 2, order)
    now.load_state_dict(state, grown=True)
    state = now.state_dict()
    now.share = replace(now.share, batch_size=5)
    assert now.state_dict() == state
    seen += take([now], 1)
    (other,) = load(three, 3, order)
    other.load_state_dict(now.state_dict())
    whole = [value for batch in other.at(0) for value in batch["data"].tolist()]
    assert seen + take([other]) == whole


def test_sorted_in_reverse_has_what_is_new_in_its_place(three):
    """The rest of the epoch is sorted, what came included."""
    (loader,) = load(three, shuffle=ndfeed.Sorted("data", reverse=True))
    seen = take([loader], 2)
    state = through_json(loader.state_dict())
    write(three, 5, 40)
    (now,) = load(three, shuffle=ndfeed.Sorted("data", reverse=True))
    now.load_state_dict(state, grown=True)
    assert len(now) == 7
    rest = take([now])
    assert rest == sorted(set(expected(5, 10, 20, 30, 40)) - set(seen), reverse=True)
    now.load_state_dict(state, grown=True)
    take([now], 1)
    now.epoch = 0  # the epoch from its beginning: one like any other
    assert take([now]) == sorted(expected(5, 10, 20, 30, 40), reverse=True)
    now.load_state_dict(state, grown=True)
    assert now.order.mixing.part == "value"


@pytest.mark.parametrize("by_array", [False, True])
def test_weighted_draws_from_what_there_is(three, by_array):
    """From the position on: no draw depends on another, so that a state is one like any other."""

    def make():
        weights = find_values(three).astype(float)
        return ndfeed.Weighted(weights if by_array else "data")

    loaders = load(three, 2, make(), 2)
    seen = take(loaders, 2)
    state = through_json(loaders[0].state_dict())
    write(three, 5, 900)
    (now,) = load(three, 3, make())
    now.load_state_dict(state, grown=True)
    later = now.state_dict()
    assert (later["samples"], later["rows"]) == (8, 5 * ROWS)
    assert "more" not in later
    rest = take([now])
    (plain,) = load(three, 3, make())
    assert take([plain])[8:] == rest
    assert len(seen + rest) == 5 * ROWS
    assert 900 in {value // ROWS for value in rest}
    (again,) = load(three, 5, make())
    again.load_state_dict(later)
    assert take([again]) == rest


@pytest.mark.parametrize("rows", [5, 100])
def test_weighted_with_a_number_of_rows_draws_as_many(three, rows):
    """Also more than there are samples."""
    (loader,) = load(three, 2, ndfeed.Weighted("data", rows=rows))
    take([loader], 2 if rows == 5 else 20)
    state = through_json(loader.state_dict())
    write(three, 40)
    (now,) = load(three, 2, ndfeed.Weighted("data", rows=rows))
    now.load_state_dict(state, grown=True)
    assert len(take([now])) == rows - state["samples"]


@pytest.mark.parametrize("order", [ndfeed.Weighted, ndfeed.Sorted, ndfeed.Balanced])
def test_an_array_says_the_same_of_samples_that_were_there(three, order):
    """Else the state is that of another order."""
    (loader,) = load(three, 2, order(find_values(three)))
    take([loader], 2)
    state = through_json(loader.state_dict())
    write(three, 40)
    for values in (find_values(three)[::-1], [*range(3 * ROWS, 0, -1), 1, 2, 3, 4]):
        (now,) = load(three, 2, order(values))
        with pytest.raises(ResumeError, match="the state belongs to another order"):
            now.load_state_dict(state, grown=True)


def test_weights_may_be_0_for_all_samples_there_were(three):
    """Which says that they are others."""
    (loader,) = load(three, 2, ndfeed.Weighted("data"))
    take([loader], 2)
    write(three, 40)
    (now,) = load(three, 2, ndfeed.Weighted(np.arange(4 * ROWS) // (3 * ROWS)))
    with pytest.raises(ResumeError, match="the state belongs to another order"):
        now.load_state_dict(loader.state_dict(), grown=True)


class Backwards:
    """An order that somebody wrote."""

    def length(self, n):
        return n

    def rows(self, positions, n, seed, epoch):
        return n - 1 - positions


def test_an_order_of_your_own_takes_in_new_files_from_epoch_to_epoch(three):
    """Nobody knows which samples it has left within an epoch."""
    (loader,) = load(three, shuffle=Backwards())
    take([loader], 2)
    write(three, 40)
    (later,) = load(three, shuffle=Backwards())
    text = r"cannot take in what is new: .*; start the next epoch: loader\.epoch = 1"
    with pytest.raises(ResumeError, match=text):
        later.load_state_dict(through_json(loader.state_dict()), grown=True)
    later.epoch = 1
    assert sorted(take([later])) == expected(10, 20, 30, 40)


@pytest.mark.parametrize("samples", [13, 100])
def test_a_state_with_more_samples_than_there_were_is_damaged(three, samples):
    """Whatever there are now."""
    (loader,) = load(three, shuffle=ndfeed.Sorted("data"))
    take([loader], 2)
    state = loader.state_dict() | {"samples": samples}
    write(three, 40)
    (now,) = load(three, shuffle=ndfeed.Sorted("data"))
    with pytest.raises(ResumeError, match=f"damaged: {samples} of 12 samples"):
        now.load_state_dict(state, grown=True)


def test_a_state_of_a_view_that_cannot_grow(three):
    """Refused as any state that does not fit, with the reason that refresh() gives."""
    state = ndfeed.loader(ndfeed.open(three, sample="row").split(0.5)[0], 3).state_dict()
    write(three, 40)
    later = ndfeed.loader(ndfeed.open(three, sample="row").split(0.5)[0], 3)
    with pytest.raises(ResumeError, match=r"cannot grow after split\(\) or folds\(\)"):
        later.load_state_dict(state, grown=True)
