"""Lightning's Trainer with our loader: fit, checkpoints within an epoch and behind it, resume."""

import json
import logging
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("lightning.pytorch")

from lightning.pytorch.callbacks import ModelCheckpoint  # noqa: E402
from loader_contract import LENGTHS  # noqa: E402
from loading.making import images, labels, ragged  # noqa: E402
from torch_recorder import Recorder, trainer  # noqa: E402

import ndfeed  # noqa: E402
import ndfeed.torch  # noqa: E402

# Lightning warns of what it finds on this machine, not of us.
pytestmark = pytest.mark.filterwarnings("ignore")

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

TESTS = pathlib.Path(__file__).parents[1]


def make(ds, batch_size=20):
    return ndfeed.torch.loader(ds, batch_size, shuffle=True, seed=4)


def expected(ds, epochs):
    """What each epoch should see, batch by batch."""
    loader = make(ds)
    return {epoch: [batch["label"].tolist() for batch in loader] for epoch in range(epochs)}


def test_fit(tmp_path):
    """Each epoch once and whole, with validation in between."""
    ds = images(tmp_path)
    model = Recorder()
    trainer(3).fit(model, make(ds), ndfeed.torch.loader(ds, 50))

    assert model.seen == expected(ds, 3)
    assert model.validated[-100:] == list(range(100))


@pytest.mark.parametrize("every", [2, 3, 5], ids=["within", "within another", "at the end"])
def test_resume_within_an_epoch(tmp_path, every):
    """A checkpoint by steps: the resumed run sees the batches that were left, and no other."""
    ds = images(tmp_path)
    kept = ModelCheckpoint(tmp_path / "kept", every_n_train_steps=every, save_top_k=-1)
    trainer(2, kept).fit(Recorder(), make(ds))
    whole = expected(ds, 3)
    for path in sorted(pathlib.Path(tmp_path / "kept").iterdir()):
        steps = torch.load(path, weights_only=False)["global_step"]
        model = Recorder()
        again = trainer(3)
        again.fit(model, make(ds), ckpt_path=path, weights_only=False)
        every_batch = [batch for epoch in range(3) for batch in whole[epoch]]
        found = [batch for epoch in sorted(model.seen) for batch in model.seen[epoch]]

        assert found == every_batch[steps:]
        assert again.global_step == 15


def test_a_mixture_resumes_within_an_epoch(tmp_path):
    """The checkpoint names where each source stood; the rest of the epoch follows, and the next."""
    sources = {"web": images(tmp_path / "a", 60), "code": images(tmp_path / "b", 40)}
    ds = ndfeed.mix(sources, weights=[2, 1], end="last")
    whole = expected(ds, 3)
    kept = ModelCheckpoint(tmp_path / "kept", every_n_train_steps=4, save_top_k=-1)
    trainer(2, kept).fit(Recorder(), make(ds))
    path = sorted(pathlib.Path(tmp_path / "kept").iterdir())[0]
    model = Recorder()
    again = trainer(3)
    again.fit(model, make(ds), ckpt_path=path, weights_only=False)
    every_batch = [batch for epoch in range(3) for batch in whole[epoch]]
    found = [batch for epoch in sorted(model.seen) for batch in model.seen[epoch]]

    assert len(whole[0]) == 6
    assert found == every_batch[4:]
    assert again.global_step == 18


@pytest.mark.parametrize("size", [{"tokens": 40}, {"batch_size": 5}], ids=str)
def test_resume_by_length_within_an_epoch(tmp_path, size):
    """Batches of different sizes: a resumed run sees those that were left."""
    ds = ragged(tmp_path / "r", LENGTHS).map(as_image)

    def by_length():
        words = {"shuffle": ndfeed.Buckets("x"), "seed": 4}
        return ndfeed.torch.loader(ds, fields={"image": "image", "label": "n"}, **size, **words)

    loader = by_length()
    every_batch = [batch["label"].tolist() for _ in range(2) for batch in loader]
    kept = ModelCheckpoint(tmp_path / "kept", every_n_train_steps=3, save_top_k=-1)
    trainer(2, kept).fit(Recorder(), by_length())
    found = sorted(pathlib.Path(tmp_path / "kept").iterdir())
    assert len(found) == len(every_batch) // 3
    for path in found[:2]:
        steps = torch.load(path, weights_only=False)["global_step"]
        model = Recorder()
        trainer(2).fit(model, by_length(), ckpt_path=path, weights_only=False)
        seen = [batch for epoch in sorted(model.seen) for batch in model.seen[epoch]]
        assert seen == every_batch[steps:]


def as_image(batch):
    """Samples of one shape, which the recorder takes, of texts of any length."""
    return {"image": np.zeros((len(batch["n"]), 48), np.float32), "n": batch["n"]}


@pytest.mark.parametrize(
    "order",
    [ndfeed.Weighted("label", rows=90), ndfeed.Balanced("label", rows=90, weights={3: 0})],
    ids=lambda order: type(order).__name__,
)
def test_resume_of_drawn_samples_within_an_epoch(tmp_path, order):
    """A draw is a function of its position, so a checkpoint need not hold any."""
    ds = images(tmp_path)

    def drawn():
        return ndfeed.torch.loader(ds, 20, shuffle=order, seed=4)

    kept = ModelCheckpoint(tmp_path / "kept", every_n_train_steps=3, save_top_k=-1)
    trainer(2, kept).fit(Recorder(), drawn())
    loader = drawn()
    whole = [batch["label"].tolist() for _ in range(2) for batch in loader]
    for path in sorted(pathlib.Path(tmp_path / "kept").iterdir()):
        steps = torch.load(path, weights_only=False)["global_step"]
        model = Recorder()
        trainer(2).fit(model, drawn(), ckpt_path=path, weights_only=False)
        found = [batch for epoch in sorted(model.seen) for batch in model.seen[epoch]]

        assert found == whole[steps:]


def test_resume_behind_an_epoch(tmp_path):
    """A checkpoint at the end of an epoch: the next one comes, in its own order."""
    ds = images(tmp_path)
    kept = ModelCheckpoint(tmp_path / "kept", every_n_epochs=1, save_top_k=-1)
    trainer(2, kept).fit(Recorder(), make(ds), ndfeed.torch.loader(ds, 50))
    whole = expected(ds, 3)
    for path in sorted(pathlib.Path(tmp_path / "kept").iterdir()):
        done = torch.load(path, weights_only=False)["epoch"] + 1
        model = Recorder()
        trainer(3).fit(model, make(ds), ckpt_path=path, weights_only=False)

        assert model.seen == {epoch: whole[epoch] for epoch in range(done, 3)}


def test_an_epoch_cut_short(tmp_path):
    """limit_train_batches leaves each epoch early."""
    ds = images(tmp_path)
    model = Recorder()
    trainer(2, limit_train_batches=2).fit(model, make(ds))

    assert model.seen == {epoch: batches[:2] for epoch, batches in expected(ds, 2).items()}


def test_overfitting(tmp_path):
    """Lightning looks for a sampler then."""
    loader = ndfeed.torch.loader(images(tmp_path), 20)
    model = Recorder()
    trainer(2, overfit_batches=1).fit(model, loader)

    assert model.seen == {0: [list(range(20))], 1: [list(range(20))]}


def test_overfitting_a_loader_that_shuffles(tmp_path):
    """It silently got other batches in every epoch; Lightning turns shuffling off, and so do we."""
    ds = images(tmp_path)
    for loader in (make(ds), data_loader(ds, shuffle=True)):
        model = Recorder()
        with pytest.warns(UserWarning, match=r"shuffl(es|ing)"):
            trainer(2, overfit_batches=2).fit(model, loader)

        first = [list(range(20)), list(range(20, 40))]
        assert model.seen == {0: first, 1: first}


def data_loader(ds, shuffle=False):
    """What Lightning is made for."""
    return torch.utils.data.DataLoader(ndfeed.torch.dataset(ds), batch_size=20, shuffle=shuffle)


@pytest.mark.parametrize(
    "words",
    [
        {"overfit_batches": 0.4},
        {"num_sanity_val_steps": 2},
        {"num_sanity_val_steps": -1},
        {"limit_train_batches": 0.6, "limit_val_batches": 2, "num_sanity_val_steps": 0},
        {"limit_val_batches": 0},
        {"val_check_interval": 2},
        {"val_check_interval": 7, "check_val_every_n_epoch": None},
        {"check_val_every_n_epoch": 2},
        {"max_steps": 7},
        {"fast_dev_run": 3},
    ],
    ids=str,
)
def test_a_trainer_s_options_mean_what_they_do_with_a_data_loader(tmp_path, words):
    """The same batches in the same epochs, for training and for validation."""
    ds = images(tmp_path)
    found = []
    for made in (lambda: ndfeed.torch.loader(ds, 20), lambda: data_loader(ds)):
        model = Recorder()
        trainer(3, **words).fit(model, made(), made())
        found.append((model.seen, model.validated))

    assert found[0] == found[1]
    assert found[0][0]


def test_one_loader_for_everything(tmp_path):
    """Trained on and validated in the middle of an epoch, twice over: passes are independent."""
    ds = images(tmp_path)
    found = []
    for loader in (ndfeed.torch.loader(ds, 20), data_loader(ds)):
        model = Recorder()
        for _ in range(2):
            trainer(2, val_check_interval=2).fit(model, loader, loader)
        found.append((model.seen, model.validated))

    assert found[0] == found[1]


def test_several_validation_loaders(tmp_path):
    """Each whole, after the sanity check of the first batches."""
    ds = images(tmp_path)
    found = []
    for made in (lambda: ndfeed.torch.loader(ds, 20), lambda: data_loader(ds)):
        model = Recorder()
        validated = model.validated = []

        def step(batch, _, dataloader_idx, validated=validated):
            validated.append((dataloader_idx, batch["label"].tolist()))

        model.validation_step = step
        trainer(2).fit(model, made(), [made(), made()])
        found.append(validated)

    assert found[0] == found[1]
    assert len(found[0]) == 2 * 2 + 2 * 2 * 5


def test_loaders_made_anew_for_each_epoch(tmp_path):
    """A new loader is told the number of the epoch: its order is not the first one's again."""
    ds = images(tmp_path)

    class Reloading(Recorder):
        made = 0

        def train_dataloader(self):
            self.made += 1
            return make(ds)

    model = Reloading()
    trainer(3, reload_dataloaders_every_n_epochs=1).fit(model)

    assert model.made == 3
    assert model.seen == expected(ds, 3)


def test_predict(tmp_path):
    """In order, all of them."""
    model = Recorder()
    model.predict_step = lambda batch: batch["label"]
    found = trainer(1).predict(model, ndfeed.torch.loader(images(tmp_path), 30))

    assert torch.cat(found).tolist() == labels(ndfeed.loader(images(tmp_path), 30))


# The loader is made before Lightning starts the other rank and their process group.
ON_TWO_RANKS = """
import json, pathlib, sys, warnings
warnings.simplefilter("ignore")
import ndfeed, ndfeed.torch
from torch_recorder import Recorder, trainer

folder = pathlib.Path(sys.argv[1])
loader = ndfeed.torch.loader(ndfeed.open(folder / "images.npz"), 10, shuffle=True, seed=4)
model = Recorder()
trainer(2, devices=2, strategy="ddp").fit(model, loader)
(folder / f"rank{model.global_rank}.json").write_text(json.dumps(model.seen))
"""


def test_two_ranks(tmp_path):
    """Each sees its part of every global batch, without a sampler put in."""
    images(tmp_path)
    (tmp_path / "script.py").write_text(ON_TWO_RANKS)
    done = subprocess.run(
        [sys.executable, tmp_path / "script.py", tmp_path],
        capture_output=True,
        text=True,
        timeout=250,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.fspath(TESTS)},
    )

    assert done.returncode == 0, done.stderr
    ranks = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2)]
    whole = expected(ndfeed.open(tmp_path / "images.npz"), 2)
    for epoch, batches in whole.items():
        together = zip(ranks[0][str(epoch)], ranks[1][str(epoch)], strict=True)
        assert [first + second for first, second in together] == batches
