"""Every error this library raises on purpose.

    Error
    ├── SourceError       (OSError)       a file or folder cannot be found, opened or read
    │   ├── MissingError  (FileNotFoundError)
    │   ├── DeniedError   (PermissionError)
    │   └── ResourceError (MemoryError)   no memory, or no room on a disk, to read it
    ├── FormatError       (ValueError)    the bytes are not what the format promises
    │   ├── TruncatedError                fewer bytes present than promised
    │   ├── ChecksumError                 the bytes were damaged
    │   ├── LimitError                    a bomb: a size far beyond what real files need
    │   ├── ManifestError                 a packed dataset's ndfeed.json is wrong
    │   └── UnsupportedError              sound, but of a kind that is not read
    ├── ChangedError      (RuntimeError)  the file is not the one that was indexed
    ├── BadFilesError     (ValueError)    several files are wrong; lists them
    ├── SchemaError       (ValueError)    fields, dtypes or shapes do not fit together
    │   └── AmbiguousError                the samples could be read two ways
    ├── FieldError        (KeyError)      no field of that name
    ├── CastError         (ValueError)    a value that another type cannot hold
    ├── ResumeError       (ValueError)    a loader's state that does not fit
    ├── OrderError        (ValueError)    an order of your own that breaks the rules
    ├── WorkerError       (RuntimeError)  a process that ran a map or packed died
    ├── TargetError       (OSError)       what is packed cannot be written
    │   └── SpaceError                    there is no room for it
    └── ConflictError     (FileExistsError)  another writer, or something else in its place

Each also derives from the builtin a caller would guess, so code that has never heard of
this library still catches the right thing. Messages are one line: the file first, expected
before found, then the remedy. Wrong arguments are plain ``ValueError``, ``IndexError`` and
``TypeError``.

Messages quote files, and files may hold anything. ``Error.__str__`` is the only place that makes
text of an error, and it escapes whatever is not printable: no error can move a terminal's cursor
or add a line of its own. Subclasses say what to write in ``_lines``.
"""

from collections.abc import Sequence
from os import PathLike, fsdecode

__all__ = [
    "AmbiguousError",
    "BadFilesError",
    "CastError",
    "ChangedError",
    "ChecksumError",
    "ConflictError",
    "DeniedError",
    "Error",
    "FieldError",
    "FormatError",
    "LimitError",
    "ManifestError",
    "MissingError",
    "OrderError",
    "ResourceError",
    "ResumeError",
    "SchemaError",
    "SourceError",
    "SpaceError",
    "TargetError",
    "TruncatedError",
    "UnsupportedError",
    "WorkerError",
]

_LISTED = 10


def shown(text: str | bytes | PathLike[str]) -> str:
    r"""``text`` as one line of printable text, with everything else escaped.

    For whatever comes from a file or is the name of one: it may hold line breaks, or sequences
    that a terminal obeys.

    >>> print(shown("a\x1b[31m\nb"))
    a\x1b[31m\nb
    """
    text = fsdecode(text)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def shown_size(count: float) -> str:
    """Return a number of bytes as people write it.

    >>> shown_size(0), shown_size(2047), shown_size(3_500_000)
    ('0 B', '2.05 kB', '3.5 MB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.3g} {unit}" if unit != "B" else f"{count:.0f} B"
        count /= 1000
    return f"{count:.3g} TB"


class Error(Exception):
    """Base of every error that ndfeed raises on purpose.

    ``path`` is the file to blame, ``problem`` what is wrong, ``remedy`` what to do about it.
    """

    path: str | None = None
    problem = ""
    remedy = ""  # of a class: the usual way out, unless an error has another

    def __str__(self) -> str:
        return "\n".join(map(shown, self._lines()))

    def _lines(self) -> list[str]:
        """The lines of the message, as they are: ``__str__`` makes them printable."""
        where = "" if self.path is None else f"{self.path}: "
        problem = self.problem or (str(self.args[0]) if self.args else "")
        return [f"{where}{problem}; {self.remedy}" if self.remedy else f"{where}{problem}"]


class _FileError(Error):
    """An error with one file to blame. ``args`` alone rebuild it, so that it pickles."""

    def __init__(
        self,
        path: str | bytes | PathLike[str],
        problem: str,
        offset: int | None = None,
        remedy: str | None = None,
    ) -> None:
        super().__init__(fsdecode(path), problem, offset, remedy)
        self.path = fsdecode(path)
        self.problem = problem
        self.offset = offset
        if remedy is not None:
            self.remedy = remedy

    def _lines(self) -> list[str]:
        where = f" at byte {self.offset}" if self.offset else ""
        remedy = f"; {self.remedy}" if self.remedy else ""
        return [f"{self.path}{where}: {self.problem}{remedy}"]


class SourceError(_FileError, OSError):
    """A file or folder cannot be opened or read: says which, and why."""

    remedy = "exclude or fix the file"


class MissingError(SourceError, FileNotFoundError):
    """There is no such file, or a source holds no array files."""

    remedy = "check the path"


class DeniedError(SourceError, PermissionError):
    """The file exists and may not be read."""


class ResourceError(SourceError, MemoryError):
    """There is not enough memory, or temporary disk space, to read it: says how much is needed."""

    remedy = "read fewer samples at a time, or give the process more memory"


class FormatError(_FileError, ValueError):
    """A file breaks its format: says which file, where, and what was expected."""

    remedy = "copy or save the file again"


class TruncatedError(FormatError):
    """A file ends before the bytes its header promises."""


class ChecksumError(FormatError):
    """Stored bytes do not have the checksum stored beside them."""


class LimitError(FormatError):
    """A header asks for more than any honest file needs, or than its file can hold."""

    remedy = "save the file again, and do not trust it if you did not write it"


class ManifestError(FormatError):
    """The ``ndfeed.json`` of a packed dataset is damaged, or was edited."""

    remedy = "copy or pack the dataset again"


class UnsupportedError(FormatError):
    """A valid file of an unsupported kind; the message says what to do."""

    remedy = "save the arrays with np.savez"


class ChangedError(_FileError, RuntimeError):
    """A file is no longer the one that was indexed."""


class BadFilesError(Error, ValueError):
    """Several files are wrong. ``problems`` has an error for each, in order of the source."""

    def __init__(self, problems: Sequence[Error], checked: int) -> None:
        super().__init__(list(problems), checked)
        self.problems = list(problems)
        self.checked = checked
        self.path = self.problems[0].path
        self.problem = f"{len(self.problems):,} of {checked:,} files cannot be used"

    def _lines(self) -> list[str]:
        lines = [str(problem) for problem in self.problems[:_LISTED]]
        more = len(self.problems) - len(lines)
        if more:
            lines.append(f"… and {more:,} more")
        return [*lines, self.problem]


class SchemaError(_FileError, ValueError):
    """Fields, dtypes or shapes of several files do not fit together."""


class AmbiguousError(SchemaError):
    """The samples could be read two ways; the message shows both, and the argument to add."""


_ADDED_BY = {
    "file": "; ds.with_origin() adds 'file' and 'row'",
    "row": "; ds.with_origin() adds 'file' and 'row'",
    "source": "; source='source' in ndfeed.mix() adds it to a mixture",
}


class FieldError(Error, KeyError):
    """No field of that name; lists those there are."""

    def __init__(self, name: str, known: Sequence[str], path: str | bytes | None = None) -> None:
        super().__init__(name, tuple(known), path)
        self.name, self.known = name, tuple(known)
        self.path = None if path is None else fsdecode(path)
        listed = ", ".join(repr(known) for known in self.known[:_LISTED]) or "none"
        more = f" and {len(self.known) - _LISTED} more" if len(self.known) > _LISTED else ""
        hint = _ADDED_BY.get(name, "")
        self.problem = f"no field {name!r}"
        self.remedy = f"the fields are {listed}{more}{hint}"


class CastError(Error, ValueError):
    """A value that does not fit the type it is cast to: says field, row, value and type.

    ``path`` is the file it was read from, where that is known.
    """

    remedy = "cast it to a wider type, or change such values with map()"

    def __init__(
        self, field: str, row: int, value: object, dtype: str, path: str | None = None
    ) -> None:
        super().__init__(field, row, value, dtype, path)
        self.field, self.row, self.value, self.dtype, self.path = self.args
        self.problem = f"field {field!r} has {value} in row {row}, which {dtype} cannot hold"

    def in_row(self, row: int) -> "CastError":
        """The same, where ``row`` was a place in a batch."""
        return CastError(self.field, row, self.value, self.dtype, self.path)


class _TextError(Error):
    """An error with no file to blame."""

    def __init__(self, problem: str, remedy: str = "") -> None:
        super().__init__(problem, remedy)
        self.problem, self.remedy = problem, remedy


class ResumeError(_TextError, ValueError):
    """A loader's state that is damaged, or belongs to other data or another order."""

    @classmethod
    def of_damage(cls, problem: str) -> "ResumeError":
        """Make the error for a state that ``state_dict`` cannot have returned."""
        remedy = "load what state_dict() returned, or start over"
        return cls(f"the state is damaged: {problem}", remedy)


class OrderError(_TextError, ValueError):
    """An order of your own returned what no order may: says what, and what to return instead."""


class WorkerError(_TextError, RuntimeError):
    """A process that ran a ``map`` or packed died, and so did those that took its place."""


class TargetError(_FileError, OSError):
    """A file or folder of a packed dataset cannot be written: says which, and why."""

    remedy = "fix this and rerun: finished work is reused"


class SpaceError(TargetError):
    """There is no room for what is to be written, or a quota does not allow it."""

    remedy = "free some space and rerun: finished work is reused"


class ConflictError(_FileError, FileExistsError):
    """Another process is writing there, or something exists that must not be overwritten."""


def not_installed(error: ModuleNotFoundError, extra: str, package: str) -> ModuleNotFoundError:
    """The error of ``ndfeed.<extra>`` where ``package`` is missing; ``error`` if that is not so."""
    if error.name != package:
        return error  # it is there, and lacks something itself
    text = f"ndfeed.{extra} needs {package}, which is not installed: pip install 'ndfeed[{extra}]'"
    return ModuleNotFoundError(text, name=package)
