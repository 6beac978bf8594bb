"""Imports point downwards, and what is dangerous has one place or none.

The table below is the architecture. Source is parsed, never imported, so an import inside a
function counts as well as one at the top.
"""

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "src" / "ndfeed"

# Each layer may import itself and what it lists; a layer lists only what stands above it here.
MAY_IMPORT = {
    "errors": set(),
    "progress": set(),
    "files": {"errors"},
    "formats": {"files", "errors"},
    "index": {"formats", "files", "errors", "progress"},
    "dataset": {"index", "formats", "files", "errors", "progress"},
    "order": {"errors"},
    "loading": {"order", "dataset", "formats", "files", "errors"},
    "packing": {"order", "dataset", "index", "formats", "files", "errors", "progress"},
    "cuda": {"loading", "dataset", "order", "files", "errors"},
    "torch": {"cuda", "loading", "dataset", "order", "files", "errors"},
    "tf": {"loading", "dataset", "order", "errors"},
    "keras": {"tf", "loading", "dataset", "order", "errors"},
    "jax": {"cuda", "loading", "dataset", "order", "errors"},
    "ray": {"errors"},
}
MAY_IMPORT["cli"] = set(MAY_IMPORT)

# The package itself stands above the layers: what it re-exports is for users, and for these.
USERS_OF_THE_PACKAGE = {"cli"}
ABOVE_THE_LAYERS = {"__init__", "__main__"}

# Each framework, with the layers that may import it.
FRAMEWORKS = {
    # The demo trains with it and asks for a device; Keras has a backend of it.
    "torch": {"torch", "cli", "keras"},
    "tensorflow": {"tf"},
    "keras": {"keras"},
    "jax": {"jax"},
    "ray": {"ray"},
    "dask": {"cli"},
    "distributed": {"cli"},
    "matplotlib": {"cli"},  # for charts as PNG
    "pyarrow": {"dataset"},  # for labels in Parquet files
}

# They run code from a file, or open containers with less care than ours do.
BANNED = {
    "pickle",
    "_pickle",
    "marshal",
    "shelve",
    "zipfile",
    "numpy.load",
    "torch.load",
    "ast.literal_eval",
    "builtins.eval",
    "builtins.exec",
    "builtins.__import__",
}

# They touch the disk: only ``files`` may.
DISK = {
    "builtins.open",
    "io.open",
    "os.open",
    "mmap",
    "numpy.memmap",
    "numpy.fromfile",
    "numpy.lib.format.open_memmap",
}

# ``ndfeed demo`` shows us beside what people use today, on files it has just written itself.
COMPARES = {"cli/baseline.py"}


# Test modules are named after the module they test, except for these, which cross modules.
THEMES = {
    "cuda/exits": "programs that end while batches are on their way to a GPU",
    "cuda/failing_calls": "every call to the driver made to fail",
    "cli/main": "the command as a whole: ``cli/__init__.py`` and how every subcommand fails",
    "formats/golden_torch": "files that released versions of torch and safetensors wrote",
    "jax/failing_calls": "the same for batches that JAX takes over",
    "jax/grain_source": "needs Grain, which the other tests of ``jax_loader`` do without",
    "jax/processes": "several processes of one JAX, from arguments to arrays on devices",
    "keras/fit": "training with every backend, from ``fit`` down to the loader",
    "loading/by_rank": "compressed files divided among ranks: plan, decode schedule and order",
    "loading/loader_contract": "``tests/loader_contract.py``, which all frameworks share",
    "loading/mixtures": "``ndfeed.mix`` through loaders: proportions, resuming, ranks, decoding",
    "loading/notebook": "loaders in the cells of a Jupyter notebook",
    "loading/programs": "random programs of views, orders, ranks and states, compared with a model",
    "loading/seams": "rules for the source of every module of this package",
    "loading/shutdown": "every way in which a pass can end: threads, processes and memory",
    "packing/attacks": "links and hard links in the way of everything that packing writes",
    "packing/frozen": "plans, journals and manifests, as other versions wrote them",
    "packing/interruptions": "other writers, changes, Ctrl-C and full disks, through ``pack``",
    "packing/kills": "a pack killed at any moment, and resumed",
    "tf/distribute": "``tf.distribute`` strategies over everything in this package",
    "tf/other_processes": "datasets that TensorFlow takes to other processes",
    "torch/accelerate": "Accelerate's ``prepare``",
    "torch/lightning": "Lightning's ``Trainer``",
    "torch/nodes": "nodes of torchdata",
    "torch/cuda_file_changes": "files that change while the GPU reads them",
    "torch/cuda_races": "the values of every batch on the GPU, at any pace",
}


def imports(tree):
    """(line, full name, name it is bound to) of everything imported, at any depth."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                yield node.lineno, alias.name, (alias.asname or top)
        elif isinstance(node, ast.ImportFrom):
            prefix = "." * node.level + (f"{node.module}." if node.module else "")
            for alias in node.names:
                yield node.lineno, f"{prefix}{alias.name}", (alias.asname or alias.name)


def module_names(tree):
    """Names that the module's own top level defines or assigns."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            names = (n for n in ast.walk(node) if isinstance(n, ast.Name))
            yield from (name.id for name in names if isinstance(name.ctx, ast.Store))


def mentions(tree):
    """(line, full name) of everything imported, and of every dotted name that is used.

    Names are followed to where they come from: after ``import numpy as np``, ``np.load`` is
    ``numpy.load``. A bare name that the module neither imports nor defines is a builtin.
    """
    origin = {name: name for name in module_names(tree)}
    for line, full, bound in imports(tree):
        # ``import a.b`` binds a; ``import a.b as c`` and ``from a import b`` bind the whole.
        origin[bound] = bound if full.startswith(f"{bound}.") else full
        yield line, full

    def resolve(node):
        if isinstance(node, ast.Name):
            return origin.get(node.id, f"builtins.{node.id}")
        if isinstance(node, ast.Attribute):
            base = resolve(node.value)
            return base and f"{base}.{node.attr}"
        return None

    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
            name = resolve(node)
            if name:
                yield node.lineno, name


def found(tree, banned):
    """``line: name`` wherever one of ``banned``, or a part of it, is imported or used."""
    return sorted(
        {
            f"line {line}: {name}"
            for line, name in mentions(tree)
            for one in banned
            if name == one or name.startswith(f"{one}.")
        }
    )


@functools.cache
def parse(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def layer_of(path):
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def compares(path):
    return path.relative_to(ROOT).as_posix() in COMPARES


def check_each(check):
    """Apply a check, which gives what is wrong, to every module; all that is wrong at once."""
    wrong = {
        path.relative_to(ROOT).as_posix(): problems
        for path in sorted(ROOT.rglob("*.py"))
        if (problems := check(path))
    }

    assert not wrong


def test_table_points_down():
    """The table cannot allow a cycle."""
    above = set()
    for layer, allowed in MAY_IMPORT.items():
        assert allowed <= above, f"{layer} lists {allowed - above}, which does not stand above it"
        above.add(layer)


def test_modules_belong_to_layers():
    """A new package is first given its place in the table."""
    known = MAY_IMPORT.keys() | ABOVE_THE_LAYERS

    check_each(lambda path: layer_of(path) not in known)


def test_no_relative_imports():
    """They would hide from the tests below."""
    check_each(lambda path: [full for _, full, _ in imports(parse(path)) if full[0] == "."])


def test_imports_point_down():
    """A lower layer knows nothing of a higher one, so it can be read and tested alone."""

    def upward(path):
        layer = layer_of(path)
        allowed = MAY_IMPORT.get(layer, set()) | {layer}
        for line, full, _ in imports(parse(path)):
            top, *rest = full.split(".")
            used = rest[0] if rest and rest[0] in MAY_IMPORT else None
            right = used in allowed if used else layer in USERS_OF_THE_PACKAGE
            if top == "ndfeed" and not right and layer not in ABOVE_THE_LAYERS:
                yield f"line {line}: {layer} imports {used or 'the package'}"

    check_each(lambda path: list(upward(path)))


def test_frameworks_stay_in_their_adapters():
    """Who uses one framework need not have the others."""

    def foreign(path):
        layer = layer_of(path)
        names = {name for name, adapters in FRAMEWORKS.items() if layer not in adapters}
        return not compares(path) and found(parse(path), names)

    check_each(foreign)


def test_nothing_can_run_code_from_a_file():
    """No input file may run code; what is not there cannot be reached by mistake."""
    check_each(lambda path: not compares(path) and found(parse(path), BANNED))


def test_only_files_touches_the_disk():
    """Read-only, checked and guarded: those rules hold because they are kept in one place."""

    def disk(path):
        return layer_of(path) != "files" and not compares(path) and found(parse(path), DISK)

    check_each(disk)


def test_architecture_names_every_module():
    """The map is true: no module is missing from it, and none is named that is gone."""
    text = (ROOT.parent.parent / "ARCHITECTURE.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^\| `([\w/]+)` \|", text, re.M))
    modules = {
        path.relative_to(ROOT).with_suffix("").as_posix()
        for path in ROOT.glob("*/**/*.py")
        if path.name != "__init__.py"
    }

    assert named == modules


def test_tests_mirror_the_sources():
    """Who changes a module finds its tests by its name."""
    tests = Path(__file__).parent
    packages = {path.parent.relative_to(ROOT) for path in ROOT.glob("*/**/*.py")}
    named = {
        (package / path.stem.removeprefix("test_")).as_posix()
        for package in packages
        for path in (tests / package).glob("test_*.py")
    }
    modules = {path.relative_to(ROOT).with_suffix("").as_posix() for path in ROOT.rglob("*.py")}

    assert named - modules == THEMES.keys()


def test_nothing_hides_a_module():
    """``import ndfeed.loading.plan as p`` and ``ndfeed.loader(...)`` both work."""

    def hidden(path):
        if path.name != "__init__.py":
            return []
        package = ".".join(("ndfeed", *path.parent.relative_to(ROOT).parts))
        beside = {one.stem for one in path.parent.glob("*.py")}
        beside |= {one.parent.name for one in path.parent.glob("*/__init__.py")}
        tree = parse(path)
        bound = {name for _, full, name in imports(tree) if full != f"{package}.{name}"}
        return sorted(beside & (bound | set(module_names(tree))))

    check_each(hidden)


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "import pickle as p",
        "from pickle import loads",
        "def f():\n    import zipfile",
        "import numpy as np\nnp.load('x')",
        "import numpy\nmap(numpy.load, paths)",
        "from numpy import load as read",
        "import torch.utils\ntorch.load('x')",
        "import ast\nast.literal_eval('1')",
        "eval('1')",
        "class A:\n    def f(self):\n        exec('1')",
        "import builtins\nbuiltins.exec('1')",
        "__import__('pickle')",
    ],
)
def test_danger_is_seen(source):
    """The check itself, on what it must find."""
    assert found(ast.parse(source), BANNED)


@pytest.mark.parametrize(
    "source",
    [
        "open('x')",
        "class Store:\n    def open(self):\n        return open('x')",
        "import os\nos.open('x', os.O_RDONLY)",
        "from os import open as os_open",
        "import mmap",
        "import numpy as np\nnp.memmap('x')",
        "from io import open\nopen('x')",
    ],
)
def test_disk_access_is_seen(source):
    """The check itself, on what it must find."""
    assert found(ast.parse(source), DISK)


@pytest.mark.parametrize(
    "source",
    [
        "def open(source): ...\nds = open('x')",
        "open, close = make()\nopen('x')",
        "from ndfeed.dataset import open\nopen('x')",
        "import ndfeed\nndfeed.open('x')",
        "import numpy as np\nnp.loadtxt\nnp.lib.format.MAGIC_PREFIX",
        "import re\nre.compile('x').match('eval')",
        "'''pickle and open(x)'''",
        "self.open('x')\nmodel.eval()",
    ],
)
def test_harmless_code_passes(source):
    """The check itself, on what only looks alike."""
    assert not found(ast.parse(source), BANNED | DISK)
