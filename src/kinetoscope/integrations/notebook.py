"""Magics for notebooks: ``%load_ext kinetoscope``, then ``%%kinetoscope`` and ``%kinetoscope_diff``.

IPython is not imported: the shell that loads the extension is all that is needed.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Protocol

from kinetoscope.errors import KinetoscopeError, UsageError

if TYPE_CHECKING:
    from kinetoscope.api import Diff, Run

NAME, BEFORE = "kinetoscope_run", "kinetoscope_before"
MOST = 400  # times that a cell is run until its steps are recorded


class CellResult(Protocol):
    """The result of a cell that a shell ran; the shell has shown the traceback of one that failed."""

    @property
    def success(self) -> bool: ...


class Shell(Protocol):
    """The part of IPython's ``InteractiveShell`` that is used."""

    user_ns: dict[str, object]

    def run_cell(self, raw_cell: str) -> CellResult: ...

    def register_magic_function(
        self, func: Callable[..., object], magic_kind: str, magic_name: str
    ) -> None: ...


class _CellFailed(Exception):
    """The cell raised, and the shell has shown what."""


class _Arguments(argparse.ArgumentParser):
    """A parser that does not end the process: it is the notebook's."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, hint=self.format_usage().removeprefix("usage: ").strip())


def load(shell: Shell) -> None:
    magics = Magics(shell)
    shell.register_magic_function(magics.cell, "cell", "kinetoscope")
    shell.register_magic_function(magics.diff, "line", "kinetoscope_diff")


class Magics:
    """The magics of one shell; the last recording is in its variable ``kinetoscope_run``, the one before in
    ``kinetoscope_before``."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell

    def cell(self, line: str, cell: str) -> Run | None:
        """``%%kinetoscope [--steps N] [--stacks] [--shapes] [--memory] [--out DIR]``

        Records the cell, and shows the report: its page in a notebook, its text in a terminal. With
        ``--steps`` the cell is one step: it is run until so many were recorded; without, it is run once, and
        its loop's steps are found as ``kinetoscope run`` does.

        Returns:
            None where the cell or the line is wrong, which is on the screen then.
        """
        from kinetoscope.capture.api import profile

        try:
            options = _parser().parse_args(shlex.split(line))
        except UsageError as error:
            return _refuse(error)
        out: Path = options.out or Path(tempfile.mkdtemp(prefix="kinetoscope-")) / "recording"
        recording = profile(
            out=out,
            name="cell",
            steps=options.steps,
            stacks=options.stacks,
            shapes=options.shapes,
            memory=options.memory,
        )
        try:
            with recording:
                self._run(cell)
                for _ in range(MOST if options.steps else 0):
                    recording.step()
                    if recording.done:
                        break
                    self._run(cell)
        except _CellFailed:
            return None
        own = self._shell.user_ns
        if NAME in own:
            own[BEFORE] = own[NAME]
        own[NAME] = recording.run
        if not hasattr(self._shell, "kernel"):  # no notebook: nothing shows a page
            recording.run.show()
        return recording.run

    def _run(self, cell: str) -> None:
        if not self._shell.run_cell(cell).success:
            raise _CellFailed

    def diff(self, line: str) -> Diff | None:
        """``%kinetoscope_diff [BASE [NEW]]``: paths, or names of variables that hold runs. NEW is the last
        recording of ``%%kinetoscope`` where it is left away, BASE the one before."""
        from kinetoscope.api import diff

        words = shlex.split(line)
        if len(words) > 2 or (not words and BEFORE not in self._shell.user_ns):
            two = "two cells are recorded with %%kinetoscope, or %kinetoscope_diff BASE [NEW]"
            return _refuse(UsageError("there are no two runs to compare", hint=two))
        base, new = [*words, *(BEFORE, NAME)[len(words) :]]
        try:
            found = diff(self._found(base), self._found(new))
        except KinetoscopeError as error:
            return _refuse(error)
        if not hasattr(self._shell, "kernel"):
            found.show()
        return found

    def _found(self, word: str) -> Run | str:
        from kinetoscope.api import Run

        value = self._shell.user_ns.get(word)
        return value if isinstance(value, Run) else word


def _refuse(error: KinetoscopeError) -> None:
    """Say what is wrong, without a traceback: it would be one of ours."""
    print(f"kinetoscope: {error}", file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = _Arguments(prog="%%kinetoscope", add_help=False)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--stacks", action="store_true")
    parser.add_argument("--shapes", action="store_true")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--out", type=Path)
    return parser
