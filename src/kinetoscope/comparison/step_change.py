"""The difference of the step's time between two versions, and whether it is known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

import msgspec

from kinetoscope.analysis.passes.as_it_runs import as_it_runs
from kinetoscope.analysis.passes.unprofiled import unprofiled_rounds_us
from kinetoscope.analysis.time.phases import leading_of
from kinetoscope.comparison.account import Account
from kinetoscope.statistics.intervals import (
    Ratio,
    Stands,
    between_runs_noise,
    compare_apart,
    compare_groups,
    stands,
)  # fmt: skip

# Runs of one program vary by so much (a standard deviation) for reasons that no step of them shows (clocks,
# addresses of memory, what else runs): docs/compare.md has the measurements. Folders of repeats measure it.
A_RUN = 0.03
# So two of them may differ by so much, 19 times in 20.
BETWEEN_RUNS = 1.96 * math.sqrt(2) * A_RUN
# Steps are the same where the whole interval is so near to 1; the allowance for runs is added.
SAME = 0.01


class StepChange(msgspec.Struct, frozen=True, kw_only=True):
    """The steps of base and new, µs at the median (of several runs, the mean of their medians).

    ``low`` to ``high`` is the 95 % interval of ``delta_us`` (µs), ``low_fraction`` to ``high_fraction`` the
    same as a fraction of the base's step; null where it has no bound. ``unit``: step, or recording.
    ``mean_us``: the mean step of base and new, where rare long steps of either set it apart from the median.
    """

    base_us: float
    new_us: float
    delta_us: float
    low: float | None
    high: float | None
    fraction: float
    low_fraction: float | None
    high_fraction: float | None
    verdict: Stands
    basis: str
    unit: str
    mean_us: tuple[float, float] | None = None

    @property
    def ratio(self) -> Ratio:
        """The new step over the base's, with its interval."""
        low = -1.0 if self.low_fraction is None else self.low_fraction
        high = math.inf if self.high_fraction is None else self.high_fraction
        return Ratio(1 + self.fraction, 1 + low, 1 + high)


def step_change(base: Sequence[Account], new: Sequence[Account]) -> StepChange:
    """Compare the steps of runs of two versions, one account a run."""
    before, after = ([account.step_us for account in accounts] for accounts in (base, new))
    ratio, allowance, basis = _ratio(base, new)
    base_us, new_us = sum(before) / len(before), sum(after) / len(after)
    if base_us and ratio.ratio:  # the interval stands around the difference that is shown
        shift = new_us / base_us / ratio.ratio
        ratio = Ratio(new_us / base_us, ratio.low * shift, ratio.high * shift)
    low, high = (base_us * (bound - 1) for bound in (ratio.low, ratio.high))
    return StepChange(
        base_us=base_us,
        new_us=new_us,
        delta_us=new_us - base_us,
        low=_bound(low),
        high=_bound(high),
        fraction=(new_us - base_us) / base_us if base_us else 0.0,
        low_fraction=_bound(low / base_us) if base_us else None,
        high_fraction=_bound(high / base_us) if base_us else None,
        verdict=stands(ratio, SAME + allowance),
        basis=basis,
        unit=base[0].unit,
        mean_us=_means_us(base, new),
    )


def _means_us(base: Sequence[Account], new: Sequence[Account]) -> tuple[float, float] | None:
    """The mean steps of both sides; None where no rare long steps matter, or a step was not timed."""
    timed = [[as_it_runs(one.run).get(one.trace.rank) for one in accounts] for accounts in (base, new)]
    sides = [[own.timed for own in side if own is not None] for side in timed]
    if [len(side) for side in sides] != [len(base), len(new)]:
        return None
    if not any(own.rare for side in sides for own in side):
        return None
    before, after = (fmean(own.mean_us for own in side) for side in sides)
    return before, after


def _bound(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _ratio(base: Sequence[Account], new: Sequence[Account]) -> tuple[Ratio, float, str]:
    """The ratio with its interval, the part of the interval that is an allowance, and the basis in words."""
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
    """The ratio of two runs' steps, and the allowance for runs that differ on their own: never less than the
    drift within them."""
    allowance = math.hypot(BETWEEN_RUNS, between_runs_noise(before, after))
    return compare_apart(before, after).widened(allowance), allowance


def samples_us(account: Account) -> list[float]:
    """The times (µs) of the steps that an account is of."""
    if account.basis == "as it runs":
        records = account.run.manifest.ranks if account.run.manifest else ()
        own = (record for record in records if record.rank == account.trace.rank)
        return next((unprofiled_rounds_us(record.steps) for record in own), [])
    if not len(account.trace.steps):
        return [account.step_us]
    return [ns / 1000 for ns in leading_of(account.trace)["duration_ns"].to_list()]
