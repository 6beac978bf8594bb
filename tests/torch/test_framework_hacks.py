"""``ndfeed.torch.framework_hacks``: torch and Lightning are as they were; what happens if not."""

import pytest

torch = pytest.importorskip("torch")

import torch_making  # noqa: E402
from loading.making import images  # noqa: E402
from torch_making import run_ranks  # noqa: E402

import ndfeed  # noqa: E402
import ndfeed.torch  # noqa: E402


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of Lightning, over the torch of today
def test_lightning_reads_the_sampler_where_we_look_for_it(tmp_path):
    """If this fails, ``overfit_batches`` silently gets other batches in every epoch."""
    pytest.importorskip("lightning.pytorch")
    from lightning.pytorch.trainer.connectors.data_connector import _resolve_overfit_batches
    from lightning.pytorch.trainer.states import RunningStage
    from lightning.pytorch.utilities.combined_loader import CombinedLoader

    loader = ndfeed.torch.loader(images(tmp_path), 20, shuffle=True)
    with pytest.warns(UserWarning, match="no longer shuffles"):
        _resolve_overfit_batches(CombinedLoader(loader), RunningStage.TRAINING)

    assert isinstance(loader.order, ndfeed.Sequential)


def test_everybody_else_finds_no_sampler(tmp_path):
    """The fallback, too, where Lightning has another function: the loader keeps shuffling."""
    loader = ndfeed.torch.loader(images(tmp_path), 20, shuffle=True)

    with pytest.raises(AttributeError, match="it orders samples itself"):
        _ = loader.sampler
    assert not hasattr(loader, "sampler")
    assert isinstance(loader.order, ndfeed.Exact)


def test_the_store_is_that_of_the_process_group(tmp_path):
    """If this fails, ranks compare by a collective: right, unless one of them iterates alone."""
    found = run_ranks(torch_making.whose_store, 2, tmp_path)

    assert found == [["here", "here"]] * 2


def test_without_a_store_ranks_compare_by_a_collective(tmp_path):
    """The fallback: every sample once, and different seeds are refused on every rank."""
    source = images(tmp_path / "source").files[0]
    found = run_ranks(torch_making.without_a_store, 2, tmp_path / "ranks", source)

    assert sorted(found[0]["rows"] + found[1]["rows"]) == list(range(100))
    for rank in found:
        assert "agree on seed, found 0 on rank 0, 1 on rank 1" in rank["refused"]
