"""Errors say what somebody wrote and reviewed: ``error_tour.txt`` has every message.

``python tests/error_tour.py --write`` writes it again. Read the difference before it is committed:
one line, the file first, expected before found, then the remedy.
"""

import pytest
from error_tour import REVIEWED, STOPS, errors_of, heard, told

from ndfeed import errors

# Classes that no command can meet, and why.
NO_COMMAND = {
    errors.ChangedError: "a command opens files and is done with them",
    errors.ResourceError: "a command would have to run short of memory",
    errors.ResumeError: "no command resumes",
    errors.OrderError: "no command has orders of users",
    errors.WorkerError: "no command runs functions",
}


@pytest.fixture(scope="module")
def reviewed():
    """The stops of the reviewed file, by title."""
    text = REVIEWED.read_text(encoding="utf-8")
    return {stop.partition("\n")[0]: stop for stop in _stops(text)}


def _stops(text):
    return [f"# {stop}".rstrip("\n") for stop in text.split("# ") if stop]


@pytest.mark.parametrize("stop", STOPS, ids=lambda stop: stop.title)
def test_message_is_the_reviewed_one(stop, reviewed):
    """Who changes a message looks at it once more."""
    if stop.needs:
        pytest.importorskip(stop.needs)
    found = heard(stop)

    assert type(found.error) is stop.error
    assert told(stop, found).rstrip("\n") == reviewed.get(f"# {stop.title}")
    if stop.error is not errors.BadFilesError:
        assert "\n" not in found.said
        assert found.complaint.count("\n") == (1 if stop.command else 0)
    if stop.command:
        assert found.status == 1
        assert found.complaint.startswith("ndfeed: ")


@pytest.mark.parametrize("error", errors_of(errors), ids=lambda error: error.__name__)
def test_every_error_has_a_stop(error):
    """A class that nobody can provoke is dead; a message that nobody reviewed may be bad."""
    stops = [stop for stop in STOPS if stop.error is error]

    assert stops
    assert any(stop.command for stop in stops) != (error in NO_COMMAND)


@pytest.mark.parametrize("stop", STOPS, ids=lambda stop: stop.title)
def test_errors_have_a_remedy(stop, reviewed):
    """Who reads only the end of a line learns what to do."""
    said = reviewed[f"# {stop.title}"]

    if issubclass(stop.error, errors.Error) and stop.error is not errors.BadFilesError:
        assert "; " in said.splitlines()[2]


def test_nothing_else_is_in_the_file(reviewed):
    """What no stop says any more would be believed by readers."""
    assert list(reviewed) == [f"# {stop.title}" for stop in STOPS]
