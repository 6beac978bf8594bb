"""``ndfeed.loader`` keeps the contract that the loader of every framework keeps."""

from pathlib import Path

import pytest
from loader_contract import EpochContract

TESTS = Path(__file__).parent.parent


class TestEpochs(EpochContract):
    """Of NumPy arrays, with which the other loaders are compared."""


@pytest.mark.parametrize("package", ["loading", "torch", "tf", "keras", "jax"])
@pytest.mark.parametrize("contract", ["EpochContract", "ArgumentContract"])
def test_every_framework_keeps_both_contracts(package, contract):
    """A framework that is added, or a test module that is divided, must not drop one."""
    sources = [path.read_text(encoding="utf-8") for path in (TESTS / package).glob("test_*.py")]

    assert any(f"({contract}):" in source for source in sources)
