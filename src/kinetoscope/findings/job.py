"""All ranks of a run as one job: what changes of some ranks' steps save of the step that all take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from kinetoscope.analysis.replay.change import NOTHING, ReplayChange
from kinetoscope.analysis.replay.replay import job
from kinetoscope.findings.rank_view import RankView, views
from kinetoscope.sources.run import Run

Changes = Mapping[int, ReplayChange]  # by rank


@dataclass(frozen=True, eq=False)
class Job:
    """The ranks' views, one at the least."""

    run: Run

    @cached_property
    def views(self) -> dict[int, RankView]:
        """By rank."""
        return {view.rank: view for view in views(self.run)}

    @cached_property
    def slowest(self) -> RankView:
        return max(self.views.values(), key=lambda view: view.own_step_us)

    @property
    def usual_us(self) -> float:
        """The step of the slowest rank, µs; rare long steps left out."""
        return self.slowest.own_step_us

    @property
    def step_us(self) -> float:
        """The mean step that savings are of, µs: what rare long steps add is a part of it."""
        return self.usual_us + self.slowest.rare_us

    @property
    def is_joint(self) -> bool:
        """Whether the ranks meet in collectives, so that they are replayed together."""
        return job(self.run) is not None

    @cached_property
    def _critical_us(self) -> dict[int, float]:
        """By rank, how much of the critical path is its own."""
        own = dict.fromkeys(self.views, 0.0)
        joint = job(self.run)
        for part in () if joint is None else joint.critical_path():
            own[part.rank] += part.us
        return own

    def pacing(self, changes: Changes) -> int | None:
        """The rank that those of a change wait for: of the others that with most of the critical path,
        or else with the longest step."""

        def slow(rank: int) -> tuple[float, float, int]:
            return self._critical_us[rank], self.views[rank].own_step_us, -rank

        return max(self.views.keys() - changes.keys(), key=slow, default=None)

    def saves(self, changes: Changes) -> float:
        """By how much the job's step gets shorter, µs. Ranks that meet nowhere are replayed each by itself:
        the one that takes longest then is what the step takes."""
        if all(change.is_empty for change in changes.values()):
            return 0.0
        if (joint := job(self.run)) is not None:
            saved = joint.step_us - joint.after(changes.get(joint.rank, NOTHING), changes)
            # What a recording takes longer than its ranks do once they go on was paid once.
            return saved * min(1.0, self.usual_us / max(joint.step_us, 1e-9))
        saved = (
            view.saves(changes.get(view.rank, NOTHING)) + (self.usual_us - view.own_step_us)
            for view in self.views.values()
        )
        return min(saved)


def both(one: Changes, other: Changes) -> Changes:
    """Both on every rank; nothing goes twice."""
    found = dict(one)
    for rank, change in other.items():
        found[rank] = found[rank] | change if rank in found else change
    return found
