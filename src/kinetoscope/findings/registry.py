"""Finds the rules by their being in the folder, runs them, ranks what they found."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache

from kinetoscope.analysis.idle import timeline
from kinetoscope.analysis.memo import remembered
from kinetoscope.analysis.run import Run
from kinetoscope.findings import rules as folder
from kinetoscope.findings.model import SEVERITIES, Finding
from kinetoscope.findings.savings import severity
from kinetoscope.findings.scene import Scene, scenes

SECTIONS = ("What it finds", "Why it is slow", "How it decides", "What to do", "Source")


@dataclass(frozen=True)
class Rule:
    """One module of ``findings/rules``: ``overhead_bound.py`` is the rule ``overhead-bound``.

    The module's docstring has a first line and the five ``SECTIONS``, each a heading on a line of its own;
    its ``find(scene)`` yields what there is to find on one rank.
    """

    slug: str
    summary: str
    sections: dict[str, str]
    find: Callable[[Scene], Iterable[Finding]]


@cache
def rules() -> dict[str, Rule]:
    """Every rule by its slug, in alphabetical order."""
    return {
        rule.slug: rule for rule in map(_rule, sorted(m.name for m in pkgutil.iter_modules(folder.__path__)))
    }


def _rule(name: str) -> Rule:
    module = importlib.import_module(f"{folder.__name__}.{name}")
    summary, sections = _sections(inspect.cleandoc(module.__doc__ or ""))
    return Rule(name.replace("_", "-"), summary, sections, module.find)


def _sections(document: str) -> tuple[str, dict[str, str]]:
    summary, found, current = "", dict[str, list[str]](), ""
    for line in document.splitlines():
        if line.strip() in SECTIONS:
            current = line.strip()
            found[current] = []
        elif current:
            found[current].append(line)
        elif not summary:
            summary = line.strip()
    return summary, {heading: "\n".join(lines).strip() for heading, lines in found.items()}


@remembered
def find(run: Run) -> list[Finding]:
    """All findings of all rules: those that save most first; equal savings by severity, then by rule."""
    found = [finding for rule in rules().values() for scene in scenes(run) for finding in _found(rule, scene)]
    _forget(run)
    return sorted(
        _one_for_all_ranks(found),
        key=lambda f: (-f.saving.us, SEVERITIES.index(f.severity), f.rule, f.subject),
    )


def _found(rule: Rule, scene: Scene) -> Iterator[Finding]:
    """What a rule finds on one rank and is worth a line."""
    for finding in rule.find(scene):
        level = severity(finding.saving, finding.at_least, finding.at_most)
        if level is not None:
            yield replace(finding, rule=rule.slug, rank=scene.rank, severity=level)


def _forget(run: Run) -> None:
    """Let go what only rules look at."""
    scenes.forget(run)
    for trace in run.traces:
        timeline.chain.forget(trace)


def _one_for_all_ranks(found: list[Finding]) -> list[Finding]:
    """Findings that differ only in their rank become the one that saves most; ``ranks`` says where it is."""
    alike: dict[tuple[str, str], list[Finding]] = {}
    for finding in found:
        alike.setdefault((finding.rule, finding.subject), []).append(finding)
    merged: list[Finding] = []
    for same in alike.values():
        worst = max(same, key=lambda finding: finding.saving.us)
        ranks = tuple(sorted({finding.rank for finding in same}))
        merged.append(replace(worst, ranks=ranks) if len(ranks) > 1 else worst)
    return merged
