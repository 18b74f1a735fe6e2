"""By how much the step differs, and whether that is known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kinetoscope.analysis.passes.unprofiled import unprofiled_rounds_us
from kinetoscope.analysis.time.phases import leading_of
from kinetoscope.comparison.account import Account
from kinetoscope.sources.run import Run
from kinetoscope.statistics.intervals import (
    Ratio,
    Stands,
    between_runs_noise,
    compare_apart,
    compare_groups,
    stands,
)

# Runs of one program vary by so much (a standard deviation) for reasons that no step of them shows (clocks,
# where memory lies, what else runs): docs/compare.md has what was measured. Folders of repeats measure it.
A_RUN = 0.03
# So two of them may differ by so much, 19 times in 20.
BETWEEN_RUNS = 1.96 * math.sqrt(2) * A_RUN
# Steps are the same where the whole interval lies so near; the allowance for runs comes on top.
ALIKE = 0.01


@dataclass(frozen=True)
class StepTime:
    """The steps of base and new, µs at the median (of the runs' medians, their mean).

    ``low`` to ``high`` is the 95 % interval of ``new_us - base_us``; ``ratio`` likewise of new to base.
    """

    base_us: float
    new_us: float
    low: float
    high: float
    verdict: Stands
    ratio: Ratio
    basis: str

    @property
    def delta_us(self) -> float:
        return self.new_us - self.base_us


def step_time(base: Sequence[Account], new: Sequence[Account]) -> StepTime:
    """Compare the steps of runs of two versions, one account a run."""
    before, after = ([account.step_us for account in accounts] for accounts in (base, new))
    ratio, allowance, basis = _ratio(base, new)
    base_us, new_us = sum(before) / len(before), sum(after) / len(after)
    if base_us and ratio.ratio:  # the interval stands around the difference that is shown
        shift = new_us / base_us / ratio.ratio
        ratio = Ratio(new_us / base_us, ratio.low * shift, ratio.high * shift)
    low, high = (base_us * (bound - 1) for bound in (ratio.low, ratio.high))
    return StepTime(base_us, new_us, low, high, stands(ratio, ALIKE + allowance), ratio, basis)


def _ratio(base: Sequence[Account], new: Sequence[Account]) -> tuple[Ratio, float, str]:
    """The ratio with its interval, what of it is an allowance, and what it rests on."""
    if any(account.step_us <= 0 for account in (*base, *new)):
        return Ratio(1.0, 0.0, math.inf), 0.0, "a step without a length"
    if len(base) + len(new) > 2:
        ratio = compare_groups([a.step_us for a in base], [a.step_us for a in new])
        return ratio, 0.0, f"{len(base)} and {len(new)} runs, {base[0].basis}"
    before, after = samples_us(base[0]), samples_us(new[0])
    if before == after:
        return Ratio(1.0, 1.0, 1.0), 0.0, "the same steps"
    steps = f"{len(before)} and {len(after)} steps of one run each, {base[0].basis}"
    if min(len(before), len(after)) < 2:
        return Ratio(new[0].step_us / base[0].step_us, 0.0, math.inf), 0.0, steps
    ratio, allowance = of_one_run_each(before, after)
    return ratio, BETWEEN_RUNS, f"{steps}; runs may differ by {100 * allowance:.0f} % on their own"


def of_one_run_each(before: Sequence[float], after: Sequence[float]) -> tuple[Ratio, float]:
    """The ratio of two runs' steps, and what was allowed for runs that differ on their own: never less than
    they wander themselves."""
    allowance = math.hypot(BETWEEN_RUNS, between_runs_noise(before, after))
    return compare_apart(before, after).widened(allowance), allowance


def samples_us(account: Account) -> list[float]:
    """The steps that an account is of, each with its time."""
    if account.basis == "as it runs":
        return _timed(account.run, account.trace.rank)
    if not len(account.trace.steps):
        return [account.step_us]
    return [ns / 1000 for ns in leading_of(account.trace)["duration_ns"].to_list()]


def _timed(run: Run, rank: int) -> list[float]:
    records = run.manifest.ranks if run.manifest else ()
    return next((unprofiled_rounds_us(record.steps) for record in records if record.rank == rank), [])
