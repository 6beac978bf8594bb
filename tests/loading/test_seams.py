"""Objects of a loader talk to each other by public names, and are complete when they are made."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "src" / "ndfeed" / "loading"
MODULES = {path.name: ast.parse(path.read_text(encoding="utf-8")) for path in ROOT.glob("*.py")}

# An iterator and its loader are one thing in two classes.
FRIENDS = {"loader.py": {"loader"}}
NAMED_TUPLES = {"_replace"}


def is_self(node):
    return isinstance(node, ast.Name) and node.id in ("self", "cls", "super", "os", "sys")


def private_reads(tree):
    """``(owner, attribute)`` of private attributes that are not read from ``self``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and not is_self(node.value):
            private = node.attr.startswith("_") and not node.attr.endswith("__")
            if private and node.attr not in NAMED_TUPLES:
                yield ast.unparse(node.value), node.attr


@pytest.mark.parametrize("name", MODULES)
def test_nobody_reads_what_is_private_to_another_object(name):
    """What is not handed over by a constructor or a method cannot be relied on."""
    found = {one for one in private_reads(MODULES[name]) if one[0] not in FRIENDS.get(name, ())}

    assert not found


@pytest.mark.parametrize("name", ["runtime.py", "batch_maker.py", "epoch_batches.py", "loader.py"])
def test_nobody_completes_another_object_after_it_was_made(name):
    """A batch maker that still lacks something would have to be known by heart."""
    targets = [
        target
        for node in ast.walk(MODULES[name])
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    ]
    others = {
        ast.unparse(part)
        for target in targets
        for part in (target.elts if isinstance(target, ast.Tuple) else [target])
        if isinstance(part, ast.Attribute) and not is_self(part.value)
    }
    counted = {one for one in others if one.startswith("timing.")}  # written by its thread
    own = {one for one in others if one.startswith("loader._")} if name == "loader.py" else set()

    assert others == counted | own


def test_an_order_is_asked_what_it_needs_not_which_it_is():
    """One module names orders, to choose one for ``shuffle=True``; one is about mixtures alone."""
    orders = {"Sequential", "Exact", "Blocks", "Windows", "Mixture"}
    naming = {
        name
        for name, tree in MODULES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and orders & {alias.name for alias in node.names}
    }

    assert naming == {"order_choice.py", "mixture_growth.py"}
