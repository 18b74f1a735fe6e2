"""Every error that kinetoscope raises on purpose, and the exit status each one means.

    KinetoscopeError                3
    ├── UsageError                  2   the command line requests something that cannot be
    ├── InputError                  3   a file cannot be used
    │   ├── NotATraceError          3   it was read, and nothing in it is a trace
    │   └── TooLargeError           3   it unpacks past a limit that can be raised
    ├── MissingDependencyError      3   a package (torch, zstandard, …) is not installed here
    └── ProgramError                4   the program that `tune`, `compare` or `bench` runs failed

`run` ends as its program does: with its exit status, or of the signal that ended it.

A message has three parts: what went wrong, where, and the command or change that fixes it.
They are raised where the cause is known and caught once, in ``kinetoscope.cli``.
"""

from __future__ import annotations

from collections.abc import Iterable


class KinetoscopeError(Exception):
    """Base of all errors meant for the user.

    Args:
        what: one sentence, what went wrong.
        where: the file, line or option it happened at.
        hint: the command or change that fixes it.
    """

    exit_code = 3

    def __init__(self, what: str, *, where: str | None = None, hint: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        lines = [self.what]
        if self.where:
            lines.append(f"  where: {self.where}")
        if self.hint:
            lines.append(f"  hint:  {self.hint}")
        return "\n".join(lines)


class UsageError(KinetoscopeError):
    exit_code = 2


class InputError(KinetoscopeError):
    exit_code = 3


class NotATraceError(InputError):
    pass


class TooLargeError(InputError):
    pass


class MissingDependencyError(KinetoscopeError):
    exit_code = 3


class ProgramError(KinetoscopeError):
    exit_code = 4


def meant(word: str, known: Iterable[str]) -> str:
    """A hint for a name that is not there: what is like it, and what there is."""
    names = list(known)
    there = f"one of: {', '.join(names)}"
    found = near(word, names)
    return f"did you mean {found}? ({there})" if found else there


def near(word: str, known: Iterable[str]) -> str:
    """The names that are like it, at most three, joined by "or"; empty where none is."""
    import difflib  # only where something went wrong

    folded = {name.casefold(): name for name in known}
    return " or ".join(folded[name] for name in difflib.get_close_matches(word.casefold(), folded, 3, 0.6))


def in_one_line(error: BaseException) -> str:
    """Its type and the first line of its text: errors of a device have a paragraph on how to debug it."""
    return ": ".join([type(error).__name__, *str(error).splitlines()[:1]])
