"""Functions on tensors: the batch's memory both ways, and draws that can be repeated."""

import threading

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("ml_dtypes")

from loading.making import images, large_rows  # noqa: E402
from torch_making import brightened, given, one_noisy, texts  # noqa: E402

import ndfeed  # noqa: E402
import ndfeed.torch  # noqa: E402


def epoch(ds, batch_size=10, **words):
    """The fields that were drawn, of one epoch."""
    with ndfeed.torch.loader(ds, batch_size, shuffle=True, **words) as loader:
        batches = list(loader)
    drawn = [name for name in batches[0] if name not in ("image", "label")]
    return {name: torch.cat([batch[name] for batch in batches]) for name in drawn}


def assert_equal(one, other):
    assert list(one) == list(other)
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_memory_is_shared_both_ways(tmp_path):
    """Nothing is copied on the way in or out."""
    seen = []

    def halved(batch):
        seen.append(batch["image"].data_ptr())
        return {"image": batch["image"], "half": batch["image"][:, ::2]}

    with ndfeed.torch.loader(ndfeed.torch.map(large_rows(tmp_path, 8), halved), 8) as loader:
        batch = next(iter(loader))

        assert batch["image"].data_ptr() == batch["half"].data_ptr() == seen[-1]


def test_types_survive(tmp_path):
    """Also those that NumPy lacks, and a layout."""

    def made(batch):
        image = batch["image"].permute(0, 3, 1, 2).to(torch.bfloat16)
        return {"image": image, "flag": batch["label"] > 5, "grad": image.float().requires_grad_()}

    batch = next(iter(ndfeed.torch.loader(ndfeed.torch.map(images(tmp_path), made), 10)))

    assert batch["image"].dtype == torch.bfloat16
    assert batch["image"].is_contiguous(memory_format=torch.channels_last)
    assert batch["flag"].dtype == torch.bool
    assert not batch["grad"].requires_grad


@pytest.mark.parametrize("function", [brightened, given])
def test_draws_are_the_same_in_threads_and_processes(tmp_path, function):
    """Fixed by seed, epoch and position."""
    ds = ndfeed.torch.map(images(tmp_path), function)
    first = epoch(ds, threads=1)

    assert_equal(epoch(ds, threads=4), first)
    assert_equal(epoch(ds, processes=2), first)
    assert not torch.equal(epoch(ds, seed=1)["noise"], first["noise"])
    with ndfeed.torch.loader(ds, 10, shuffle=True) as loader:
        epochs = [torch.cat([batch["noise"] for batch in loader]) for _ in range(2)]
    assert torch.equal(epochs[0], first["noise"])
    assert not torch.equal(epochs[1], first["noise"])


def test_forked_processes_do_not_wait_for_threads_that_stayed_behind(tmp_path):
    """Work that torch shares out among threads, here first and then there."""
    torch.ones(1 << 22).sin().sum()
    ds = ndfeed.torch.map(
        images(tmp_path, 4), lambda batch: {"x": torch.ones(4, 1 << 20).sin() + batch["label"][0]}
    )
    with ndfeed.torch.loader(ds, 4, processes=1) as loader:
        assert next(iter(loader))["x"].shape == (4, 1 << 20)


def test_draws_go_on_after_a_resume(tmp_path):
    """As they would have."""
    ds = ndfeed.torch.map(images(tmp_path), brightened)
    loader = ndfeed.torch.loader(ds, 10, shuffle=True)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    rest = [batch["noise"] for batch in batches]
    loader.load_state_dict(state)

    assert all(torch.equal(a, b["noise"]) for a, b in zip(rest, loader, strict=True))


def test_single_samples_draw_by_their_position(tmp_path):
    """Whatever the batch size."""
    ds = ndfeed.torch.map(images(tmp_path), one_noisy, batched=False)

    assert_equal(epoch(ds, 10), epoch(ds, 7))
    assert len(epoch(ds)["noise"].unique()) == 100


def test_global_generator_is_left_alone(tmp_path):
    """Training draws from it at the same time."""
    with ndfeed.torch.loader(ndfeed.torch.map(images(tmp_path), brightened), 10) as loader:
        torch.manual_seed(3)
        expected = torch.rand(10)
        torch.manual_seed(3)
        found = torch.stack([torch.rand(()) for _ in loader])

    assert torch.equal(found, expected)


DRAWS = {
    "rand": lambda: torch.rand(3),
    "randn": lambda: torch.randn(3),
    "randint": lambda: torch.randint(0, 1000, (3,)),
    "randperm": lambda: torch.randperm(100),
    "rand_like": lambda: torch.rand_like(torch.zeros(3)),
    "randn_like": lambda: torch.randn_like(torch.zeros(3)),
    "normal": lambda: torch.normal(torch.zeros(3), 1.0),
    "bernoulli": lambda: torch.bernoulli(torch.full((100,), 0.5)),
    "multinomial": lambda: torch.multinomial(torch.ones(100), 5),
    "poisson": lambda: torch.poisson(torch.full((9,), 50.0)),
    "uniform_": lambda: torch.empty(3).uniform_(0, 1),
    "normal_": lambda: torch.empty(3).normal_(),
    "random_": lambda: torch.empty(3, dtype=torch.int64).random_(),
    "exponential_": lambda: torch.empty(3).exponential_(),
    "method bernoulli": lambda: torch.full((100,), 0.5).bernoulli(),
    "Normal": lambda: torch.distributions.Normal(0.0, 1.0).sample((3,)),
    "Beta": lambda: torch.distributions.Beta(0.5, 0.5).sample((3,)),
    "Categorical": lambda: torch.distributions.Categorical(torch.ones(100)).sample((3,)),
}


@pytest.mark.parametrize("name", DRAWS)
def test_ways_to_draw(tmp_path, name):
    """All the ways that take a generator, and what is built of them."""

    def drawn(batch):
        return {"label": batch["label"], "drawn": DRAWS[name]().double().repeat(10, 1)}

    ds = ndfeed.torch.map(images(tmp_path, 30), drawn)
    before = torch.get_rng_state()
    first = epoch(ds)

    assert torch.equal(torch.get_rng_state(), before)
    assert_equal(first, epoch(ds))
    assert not torch.equal(first["drawn"][0], first["drawn"][10])


def test_a_generator_of_one_s_own_is_used(tmp_path):
    """A function may have reasons."""

    def drawn(batch):
        own = torch.Generator().manual_seed(1)
        return {"label": batch["label"], "x": torch.rand(len(batch["label"]), generator=own)}

    assert len(epoch(ndfeed.torch.map(images(tmp_path), drawn))["x"].unique()) == 10


@pytest.mark.parametrize(
    "draw",
    [lambda: torch.rand(2, device="meta"), lambda: torch.empty(2, device="meta").uniform_()],
)
def test_other_devices_have_generators_of_their_own(tmp_path, draw):
    """One of the CPU would be refused there."""

    def drawn(batch):
        assert draw().shape == (2,)
        return {"label": batch["label"]}

    assert not epoch(ndfeed.torch.map(images(tmp_path), drawn))


def test_ragged_fields_are_lists(tmp_path):
    """In and out."""

    def twice(batch):
        return {"text": [text * 2 for text in batch["text"]]}

    ds = ndfeed.torch.map(texts(tmp_path, [3, 1, 2]), twice)

    (batch,) = ndfeed.torch.loader(ds, 3)
    assert [text.tolist() for text in batch["text"]] == [[0, 2, 4], [200], [400, 402]]
    (batch,) = ndfeed.torch.loader(ds, 3, ragged="nested")
    assert batch["text"].unbind()[2].tolist() == [400, 402]


def test_arrays_come_out_of_a_loader_of_arrays(tmp_path):
    """A mapped dataset is a dataset like any other."""
    ds = ndfeed.torch.map(images(tmp_path), lambda batch: {"x": batch["label"] * 2})

    assert ds[3]["x"] == 6
    assert next(iter(ndfeed.loader(ds, 4)))["x"].tolist() == [0, 2, 4, 6]


def test_mode_is_the_thread_s_own(tmp_path):
    """Another thread draws from the global generator while a function runs."""
    begun, drawn = threading.Event(), threading.Event()

    def slow(batch):
        begun.set()
        assert drawn.wait(60)
        return {"x": batch["label"] + torch.rand(len(batch["label"]))}

    ds = ndfeed.torch.map(images(tmp_path, 10), slow)
    drawn.set()
    with ndfeed.torch.loader(ds, 10, threads=1) as loader:
        begun.clear()
        drawn.clear()
        torch.manual_seed(0)
        expected = torch.rand(5)
        torch.manual_seed(0)
        found = []
        consumer = threading.Thread(target=lambda: found.append(next(iter(loader))["x"]))
        consumer.start()
        assert begun.wait(60)
        here = torch.rand(5)
        drawn.set()
        consumer.join(60)

    assert torch.equal(here, expected)
    assert len(found[0]) == 10


@pytest.mark.parametrize(
    ("function", "text"),
    [(lambda batch: 3, "must return a dict"), (lambda batch: {"x": torch.ones(())}, "for each of")],
)
def test_wrong_results(tmp_path, function, text):
    """Named by what the user wrote."""
    with pytest.raises((TypeError, ValueError), match=text):
        next(iter(ndfeed.torch.loader(ndfeed.torch.map(images(tmp_path), function), 5)))


def test_not_a_function(tmp_path):
    """At once."""
    with pytest.raises(TypeError, match="takes a function"):
        ndfeed.torch.map(images(tmp_path), 3)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("x", torch.neg), "got str for the dataset; call ndfeed.open first"),
        ((torch.neg, None), "for the dataset; call ndfeed.open first"),
    ],
)
def test_map_of_something_else(words, text):
    """It was an AttributeError of a str."""
    with pytest.raises(TypeError, match=text):
        ndfeed.torch.map(*words)
