"""Modules, functions and classes stay short enough to be read whole."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "src" / "ndfeed"

BUDGET = {
    "lines of a module": 400,
    "lines of a function body": 60,
    "lines of a class": 250,
    "public methods of a class": 12,
}


def body_lines(function):
    """Lines from the first statement after the docstring to the last."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return function.end_lineno - body[0].lineno + 1 if body else 0


def public_methods(cls):
    """Methods without an underscore; a property and its setter are one."""
    functions = (n for n in cls.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
    return len({function.name for function in functions if not function.name.startswith("_")})


def sizes(name, source):
    """(kind, size, where) of the module, its functions and its classes."""
    yield "lines of a module", len(source.splitlines()), name
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            where = f"{name}:{node.lineno} {node.name}"
            yield "lines of a function body", body_lines(node), where
        elif isinstance(node, ast.ClassDef):
            where = f"{name}:{node.lineno} {node.name}"
            yield "lines of a class", node.end_lineno - node.lineno + 1, where
            yield "public methods of a class", public_methods(node), where


@pytest.mark.parametrize("kind", BUDGET)
def test_sizes_are_within_budget(kind):
    """What does not fit is two things: a reader is better off with each on its own."""
    measured = sorted(
        (
            (size, where)
            for path in ROOT.rglob("*.py")
            for one, size, where in sizes(
                path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
            )
            if one == kind
        ),
        reverse=True,
    )
    largest = "\n".join(f"{size:5} {where}" for size, where in measured[:10])

    assert measured
    assert measured[0][0] <= BUDGET[kind], f"{kind}, at most {BUDGET[kind]}:\n{largest}"


def test_sizes_of_a_known_module():
    """Docstrings are free in functions; a setter is no second method."""
    source = '''"""Module."""
class A:
    @property
    def x(self):
        """One.

        Two.
        """
        y = 1

        return y
    @x.setter
    def x(self, value): pass
    def _private(self): ...
    async def run(self):
        """Nothing else."""
'''

    assert list(sizes("a.py", source)) == [
        ("lines of a module", 16, "a.py"),
        ("lines of a class", 15, "a.py:2 A"),
        ("public methods of a class", 2, "a.py:2 A"),
        ("lines of a function body", 3, "a.py:4 x"),
        ("lines of a function body", 1, "a.py:13 x"),
        ("lines of a function body", 1, "a.py:14 _private"),
        ("lines of a function body", 0, "a.py:15 run"),
    ]
