"""Every figure of speed in README and documentation is one that a results file has."""

import importlib.util
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

# Rates, times shorter than a second, and comparisons: what only a measurement can tell.
MEASURED = re.compile(
    r"\d ?[kMGT]?(rows|files|images|samples|batches|[kMGT]?i?B)/s"
    r"|\d ?(ns|µs|us|ms)\b"
    r"|\d ?(×|x|times) (as )?(fast|slow|quick)"
)


def module(name):
    """A script of the benchmarks, which are no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


table = module("table")
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())


@each_page
def test_tables_are_those_of_the_results(page):
    """Run ``python benchmarks/table.py`` after a new run, never edit a table."""
    text = page.read_text(encoding="utf-8")

    assert text == table.filled(text)
    assert text.count("<!-- results:") == len(table.BLOCK.findall(text))


@each_page
def test_figures_of_speed_stand_in_tables(page):
    """A number in prose is never measured again."""
    text = table.BLOCK.sub("", page.read_text(encoding="utf-8"))
    found = [line for line in text.splitlines() if MEASURED.search(line)]

    assert not found


@pytest.mark.parametrize(("name", "results"), [("gpu", "torch_gpu"), ("peers", "peers")])
def test_pictures_are_those_of_the_results(name, results, monkeypatch):
    """Run ``python benchmarks/plot.py`` after a new run."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    newest = sorted((ROOT / "benchmarks/results").glob(f"{results}-????-??-??.jsonl"))[-1]
    facts = [json.loads(line) for line in newest.read_text(encoding="utf-8").splitlines()]

    drawn = (ROOT / f"docs/images/{name}.svg").read_text(encoding="utf-8")
    assert drawn == module("plot").drawing(facts)


def test_some_tables_are_there():
    """A marker with a slip would make every check above pass."""
    blocks = [block for p in PAGES for block in table.BLOCK.findall(p.read_text(encoding="utf-8"))]

    assert len(blocks) >= 4
    assert any(results.startswith("peers-") for _, results, *_ in blocks)


def test_the_readme_has_ratios_of_results_files(tmp_path):
    """Four ratios are what most readers see; copied by hand they would be out of date."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (block,) = [match for match in table.BLOCK.finditer(text) if match[2] == "headlines"]

    assert block[4].count("× |") == len(table.HEADLINES)
    for one in table.HEADLINES:
        (tmp_path / one.results).write_text(
            (ROOT / "benchmarks/results" / one.results)
            .read_text(encoding="utf-8")
            .replace("workers 0, getitems", "workers 0")
        )
    with pytest.raises(ValueError, match="fastest setting of torch DataLoader is now workers 0"):
        table.filled(text, tmp_path)


def test_a_comparison_says_against_what():
    """Per sample or per batch, in how many workers; and a missed target shows as that."""
    question = {"question": "warm 3KB"}
    lines = [
        {**question, "way": "today: DataLoader, 0 workers", "rows_per_s": 5},
        {**question, "way": "today: DataLoader, 4 workers", "rows_per_s": 4},
        {**question, "bar": "ours / best DataLoader", "ratio": 2, "wanted": 3, "met": False},
        {**question, "bar": "ours / DataLoader with __getitems__", "ratio": 2, "wanted": 2,
         "met": False},
        {"question": "files stored", "way": "today: np.load", "rows_per_s": 4},
        {"question": "files stored", "way": "today: DataLoader, 2 workers", "rows_per_s": 5},
        {"question": "files stored", "way": "ours", "rows_per_s": 40},
        {"question": "files stored", "bar": "ours / today", "ratio": 10, "wanted": 10},
        {**question, "bar": "batches of 64: ours / floor", "ratio": 1, "wanted": 1},
    ]  # fmt: skip
    made = table.table([json.dumps(line) for line in lines], (), "loader-2026-11-15.jsonl")

    everything = "best of `np.load` in 1 and 2 threads, and DataLoader per sample with 2 workers"
    assert made.split("\n")[2:] == [
        "| warm 3KB | ndfeed / DataLoader per sample, best of 0 and 4 workers | 2.00 "
        "| ≥ 3, missed |",
        "| warm 3KB | ndfeed / DataLoader per batch, 0 workers | 2.00 | ≥ 2, just missed |",
        "| files stored | ndfeed / `np.load` in one thread | 10.00 | ≥ 10 |",
        f"| files stored | ndfeed / {everything} | 8.00 | none |",
        "| warm 3KB | batches of 64: ndfeed / floor | 1.00 | ≥ 1 |",
    ]


def peer(name, size, rate, ratio, **more):
    """What a peer's run says of one row size."""
    facts = {"rows_per_s": rate, "ratio": ratio, "ndfeed_rows_per_s": round(rate * ratio)}
    return {
        "peer": name,
        "rows": size,
        "steady": True,
        "convert_s": 0,
        "disk_mb": 7,
        **facts,
        **more,
    }


def test_a_table_of_known_peers():
    """Fastest first; who is ahead of us, is not steady, failed or is missing shows as that."""
    lines = [
        {"quick": False, "rows": {"3KB": 100, "128B": 900}},
        {"peer": "Slow", "shuffle": "a buffer"},
        peer("Slow", "3KB", 10, 100.0, convert_s=2.5, setting="workers 2"),
        {"peer": "Slow", "rows": "128B", "failed": "time: no answer"},
        {"peer": "Gone", "not_installed": "no wheel"},
        {"peer": "Fast", "shuffle": "exact"},
        peer("Fast", "3KB", 1250, 0.8, setting="workers 0, getitems"),
        peer("Fast", "128B", 2000, 1.5, steady=False, setting="threads 1"),
        {"peer": "Broken", "failed": "OSError: full"},
    ]
    head, *said = table.table([json.dumps(line) for line in lines]).split("\n\n")

    assert head.split("\n")[2:] == [
        "| **ndfeed** | exact | defaults | 1,000 | 3,000 | none | the .npy |",
        "| Fast | exact | 0 workers, per batch / 1 thread | **1,250 (1.2× faster)** | "
        "2,000 (1.5× slower) \\* | none | 7 / 7 MB |",
        "| Slow | a buffer | 2 workers / – | 10 (100× slower) | failed | 2.5 / – s | 7 / – MB |",
    ]
    assert said == [
        table.UNSTEADY,
        "Gone could not be installed: `no wheel`",
        "Broken failed: `OSError: full`",
    ]

    lines[0]["quick"] = True
    assert "do not quote" in table.table([json.dumps(line) for line in lines])


def test_a_table_of_known_results(tmp_path):
    """The check itself."""
    lines = [
        {"question": "warm 3KB", "way": "ours", "rows_per_s": 1},
        {"question": "warm 3KB", "bar": "ours / floor", "ratio": 1.456, "wanted": 0.8},
        {"question": "cold 3KB", "bar": "ours / floor", "ratio": 1234.5, "wanted": 1000},
    ]
    (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, lines)))
    head = "| benchmark | comparison | measured | target |\n|---|---|--:|--:|\n"
    warm = "| warm 3KB | ndfeed / floor | 1.46 | ≥ 0.8 |\n"
    cold = "| cold 3KB | ndfeed / floor | 1,234 | ≥ 1,000 |\n"

    def page(words, rows):
        return f"a\n<!-- results: x.jsonl{words} -->\n{rows}<!-- end -->\nb\n"

    assert table.filled(page("", "old\n"), tmp_path) == page("", f"\n{head}{warm}{cold}\n")
    assert table.filled(page(" warm", ""), tmp_path) == page(" warm", f"\n{head}{warm}\n")
    facts = {"what": "pairs", "samples": 1000, "mb": 12, "ratio": 2.04, "packed_in_s": 1.26}
    case = {"question": "buys U4", "before_per_s": 50.04, "after_per_s": 1234.5, **facts}
    asked = {"question": "buys U4", "bar": "packed / files", "ratio": 2, "wanted": 1}
    (tmp_path / "y.jsonl").write_text("\n".join(map(json.dumps, [case, asked])))
    made = table.table((tmp_path / "y.jsonl").read_text().splitlines(), ("buys",))
    assert "| U4 | pairs | 1,000 | 12 | 50.0 | 1,234 | 2.0 | 1.3 s |\n\n| benchmark" in made
    assert made.endswith("| U4 | packed / files | 2.00 | ≥ 1 |")
    with pytest.raises(ValueError, match="no measurements"):
        table.filled(page(" wrm", ""), tmp_path)
    assert MEASURED.search("at 3 GB/s")
    assert MEASURED.search("42 ns a row")
    assert not MEASURED.search("256 rows of 3 KB, 2 GB of memory")
