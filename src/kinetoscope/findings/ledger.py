"""Findings in the order in which to act on them, and what each still saves once those above are followed.

A fix's change of the recorded steps is counted once: the finding above has it, and others that see the same
time name that finding. Each keeps what the replay gains by its change after all those above, so that the
findings add up to what all of them save together. What saves time under a condition that no trace shows
claims nothing, and stands where half of it would. All ranks of a run are one job, whose step gets shorter: of
ranks that wait for each other, a finding saves what all get faster by.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from kinetoscope.analysis.replay.change import NO_LATE_BATCHES, NOTHING, Changes, ReplayChange, combined
from kinetoscope.analysis.replay.replay import job
from kinetoscope.analysis.time import intervals
from kinetoscope.findings import experience
from kinetoscope.findings.model import SEVERITIES, Finding, Remaining, Role
from kinetoscope.findings.rank_view import RankView, views
from kinetoscope.findings.savings import HIGH, LOW, MAY_SAVE, MEDIUM, severity
from kinetoscope.sources.run import LoadedRun

# A symptom stands below its cause where the cause explains so much of what the symptom would save, and what
# changes results below what does not, where that saves as much, …
EXPLAINS = 0.5
YIELDING = ("symptom", "rounds")
# … or where it takes a tenth of the step off a device that works for so much of it, …
WORKS = 0.5
# … and a finding belongs to another where so much of what it saves by itself is gone after that.
OWNED = 0.5
# Gains that differ by less are equal: sums are rounded.
EQUAL_US = 0.01


class Job(Struct, frozen=True, eq=False, dict=True):
    """All ranks of a run, at least one: what changes of some ranks' steps save of the step that all take."""

    run: LoadedRun

    @cached_property
    def views(self) -> dict[int, RankView]:
        return {view.rank: view for view in views(self.run)}

    @cached_property
    def slowest(self) -> RankView:
        return max(self.views.values(), key=lambda view: view.own_step_us)

    @property
    def usual_us(self) -> float:
        """The step of the slowest rank, µs, without rare long steps."""
        return self.slowest.own_step_us

    @property
    def step_us(self) -> float:
        """The mean step that savings are of, µs: it includes what rare long steps add."""
        return self.usual_us + self.slowest.rare_us

    @property
    def is_joint(self) -> bool:
        """Whether the ranks have collectives in common, so that they are replayed together."""
        return job(self.run) is not None

    @property
    def waits_for_batches(self) -> bool:
        """Whether a data loader sets the pace of all."""
        joint = job(self.run)
        return self.slowest.replay.waits_for_batches if joint is None else joint.waits_for_batches

    @cached_property
    def _critical_us(self) -> dict[int, float]:
        """By rank, how much of the critical path is its own."""
        critical = dict.fromkeys(self.views, 0.0)
        joint = job(self.run)
        for part in () if joint is None else joint.recorded_path:
            critical[part.rank] += part.us
        return critical

    def pacing(self, changes: Changes) -> int | None:
        """The rank that the changed ranks wait for: with most of the critical path, else the longest step."""

        def slow(rank: int) -> tuple[float, float, int]:
            return self._critical_us[rank], self.views[rank].own_step_us, -rank

        return max(self.views.keys() - changes.keys(), key=slow, default=None)

    def saves(self, changes: Changes) -> float:
        """By how much the job's step gets shorter, µs. Ranks without a common collective are replayed each by
        itself: the one that takes longest then is what the step takes."""
        if all(change.is_empty for change in changes.values()):
            return 0.0
        if (joint := job(self.run)) is not None:
            saved = joint.step_us - joint.after(changes.get(joint.rank, NOTHING), changes)
            # Time that a recording takes longer than its ranks do once they go on was paid once.
            return saved * min(1.0, self.usual_us / max(joint.step_us, 1e-9))
        return min(
            view.saves(changes.get(view.rank, NOTHING)) + (self.usual_us - view.own_step_us)
            for view in self.views.values()
        )

    def would_save(self, changes: Changes) -> float:
        """The same once no step waits for its data loader any more."""
        if not self.waits_for_batches:
            return self.saves(changes)
        keeping_up = dict.fromkeys(self.views, NO_LATE_BATCHES)
        return self.saves(combined(changes, keeping_up)) - self.saves(keeping_up)


def settle(
    run: LoadedRun, found: Iterable[Finding], roles: Mapping[str, Role] | None = None
) -> list[Finding]:
    """The findings of all ranks (with ``rule`` and ``rank``) with ``remaining``, ``severity``, ``ranks`` and
    ``paced_by``, those to act on first. ``roles``: by rule; what has none is a cause."""
    if not run.traces:
        return []
    job = Job(run)
    settled = _settled(job, _one_for_all_ranks(job, found), roles or {})
    # A replay does not know of what was measured outside of the recorded steps.
    is_measured = any(one.saving.unreplayed_us for one in settled if one.saving.compared_us is None)
    floor_us = _device_floor_us(job, settled) if is_measured else 0.0
    return [_graded(job, finding) for finding in _within(settled, job.step_us - floor_us, job.step_us)]


def _one_for_all_ranks(job: Job, found: Iterable[Finding]) -> list[Finding]:
    """Findings that differ only in their rank become one: of the rank that all wait for, or that saves most;
    ``ranks`` says where it is, ``together`` what changes there."""
    by_subject: dict[tuple[str, str], list[Finding]] = {}
    for finding in found:
        by_subject.setdefault((finding.rule, finding.subject), []).append(finding)
    merged: list[Finding] = []
    slowest = job.pacing({})
    for same in by_subject.values():
        worst = max(same, key=lambda finding: (finding.rank == slowest, finding.saving.us))
        ranks = tuple(sorted({finding.rank for finding in same}))
        saving = replace(worst.saving, together=_changes(job, same))
        whole = replace(worst, saving=saving, ranks=ranks if len(ranks) > 1 else worst.ranks)
        if len(job.views) > 1:
            whole = _of_job(job, whole, worst.saving.together is not None)
        merged.append(_behind_the_loader(job, whole) if job.waits_for_batches else whole)
    return merged


def _changes(job: Job, same: Iterable[Finding]) -> Changes:
    changes: Changes = {}
    for finding in same:
        by_rank = finding.saving.together
        if by_rank is None or not job.is_joint:
            by_rank = {finding.rank: finding.saving.change}
        # Several ranks may name the same change of another rank: it is made once.
        new = {rank: change for rank, change in by_rank.items() if changes.get(rank) is not change}
        changes = combined(changes, new)
    return changes


def _of_job(job: Job, finding: Finding, is_joint: bool) -> Finding:
    """The finding with what it saves of the job's step. Where that is little since its ranks wait for another
    one, it keeps what it saves of its own rank's step, and names the rank that is waited for."""
    saving = finding.saving
    changes = saving.together or {}
    saves = job.saves if _hurries_a_loader(finding) else job.would_save
    if (compared_us := saving.compared_us) is not None:
        return replace(finding, saving=replace(saving, unreplayed_us=compared_us - saves(changes)))
    us = min(saves(changes) + saving.unreplayed_us, job.step_us)
    pacing = None if is_joint else job.pacing(changes)
    if us < OWNED * saving.us and pacing is not None:
        return replace(finding, paced_by=pacing, saving=replace(saving, most_us=0.0))
    most_us = us if is_joint and job.is_joint else saving.most_us
    critical = saving.on_critical_path or us > saving.us
    return replace(finding, saving=replace(saving, us=us, most_us=most_us, on_critical_path=critical))


def _behind_the_loader(job: Job, finding: Finding) -> Finding:
    """The finding with what it saves while steps wait for their loader: what is faster only waits longer."""
    saving = finding.saving
    us = min(saving.us, job.saves(saving.together or {}) + saving.unreplayed_us)
    if us >= OWNED * saving.us:
        return finding
    basis = f"{saving.basis}; of the step once it no longer waits for its data loader, until then hidden"
    return replace(finding, saving=replace(saving, us=us, basis=basis, on_critical_path=False))


class _Book:
    """The time of the job's step that findings have claimed so far."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.changes: Changes = {}
        self.unreplayed_us = 0.0
        self.saved_us = 0.0
        self.owners: list[Finding] = []
        # Valid until the next finding is entered:
        self._after: dict[int, Changes] = {}
        self._gains: dict[int, float] = {}

    def gain(self, finding: Finding) -> float:
        """The time that the finding saves after those that are in the book."""
        if id(finding) not in self._gains:
            unreplayed_us = self.unreplayed_us + finding.saving.unreplayed_us
            gain = self._gain(self._changes_after(finding), unreplayed_us)
            most_us = finding.saving.compared_us
            self._gains[id(finding)] = gain if most_us is None else min(gain, most_us)
        return self._gains[id(finding)]

    def joint_gain(self, findings: Iterable[Finding]) -> float:
        """The time that several save together after those that are in the book: none of them saves more."""
        changes, unreplayed_us = self.changes, self.unreplayed_us
        for finding in findings:
            changes = combined(finding.saving.together or {}, changes)
            unreplayed_us += finding.saving.unreplayed_us
        return self._gain(changes, unreplayed_us)

    def _gain(self, changes: Changes, unreplayed_us: float) -> float:
        return max(0.0, self._bounded(self.job.saves(changes) + unreplayed_us) - self.saved_us)

    def _changes_after(self, finding: Finding) -> Changes:
        """All changes once the finding is in the book; one object, which keeps what is known of it."""
        if id(finding) not in self._after:
            self._after[id(finding)] = combined(finding.saving.together or {}, self.changes)
        return self._after[id(finding)]

    def enter(self, finding: Finding, gain: float) -> Finding:
        little = gain < OWNED * finding.saving.us
        paced_by = finding.paced_by if little else None
        owner = self._owner(finding) if little and paced_by is None else None
        self.changes = self._changes_after(finding)
        # A replay that hardly shows what ranks were compared by does not show who else sees the same time.
        if finding.saving.compared_us is None or finding.saving.unreplayed_us <= OWNED * finding.saving.us:
            self.unreplayed_us += finding.saving.unreplayed_us
        self.saved_us = self._bounded(self.saved_us + gain)
        self.owners.append(finding)
        self._after.clear()
        self._gains.clear()
        low, high = experience.interval(finding.rule)
        most = self.job.step_us
        # Whether host or device is slower is known to some percent: what one hides may show.
        high_us = high * gain if owner else max(high * gain, finding.saving.most_us)
        remaining = Remaining(gain, low * gain, min(high_us, most), gain / most, owner)
        return replace(finding, remaining=remaining, paced_by=paced_by)

    def _bounded(self, us: float) -> float:
        return min(us, self.job.step_us)

    def _owner(self, finding: Finding) -> str | None:
        """The rule that has most of what the finding claims, or that saves most where it only got off the
        path."""
        shared = zip(_shared_ns(finding, self.owners), self.owners, strict=True)
        most, owner = max(shared, key=lambda pair: pair[0], default=(0.0, None))
        if owner is None:
            return None
        return owner.rule if most > 0 else max(self.owners, key=lambda entered: entered.saving.us).rule


def _settled(job: Job, findings: list[Finding], roles: Mapping[str, Role]) -> list[Finding]:
    """The findings in order, each worth a line."""

    def claims(finding: Finding) -> bool:
        if finding.saving.condition:
            return False
        changes = (finding.saving.together or {}).values()
        return finding.saving.us > 0 or not all(change.is_empty for change in changes)

    worth = [finding for finding in findings if claims(finding)]
    others = [
        replace(finding, remaining=Remaining(0.0, 0.0, min(_may_save(finding), job.step_us)))
        for finding in findings
        if not claims(finding)
    ]
    book, ordered = _Book(job), list[Finding]()
    on_some = [finding for finding in worth if job.views.keys() - (finding.saving.together or {}).keys()]
    gains = {id(finding): finding.saving.us for finding in worth}
    gains |= {id(finding): book.gain(finding) for finding in on_some}
    freeing = [finding for finding in worth if finding.saving.freed_share > 0]
    least = LOW * job.step_us
    while worth:
        chosen = _next(book, worth, gains, roles, least)
        ordered.append(book.enter(chosen, gains[id(chosen)]))
        worth = [finding for finding in worth if finding is not chosen]
        freeing = [finding for finding in freeing if finding is not chosen]
        if gains[id(chosen)] >= least:  # then all may wait for another rank, or for no batch any more
            shown = worth if _hurries_a_loader(chosen) else on_some
            gains |= {id(finding): job.step_us for finding in shown if finding is not chosen}
        if gains[id(chosen)] > chosen.saving.freed_share * job.slowest.own_busy_us:
            # Device time counts for more once the host keeps up, all of it at most; other gains only get
            # smaller.
            most_us = book.joint_gain(freeing) if len(freeing) > 1 else job.step_us
            gains |= {id(f): min(max(gains[id(f)], f.saving.most_us), most_us) for f in freeing}
    kept = [_graded(job, finding) for finding in ordered + others]
    # A program that ran out of memory has to fit before it can be fast. Those that save nothing more come
    # last, the most serious first.
    fits = [one for one in kept if job.views[one.rank].ran_out and one.saving_bytes > 0]
    fits.sort(key=lambda one: (-one.saving_bytes, one.rule, one.subject))
    kept = [finding for finding in kept if finding not in fits]
    first = fits + [finding for finding in kept if roles.get(finding.rule) == "root"]
    others = [finding for finding in kept if roles.get(finding.rule) != "root"]
    saves = [finding for finding in others if finding.remaining.saving_us >= least]
    rest = [finding for finding in others if finding.remaining.saving_us < least]
    rest.sort(
        key=lambda one: (
            SEVERITIES.index(one.severity), -one.saving.us, -one.saving_bytes, one.rule, one.subject
        )
    )  # fmt: skip
    for finding in [one for one in rest if _may_save(one) > 0 and experience.helps(one.rule)]:
        # What may save much, and is more serious for that than what surely saves little, stands above it; so
        # does what need not run above what makes it faster.
        less = [
            (SEVERITIES.index(one.severity), _may_save(finding))
            > (SEVERITIES.index(finding.severity), MAY_SAVE * one.remaining.saving_us)
            or (one.severity == finding.severity and _rids_of(finding, one))
            for one in saves
        ]
        if any(less):
            rest.remove(finding)
            saves.insert(less.index(True), finding)
    return first + saves + rest


def _rids_of(finding: Finding, other: Finding) -> bool:
    """Whether a finding with a condition takes away most of the device's work that another makes faster, and
    saves as much as explains a symptom."""
    if other.rule == finding.after:
        return False
    if not finding.saving.condition or finding.saving.us < EXPLAINS * other.remaining.saving_us:
        return False
    less, theirs = finding.saving.together or {}, other.saving.together or {}
    shared_ns = sum(_same_device_ns(less.get(rank, NOTHING), change) for rank, change in theirs.items())
    return shared_ns >= EXPLAINS * sum(_same_device_ns(change, change) for change in theirs.values()) > 0


def _may_save(finding: Finding) -> float:
    saving = finding.saving
    if not saving.condition:
        return saving.most_us
    # Of device time that hides behind the host a condition says nothing.
    return saving.us if saving.freed_share else max(saving.us, saving.most_us)


def _hurries_a_loader(finding: Finding) -> bool:
    return any(change.batch_share < 1 for change in (finding.saving.together or {}).values())


def _next(
    book: _Book, worth: list[Finding], gains: dict[int, float], roles: Mapping[str, Role], least: float
) -> Finding:
    """The finding that gains most now; a cause before the symptom that it explains, what keeps all results
    before what rounds them, and advice that is known to help before advice that may not."""
    if roots := [one for one in worth if roles.get(one.rule) == "root"]:
        return _greatest(book, roots, gains)
    best = _greatest(book, worth, gains)
    if not experience.helps(best.rule):
        sure = [finding for finding in worth if experience.helps(finding.rule)]
        if sure and gains[id(other := _greatest(book, sure, gains, least))] >= least:
            best = other
    # What explains it may be one of its own sorts of time: who is named first stands first here as well.
    for named in [one for one in worth if one.saving.compared_us is not None and one is not best]:
        left = book.joint_gain([best, named]) - book.gain(named)
        if book.gain(named) >= EXPLAINS * gains[id(best)] and left < OWNED * gains[id(best)]:
            gains[id(named)] = book.gain(named)
            return named
    seen = MEDIUM * book.job.step_us
    before = [finding for finding in worth if finding.rule == best.after]
    if before and gains[id(other := _greatest(book, before, gains, seen))] >= seen:
        return other
    causes = [one for one in worth if roles.get(one.rule) not in YIELDING and experience.helps(one.rule)]
    if roles.get(best.rule) in YIELDING and causes:
        enough = EXPLAINS * gains[id(best)]
        if gains[id(cause := _greatest(book, causes, gains, enough))] >= enough:
            return cause
        # What need not run is removed before the rest is launched sooner, where the device works most.
        if not best.saving.freed_share and book.job.slowest.working_share >= WORKS:
            much = HIGH * book.job.step_us
            lighter = [one for one in causes if one.saving.freed_share and one.saving.most_us >= much]
            if lighter and gains[id(cause := _greatest(book, lighter, gains, seen))] >= seen:
                return cause
    return best


def _greatest(book: _Book, findings: list[Finding], gains: dict[int, float], least: float = 0.0) -> Finding:
    """The finding that gains most; the one that seemed to, where none gains ``least``. ``gains`` has the gain
    of each when it was last computed, and is brought up to date only while that may change the answer."""
    waiting = sorted(findings, key=lambda finding: -gains[id(finding)])
    computed, most = waiting[:1], least
    for finding in waiting:
        if gains[id(finding)] < least or gains[id(finding)] <= most - EQUAL_US:
            break
        if book.owners:
            gains[id(finding)] = book.gain(finding)
        computed.append(finding)
        most = max(most, gains[id(finding)])
    equal = [finding for finding in computed if gains[id(finding)] >= most - EQUAL_US]
    return min(equal or computed, key=lambda finding: (finding.rule, finding.subject))


def _graded(job: Job, finding: Finding) -> Finding:
    left = finding.saving.us if finding.saving.condition else finding.remaining.saving_us
    freed_share = 0.0 if finding.remaining.also else finding.saving.freed_share
    remaining = replace(finding.saving, us=left, share=left / job.step_us, freed_share=freed_share)
    return replace(finding, severity=severity(remaining, finding.at_least, finding.at_most) or "info")


def _device_floor_us(job: Job, findings: Iterable[Finding]) -> float:
    """The least time of a step, where not all that is saved is replayed; waiting for ranks is no work."""
    floors = [0.0]
    claimed: Changes = {}
    for finding in findings:
        if not finding.saving.condition:
            claimed = combined(claimed, finding.saving.together or {})
    for rank, view in job.views.items():
        device = claimed.get(rank, NOTHING).device
        gone = pl.concat([device, view.waits.select(device.columns)], how="vertical_relaxed")
        gone = gone.group_by("id").agg(pl.col("saved_ns").max())
        floors.append(view.own_busy_us - view.us_of(gone, "saved_ns"))
    return max(floors)


def _within(findings: Iterable[Finding], most_us: float, step_us: float) -> Iterable[Finding]:
    """No more than so much of the step can be saved."""
    left = max(0.0, most_us)
    for finding in findings:
        us, low_us = (
            min(bound, left) for bound in (finding.remaining.saving_us, finding.remaining.saving_low_us)
        )
        share = us / max(step_us, 1e-9)
        bounded = replace(finding.remaining, saving_us=us, saving_low_us=low_us, share_of_step=share)
        yield replace(finding, remaining=bounded)
        left -= us


def _shared_ns(finding: Finding, others: Sequence[Finding]) -> list[float]:
    """By other finding, how much of the time that the changes of both take away is the same."""
    shared = [0.0] * len(others)
    hosts: list[tuple[pl.DataFrame, pl.DataFrame]] = []
    for number, other in enumerate(others):
        theirs = other.saving.together or {}
        for rank, change in (finding.saving.together or {}).items():
            their = theirs.get(rank, NOTHING)
            shared[number] += _same_device_ns(change, their)
            if len(change.host) and len(their.host):
                pair = pl.lit(number).alias("other"), pl.lit(rank).alias("rank")
                hosts.append((change.host.with_columns(pair), their.host.with_columns(pair)))
    if hosts:  # all in one pass
        own, theirs = (pl.concat(tables) for tables in zip(*hosts, strict=True))
        same = intervals.intersect(own, theirs, ["other", "rank", "lane"])
        for number, ns in intervals.length(same, ["other"]).iter_rows():
            shared[number] += ns
    return shared


def _same_device_ns(first: ReplayChange, other: ReplayChange) -> float:
    if first.device.is_empty() or other.device.is_empty():
        return 0.0
    less = pl.min_horizontal("saved_ns", "saved_ns_right").max()
    device = first.device.join(other.device, on="id").group_by("id", maintain_order=True).agg(less)
    return float(device["saved_ns"].sum())
