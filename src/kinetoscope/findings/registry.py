"""The rules of the folder ``rules``, found by being in it, and run."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from functools import cache

from msgspec import Struct
from msgspec.structs import replace

from kinetoscope.analysis.memo import remembered
from kinetoscope.analysis.ranks.comparison import RankComparison
from kinetoscope.findings import evidence, experience
from kinetoscope.findings.by_phase import phased
from kinetoscope.findings.documentation import modules
from kinetoscope.findings.ledger import settle
from kinetoscope.findings.model import Finding, Remaining, Role
from kinetoscope.findings.rank_view import RankView, views
from kinetoscope.findings.savings import severity
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.captures import is_capture


def _nothing(_: RankComparison) -> Iterable[Finding]:
    return ()


class Rule(Struct, frozen=True):
    """One module of ``findings/rules``: ``overhead_bound.py`` is the rule ``overhead-bound``. Its
    ``find(view)`` yields the findings of one rank, ``compared(comparison)`` those of ranks whose traces are
    not read; ``ROLE`` is its place among others."""

    slug: str
    find: Callable[[RankView], Iterable[Finding]]
    role: Role = "cause"
    compared: Callable[[RankComparison], Iterable[Finding]] = _nothing


@cache
def rules() -> dict[str, Rule]:
    """Every rule by its slug, in alphabetical order."""
    return {slug: _rule(slug, name) for slug, name in modules().items()}


def _rule(slug: str, name: str) -> Rule:
    module = importlib.import_module(f"kinetoscope.findings.rules.{name}")
    compared = getattr(module, "compared", _nothing)
    return Rule(slug, module.find, getattr(module, "ROLE", "cause"), compared)


def compared(ranks: RankComparison) -> list[Finding]:
    """Findings of the comparison of many ranks, without their traces: of each rule that has ``compared``."""
    found: list[Finding] = []
    for rule in rules().values():
        for one in rule.compared(ranks):
            level = severity(one.saving)
            low, high = (times * one.saving.us for times in experience.interval(rule.slug))
            remaining = Remaining(one.saving.us, low, high, one.saving.share)
            members = tuple(ranks.verdict.ranks)
            if level is not None:
                found.append(replace(one, rule=rule.slug, severity=level, remaining=remaining, ranks=members))
    return found


@remembered
def find(run: LoadedRun) -> list[Finding]:
    """All findings of all rules, in the order to act on them (see ``ledger``); none of captures."""
    ranks = [view for view in views(run) if not is_capture(view.trace)]
    found = [
        _placed(view, replace(finding, rule=rule.slug, rank=view.rank))
        for rule in rules().values()
        for view in ranks
        for finding in rule.find(view)
        if severity(finding.saving, finding.at_least, finding.at_most) is not None
    ]
    settled = settle(run, found, {rule.slug: rule.role for rule in rules().values()})
    of_rank = {view.rank: view for view in ranks}
    settled = [phased(of_rank[finding.rank], finding) for finding in settled]
    views.forget(run)  # only rules look at them
    return settled


def _placed(view: RankView, finding: Finding) -> Finding:
    """The finding with the lines of the program that its evidence shows."""
    lines = evidence.lines(view, finding.evidence)
    return replace(
        finding, lines=lines, source=finding.source or next((at.split(" ")[0] for at in lines), None)
    )
