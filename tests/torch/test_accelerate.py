"""Accelerate's prepare with our loader."""

import json

import pytest

torch = pytest.importorskip("torch")
accelerate = pytest.importorskip("accelerate")

from loading.making import images, labels  # noqa: E402

import ndfeed  # noqa: E402
import ndfeed.torch  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # of what it finds on this machine


@pytest.fixture
def accelerator():
    yield accelerate.Accelerator(cpu=True)
    accelerate.state.AcceleratorState._reset_state(True)


def test_prepare_passes_the_loader_through(tmp_path, accelerator):
    """It shards and moves batches itself, so there is nothing to wrap."""
    ds = images(tmp_path)
    model = torch.nn.Linear(48, 1)
    loader = ndfeed.torch.loader(ds, 20, shuffle=True, device=accelerator.device)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    model, optimizer, prepared = accelerator.prepare(model, optimizer, loader)

    assert prepared is loader
    seen = []
    for batch in prepared:
        loss = model(batch["image"].flatten(1).float()).mean()
        accelerator.backward(loss)
        optimizer.step()
        seen += batch["label"].tolist()
    assert seen == labels(ndfeed.loader(ds, 20, shuffle=True))


def test_save_state_and_load_state(tmp_path, accelerator):
    """Registered, the loader's place goes into Accelerate's checkpoints."""
    ds = images(tmp_path)
    loader = accelerator.prepare(ndfeed.torch.loader(ds, 20, shuffle=True))
    accelerator.register_for_checkpointing(loader)
    batches = iter(loader)
    next(batches), next(batches)
    accelerator.save_state(tmp_path / "saved")
    rest = labels(batches)
    assert json.dumps(loader.state_dict())
    accelerator.load_state(tmp_path / "saved")

    assert labels(loader) == rest


def test_skip_first_batches(tmp_path, accelerator):
    """It takes a DataLoader apart, which this is not: the message says what to do instead."""
    loader = accelerator.prepare(ndfeed.torch.loader(images(tmp_path), 20, shuffle=True))
    for skip in (accelerate.skip_first_batches, accelerator.skip_first_batches):
        with pytest.raises(AttributeError, match=r"no sampler.* load_state_dict\(\)"):
            skip(loader, 2)
    assert not hasattr(loader, "sampler")


def test_dataset_in_a_data_loader(tmp_path, accelerator):
    """The other way: Accelerate's own sharding over torch's DataLoader."""
    ds = ndfeed.torch.dataset(images(tmp_path))
    loader = accelerator.prepare(torch.utils.data.DataLoader(ds, batch_size=30, shuffle=True))

    assert sorted(labels(loader)) == list(range(100))
