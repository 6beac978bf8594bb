"""Links that lead out of ``docs/`` lead to pages made of those files: examples, SECURITY.md.

In the repository such links work as they are. On the site each file becomes a page, a Python file
one with its docstring above it.
"""

import ast
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
LINK = re.compile(r"\]\((?![a-z]+:)([^)#\s]+)")


def on_files(files: Files, config: Any, **_: Any) -> Files:  # noqa: ANN401
    """Add the pages."""
    texts = [ROOT / name for name in ("SECURITY.md", "benchmarks/README.md", "examples/README.md")]
    for path in (*ROOT.glob("examples/*.py"), *texts):
        name = path.relative_to(ROOT).as_posix()
        text = path.read_text(encoding="utf-8")
        made = _program(name, text) if path.suffix == ".py" else text
        files.append(File.generated(config, _page(name), content=made))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:  # noqa: ANN401
    """Turn links to and from files outside into links between their pages."""
    here = posixpath.dirname(page.file.src_uri)
    folder = here if page.file.generated_by else posixpath.join("docs", here)

    def link(match: re.Match[str]) -> str:
        place = posixpath.normpath(posixpath.join(folder, match[1]))
        to = place[5:] if place.startswith("docs/") else _page(place)
        return f"]({posixpath.relpath(to, here or '.')}"

    return LINK.sub(link, markdown)


def _page(name: str) -> str:
    return name.replace("README.md", "index.md") if name.endswith(".md") else f"{name[:-3]}.md"


def _program(name: str, text: str) -> str:
    tree = ast.parse(text)
    title, _, more = (ast.get_docstring(tree) or name).partition("\n")
    code = "\n".join(text.splitlines()[tree.body[0].end_lineno :]).strip()
    return f"# {title}\n{more}\n\n`{name}`\n\n```python\n{code}\n```\n"
