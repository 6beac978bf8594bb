"""What the documentation shows is true: its Python runs, and its links lead somewhere.

The site is built by mkdocs, which has checks of its own; these need nothing but the pages.

The ``python`` blocks of a page run in order, in one namespace, in a folder of their own. A block
behind a comment ``<!-- not run -->`` is only compiled.
"""

import re
import textwrap
from pathlib import Path

import numpy as np
import pytest

import ndfeed

ROOT = Path(__file__).parent.parent
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "examples/README.md", *DOCS]

BLOCK = re.compile(r"^(<!-- not run -->\n)?( *)```python\n(.*?)^\2```$", re.M | re.S)
LINK = re.compile(r"\]\(([^)#]+)[^)]*\)")

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


def blocks(text):
    """(line, code, is it run?) of every block."""
    for match in BLOCK.finditer(text):
        line = text.count("\n", 0, match.start(3))
        yield line, textwrap.dedent(match[3]), match[1] is None


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder to work in, with the files that the README speaks of."""
    (tmp_path / "npz_data").mkdir()
    (tmp_path / "features").mkdir()
    for i in range(20):
        np.savez(tmp_path / f"npz_data/{i}.npz", image=np.full((3, 4, 4), i), label=i)
    for i in range(3):
        np.save(tmp_path / f"features/{i}.npy", np.zeros((10, 5)))
    np.save(tmp_path / "labels.npy", np.arange(30))
    np.zeros(4096, np.uint16).tofile(tmp_path / "tokens.bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / ".cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@each_page
def test_python_runs(page, folder):
    """Who copies an example gets what the page promises."""
    namespace = {"__name__": page.stem}
    for line, code, is_run in blocks(page.read_text(encoding="utf-8")):
        compiled = compile("\n" * line + code, str(page), "exec")
        if is_run:
            exec(compiled, namespace)


@each_page
def test_links_lead_somewhere(page):
    """Files are renamed; links to them must be too."""
    links = LINK.findall(page.read_text(encoding="utf-8"))
    broken = [
        link for link in links if "://" not in link and not (page.parent / link).resolve().exists()
    ]

    assert not broken


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.stem)
def test_page_is_in_the_navigation(page):
    """A page nobody can find helps nobody."""
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    name = page.relative_to(ROOT / "docs").as_posix()

    assert re.search(rf"^ *- [^#]*: {re.escape(name)}$", nav, re.M)


def public():
    """(module, name) of all that users may name; frameworks are not imported for it."""
    for file in [*sorted((ROOT / "src/ndfeed").glob("*/__init__.py")), ROOT / "src/ndfeed/ray.py"]:
        module = (file.parent if file.stem == "__init__" else file).stem
        found = re.search(r"^__all__ = (\[.*?\])", file.read_text(encoding="utf-8"), re.M | re.S)
        if module in ("torch", "tf", "keras", "jax", "ray"):
            yield from ((f"ndfeed.{module}", name) for name in re.findall(r'"(\w+)"', found[1]))
    yield from (("ndfeed", name) for name in sorted({*ndfeed.__all__} - {"__version__"}))


@pytest.mark.parametrize(("module", "name"), list(public()))
def test_reference_has_every_public_name(module, name):
    """Errors come all together, from their module."""
    text = (ROOT / "docs/reference.md").read_text(encoding="utf-8")

    assert f"::: {module}.{name}\n" in text or name.endswith("Error")


def test_blocks_of_a_known_text():
    """The check itself."""
    text = "a\n```python\nx = 1\n```\n```sh\nls\n```\n<!-- not run -->\n```python\ny\n\nz\n```\n"
    tab = '=== "b"\n\n    ```python\n    if x:\n        y\n    ```\n'

    assert list(blocks(text)) == [(2, "x = 1\n", True), (9, "y\n\nz\n", False)]
    assert list(blocks(tab)) == [(3, "if x:\n    y\n", True)]
