"""The recordings that an agent may ask about: those in the folders that its user gave, read once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from threading import Lock

from msgspec import Struct

from kinetoscope import __version__
from kinetoscope.agents import answers, proving, questions
from kinetoscope.agents.answers import Answer, CallError, FullAnswer, RecordingIdentity
from kinetoscope.document import Report
from kinetoscope.document.collect.difference import compared
from kinetoscope.document.collect.report import build
from kinetoscope.document.collect.sources import program
from kinetoscope.document.page import SourceFile
from kinetoscope.errors import KinetoscopeError, UsageError, meant
from kinetoscope.sources import identity
from kinetoscope.sources.run import LoadedRun, load

KEPT = 3  # recordings that stay in memory
TOOLS = "overview, findings, evidence, query, diff"


class OpenRecording(Struct, frozen=True, eq=False, dict=True):
    """A recording as it was read; what is asked of it later is remembered."""

    path: Path
    run: LoadedRun

    @cached_property
    def report(self) -> Report:
        return build(self.run)

    @cached_property
    def program(self) -> list[SourceFile]:
        return program(self.run)

    @cached_property
    def fingerprint(self) -> str:
        return identity.fingerprint(self.run)

    @cached_property
    def stamp(self) -> object:
        return identity.stamp(self.run)

    def identity(self, roots: Sequence[Path]) -> RecordingIdentity:
        kept = {file.path: file.text for file in self.program}
        now = identity.program_now(kept, roots)
        return RecordingIdentity(path=str(self.path), fingerprint=self.fingerprint, program=now)


class Library:
    """Answers to the tools' calls, each as JSON of at most ``answers.MOST_TOKENS``."""

    def __init__(self, roots: Sequence[Path], *, allow_run: bool = False) -> None:
        # files and folders that may be read; nothing outside of them is opened
        self.roots = [root.resolve() for root in roots]
        self.allow_run = allow_run  # whether ``prove`` may run the program
        self._open: dict[Path, OpenRecording] = {}
        self._lock = Lock()  # tools may be called at once: two reports at a time take twice the memory

    def answer(self, tool: str, values: Mapping[str, object]) -> str:
        """The answer of a tool; what is wrong with the call is an answer, too."""
        with self._lock:
            try:
                return answers.encoded(self._answer(tool, dict(values)))
            except KinetoscopeError as error:
                reason, hint = questions.one_line(error.what, error.where), questions.one_line(error.hint)
                why = CallError(reason=reason, hint=hint)
                return answers.encoded(Answer(kinetoscope=__version__, recordings=[], error=why))

    def _answer(self, tool: str, values: dict[str, object]) -> Answer:
        cursor = str(values.pop("cursor", "") or "")
        if tool == "diff":
            return self._diff(_value(values, "base"), _value(values, "new"), cursor)
        recording = self._recording(_value(values, "recording"))
        found = self._found(tool, recording, values)
        return answers.page(found, [recording.identity(self.roots)], cursor)

    def _diff(self, base: str, new: str, cursor: str) -> Answer:
        opened: list[OpenRecording] = []

        def read(path: str) -> LoadedRun:
            opened.append(self._recording(path))
            return opened[-1].run

        paths = [self._given(base), self._given(new)]
        found = questions.diff(compared(paths[0], paths[1], read=read))
        sides = [[one for one in opened if one.path.is_relative_to(path)] for path in paths]
        return answers.page(found, list(map(self._of_all, paths, sides)), cursor)

    def _of_all(self, path: Path, repeated: Sequence[OpenRecording]) -> RecordingIdentity:
        each = [one.identity(self.roots) for one in repeated]
        if len(each) == 1:
            return each[0]
        together = identity.combined([one.fingerprint for one in each])
        states = ", ".join(dict.fromkeys(one.program for one in each))
        return RecordingIdentity(
            path=f"{path} ({len(each)} recordings)", fingerprint=together, program=states
        )

    def _found(self, tool: str, first: OpenRecording, values: Mapping[str, object]) -> FullAnswer:
        match tool:
            case "overview":
                return questions.overview(first.report)
            case "findings":
                return questions.findings(first.report, str(values.get("rule") or ""))
            case "evidence":
                return questions.evidence(first.report, first.run, first.program, _value(values, "finding"))
            case "query":
                return questions.query(first.run, _value(values, "sql"), int(_number(values, "limit", 50)))
            case "prove" if self.allow_run:
                return proving.prove(
                    first.run,
                    questions.place(first.report, _value(values, "finding")),
                    self.roots,
                    patch=str(values.get("patch") or ""),
                    budget_s=_number(values, "budget_s", 120),
                )
            case _:
                raise UsageError(
                    f"there is no tool {tool[:40]!r}", hint=f"{TOOLS}; prove with --allow-run alone"
                )

    def _given(self, text: str) -> Path:
        """Raises UsageError for a path that the user did not give, or where nothing is."""
        path = Path(text).expanduser().resolve()
        if not identity.inside(path, self.roots):
            raise UsageError(
                "this path is not among those that the user gave to `kinetoscope mcp`",
                where=text[:200],
                hint=f"recordings in: {', '.join(map(str, self.roots))}",
            )
        if not path.exists():
            near = path.parent if path.parent.is_dir() and path not in self.roots else self.roots[0]
            there = sorted(one.name for one in near.iterdir()) if near.is_dir() else []
            raise UsageError("there is no such recording", where=text[:200], hint=meant(path.name, there))
        return path

    def _recording(self, text: str) -> OpenRecording:
        path = self._given(text)
        known = self._open.pop(path, None)
        if known is None or not _is_as_it_was(known):
            known = OpenRecording(path, load(path))
            _ = known.stamp
        self._open[path] = known  # the newest last
        while len(self._open) > KEPT:
            del self._open[next(iter(self._open))]
        return known


def _value(values: Mapping[str, object], name: str) -> str:
    if name not in values:
        raise UsageError(f"a value is missing: {name}")
    return str(values[name])


def _number(values: Mapping[str, object], name: str, otherwise: float) -> float:
    text = str(values.get(name, otherwise))
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise UsageError(f"{name} is a number, 0 or more", where=text[:40])
    return number


def _is_as_it_was(known: OpenRecording) -> bool:
    with suppress(OSError):
        return identity.stamp(known.run) == known.stamp
    return False
