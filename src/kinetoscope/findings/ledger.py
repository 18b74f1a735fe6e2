"""Findings in the order in which to act on them, and what each still saves once those above are followed.

What a fix changes in the recorded steps is counted once: the finding above has it, and others that see the
same time say so. What is left of each is what the replay gains by its change after all those above, so that
the findings of a rank add up to what all of them save together.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import replace

import polars as pl

from kinetoscope.analysis.replay.change import NOTHING, Change
from kinetoscope.analysis.run import Run
from kinetoscope.analysis.time import intervals
from kinetoscope.findings import experience
from kinetoscope.findings.model import SEVERITIES, Finding, Remaining
from kinetoscope.findings.savings import LOW, severity
from kinetoscope.findings.scene import Scene, scenes

# A symptom stands below its cause where the cause explains so much of what the symptom would save, …
EXPLAINS = 0.5
# … and a finding belongs to another where so much of what it saves by itself is gone after that.
OWNED = 0.5


def settle(run: Run, found: Iterable[Finding], symptoms: frozenset[str] = frozenset()) -> list[Finding]:
    """The findings of all ranks with ``remaining``, ``severity`` and ``ranks``, those to act on first.

    Args:
        found: with ``rule`` and ``rank``.
        symptoms: rules that see what others explain.
    """
    slowest = max(scenes(run), key=lambda scene: scene.own_step_us, default=None)
    if slowest is None:
        return []
    merged = _one_for_all_ranks(found, slowest.rank)
    books = [
        _settled(scene, [finding for finding in merged if finding.rank == scene.rank], symptoms)
        for scene in scenes(run)
    ]
    in_turn = heapq.merge(*books, key=lambda finding: -finding.remaining.us)
    return [*_within(in_turn, slowest.own_step_us)]


def _one_for_all_ranks(found: Iterable[Finding], slowest: int) -> list[Finding]:
    """Findings that differ only in their rank become one, the slowest rank's or else the one that saves most;
    ``ranks`` says where it is."""
    alike: dict[tuple[str, str], list[Finding]] = {}
    for finding in found:
        alike.setdefault((finding.rule, finding.subject), []).append(finding)
    merged: list[Finding] = []
    for same in alike.values():
        worst = max(same, key=lambda finding: (finding.rank == slowest, finding.saving.us))
        ranks = tuple(sorted({finding.rank for finding in same}))
        merged.append(replace(worst, ranks=ranks) if len(ranks) > 1 else worst)
    return merged


class _Book:
    """What has been claimed of one rank's step."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.change: Change = NOTHING
        self.beside_us = 0.0
        self.saved_us = 0.0
        self.owners: list[Finding] = []

    def gain(self, finding: Finding) -> float:
        """What the finding saves after those that are in the book."""
        saving = finding.saving
        together = saving.change | self.change if self.owners else saving.change
        saved = self.scene.saves(together) if not together.is_empty else 0.0
        return max(0.0, self._bounded(saved + self.beside_us + saving.beside_us) - self.saved_us)

    def enter(self, finding: Finding, gain: float) -> Finding:
        owner = self._owner(finding) if gain < OWNED * finding.saving.us else ""
        self.change = self.change | finding.saving.change
        self.beside_us += finding.saving.beside_us
        self.saved_us = self._bounded(self.saved_us + gain)
        self.owners.append(finding)
        low, high = experience.interval(finding.rule)
        most = self.scene.own_step_us
        return replace(
            finding, remaining=Remaining(gain, low * gain, min(high * gain, most), gain / most, owner)
        )

    def _bounded(self, us: float) -> float:
        return min(us, self.scene.own_step_us)

    def _owner(self, finding: Finding) -> str:
        """The rule that holds most of what the finding claims; of what only got off the critical path, the
        one that saves most."""
        shared = [(_shared_ns(finding.saving.change, owner.saving.change), owner) for owner in self.owners]
        most, owner = max(shared, key=lambda pair: pair[0], default=(0.0, None))
        if owner is None:
            return ""
        return owner.rule if most > 0 else max(self.owners, key=lambda one: one.saving.us).rule


def _settled(scene: Scene, findings: list[Finding], symptoms: frozenset[str]) -> list[Finding]:
    """One rank's findings in order, each worth a line."""

    def claims(finding: Finding) -> bool:
        return finding.saving.us > 0 or not finding.saving.change.is_empty

    worth = [finding for finding in findings if claims(finding)]
    others = [finding for finding in findings if not claims(finding)]
    book, ordered = _Book(scene), list[Finding]()
    gains = {id(finding): finding.saving.us for finding in worth}
    freeing = [finding for finding in worth if finding.saving.freed_share > 0]
    least = LOW * scene.own_step_us
    while worth:
        chosen = _next(book, worth, gains, symptoms, least)
        ordered.append(book.enter(chosen, gains[id(chosen)]))
        worth = [finding for finding in worth if finding is not chosen]
        # Device time counts for more once the host keeps up; other gains only get smaller.
        freeing = [finding for finding in freeing if finding is not chosen]
        gains |= {id(finding): book.gain(finding) for finding in freeing}
    graded = [_graded(scene, finding) for finding in ordered + others]
    kept = [finding for finding in graded if finding is not None]
    # Those that save nothing more come last, the most serious first.
    saves = [finding for finding in kept if finding.remaining.us >= least]
    rest = [finding for finding in kept if finding.remaining.us < least]
    rest.sort(key=lambda one: (SEVERITIES.index(one.severity), -one.saving.us, one.rule, one.subject))
    return saves + rest


def _next(
    book: _Book, worth: list[Finding], gains: dict[int, float], symptoms: frozenset[str], least: float
) -> Finding:
    """The finding that gains most now; a cause before the symptom that it explains, and what is known to help
    before what may not."""
    best = _greatest(book, worth, gains)
    if not experience.helps(best.rule):
        sure = [finding for finding in worth if experience.helps(finding.rule)]
        if sure and gains[id(other := _greatest(book, sure, gains))] >= least:
            best = other
    causes = [one for one in worth if one.rule not in symptoms and experience.helps(one.rule)]
    if best.rule in symptoms and causes:
        cause = _greatest(book, causes, gains)
        if gains[id(cause)] >= EXPLAINS * gains[id(best)]:
            return cause
    return best


def _greatest(book: _Book, findings: list[Finding], gains: dict[int, float]) -> Finding:
    """The finding that gains most; ``gains`` hold what each gained when last asked, and are brought up to
    date only while that may change the answer: what others claimed seldom makes a change worth more."""
    waiting = sorted(findings, key=lambda finding: (-gains[id(finding)], finding.rule, finding.subject))
    best, most = waiting[0], -1.0
    for finding in waiting:
        if gains[id(finding)] <= most:
            break
        if book.owners:
            gains[id(finding)] = book.gain(finding)
        if gains[id(finding)] > most:
            best, most = finding, gains[id(finding)]
    return best


def _graded(scene: Scene, finding: Finding) -> Finding | None:
    """With its severity, by what remains; None: not worth a line even by itself."""
    left, alone = finding.remaining.us, finding.saving
    if severity(alone, finding.at_least, finding.at_most) is None:
        return None
    remaining = replace(alone, us=left, share=left / scene.own_step_us)
    owned = replace(remaining, freed_share=0.0) if finding.remaining.owner else remaining
    return replace(finding, severity=severity(owned, finding.at_least, finding.at_most) or "info")


def _within(findings: Iterable[Finding], step_us: float) -> Iterable[Finding]:
    """Of several ranks' findings no more than the step can be saved."""
    left = step_us
    for finding in findings:
        own, us = finding.remaining, min(finding.remaining.us, left)
        bounded = replace(own, us=us, low_us=min(own.low_us, left), share=us / max(step_us, 1e-9))
        yield replace(finding, remaining=bounded)
        left -= us


def _shared_ns(one: Change, other: Change) -> float:
    """How much of the time that two changes take away is the same."""
    device = one.device.join(other.device, on="id").select(pl.min_horizontal("saved_ns", "saved_ns_right"))
    host = intervals.intersect(one.host, other.host, ["lane"])
    return float(device.to_series().sum()) + intervals.total(host)
