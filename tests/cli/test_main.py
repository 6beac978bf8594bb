"""The command line as a whole: what it lists, and how it fails."""

import io
import warnings

import numpy as np
import pytest

import ndfeed
from ndfeed.cli.console import complain, warn


def test_version(invoke):
    """A report of a bug begins with it."""
    done = invoke("--version")

    assert done.exit_code == 0
    assert done.stdout == f"ndfeed {ndfeed.__version__}\n"


@pytest.mark.parametrize("args", [["--help"], ["-h"], []])
def test_help_lists_what_there_is(invoke, args):
    """Who types the bare name learns what to type next."""
    done = invoke(*args)

    assert "inspect" in done.output
    assert "demo" in done.output
    assert "verify" in done.output
    assert "pack" in done.output.split()
    assert "bench" in done.output.split()
    assert "view" not in done.output.split()  # comes later


@pytest.mark.parametrize("command", ["inspect", "bench", "demo", "verify"])
def test_every_command_explains_itself(invoke, command):
    """Every option says what it does."""
    done = invoke(command, "--help")

    assert done.exit_code == 0
    assert "--json" in done.output


def test_wrong_file_is_one_line(ndfeed_process, tmp_path):
    """A script sees the status, a person one line with the file; a traceback would mean a bug."""
    path = tmp_path / "x.npy"
    np.save(path, np.zeros((10, 4)))
    path.write_bytes(path.read_bytes()[:-7])

    done = ndfeed_process("inspect", path)

    assert done.returncode == 1
    assert done.stdout == ""
    problem = "expected 448 bytes according to the header, found 441; copy or save the file again"
    assert done.stderr == f"ndfeed: {path}: {problem}\n"


def test_missing_file_is_one_line(ndfeed_process, tmp_path):
    """The commonest mistake of all."""
    done = ndfeed_process("inspect", tmp_path / "nothing")

    assert done.returncode == 1
    assert (
        done.stderr == f"ndfeed: {tmp_path / 'nothing'}: no such file or folder; check the path\n"
    )


def test_several_bad_files_are_listed(ndfeed_process, tmp_path):
    """One run finds them all."""
    for i in range(3):
        (tmp_path / f"{i}.npy").write_bytes(b"\x93NUMPY\x01\x00\x10\x00not")
    np.save(tmp_path / "good.npy", np.zeros(3))

    done = ndfeed_process("inspect", tmp_path)

    lines = done.stderr.splitlines()
    assert done.returncode == 1
    assert len(lines) == 4
    assert lines[0].startswith(f"ndfeed: {tmp_path / '0.npy'}")
    assert lines[-1] == "3 of 4 files cannot be used"


def test_wrong_option_is_status_2(ndfeed_process, tmp_path):
    """As with any command: 1 is the file's fault, 2 the caller's."""
    done = ndfeed_process("inspect", tmp_path, "--sample", "image")

    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_warning_is_one_line_without_code(ndfeed_process, tmp_path):
    """Which line of ours warned is of no use to anybody."""
    for i in range(2):
        np.save(tmp_path / f"{i}.npy", np.zeros(3))
    nowhere = tmp_path / "0.npy" / "cache"

    done = ndfeed_process(
        "inspect", tmp_path, "--sample", "row", "--json", XDG_CACHE_HOME=str(nowhere)
    )

    assert done.returncode == 0
    assert done.stdout.count("\n") == 1
    assert done.stderr.startswith("ndfeed: warning: the index cannot be cached")
    assert done.stderr.count("\n") == 1


def test_characters_the_terminal_lacks_are_escaped(ndfeed_process, tmp_path):
    """No terminal is too old to be told what a file holds."""
    np.savez(tmp_path / "x.npz", größe=np.zeros((3, 2)))

    done = ndfeed_process("inspect", tmp_path / "x.npz", PYTHONIOENCODING="ascii")

    assert done.returncode == 0
    assert r"gr\xf6\xdfe" in done.stdout


def test_warn_fits_the_warnings_module():
    """It is called with all arguments by position."""
    out = io.StringIO()
    with warnings.catch_warnings():
        warnings.showwarning = warn
        warnings.showwarning("careful", UserWarning, "x.py", 7, out)

    assert out.getvalue() == "ndfeed: warning: careful\n"


def test_only_remedies_are_translated(capsys):
    """Remedies name options of the command. Paths and what files hold stay as they are."""
    complain(ndfeed.MissingError("my dtype= x", "not sample=", remedy="check dtype="))
    wrong = ndfeed.SchemaError("a", "two", remedy="open with dtype={'x': 'f4'}")
    complain(ndfeed.BadFilesError([wrong, wrong], 2))

    assert capsys.readouterr().err.splitlines() == [
        "ndfeed: my dtype= x: not sample=; check --dtype",
        "ndfeed: a: two; in Python: open with dtype={'x': 'f4'}",
        "a: two; in Python: open with dtype={'x': 'f4'}",
        "2 of 2 files cannot be used",
    ]


def test_complaints_go_to_standard_error(capsys):
    """Standard output is for what was asked for."""
    complain("x.npy: too short")

    assert capsys.readouterr() == ("", "ndfeed: x.npy: too short\n")
