"""The difference of the step's time, and of the device's work in it, between two versions, and whether it is
known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

import msgspec

from kinetoscope.analysis.passes.as_it_runs import as_it_runs
from kinetoscope.analysis.passes.unprofiled import unprofiled_rounds_us
from kinetoscope.analysis.time.phases import leading_of
from kinetoscope.comparison.account import Account
from kinetoscope.sources.run import LoadedRun
from kinetoscope.statistics.intervals import (
    Ratio,
    Stands,
    between_runs_noise,
    compare_apart,
    compare_groups,
    stands,
)  # fmt: skip

# Runs of one program vary by so much (standard deviations of the logarithm) for reasons that no step of them
# shows: the device's work by its clocks and addresses, the host's by the cores and the memory that a process
# gets and by what else runs. docs/evidence/comparing.md has the measurements. Folders of repeats measure it.
A_RUN, A_RUN_OF_THE_HOST = 0.03, 0.27
# Two runs that vary by a standard deviation differ by so many times that, 19 times in 20, at most.
OF_TWO_RUNS = 1.96 * math.sqrt(2)
HALF = 0.5  # of a step the host's part sets the pace where the device works for less of it
# Steps are the same where the whole interval is so near to 1; the allowance for the device's runs is added.
SAME = 0.01


class StepChange(msgspec.Struct, frozen=True, kw_only=True):
    """The steps of base and new, or the device's work in them, µs at the median (of several runs, the mean of
    their medians).

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
    if len(base) + len(new) > 2:
        ratio, allowance, basis = compare_groups(before, after), 0.0, _runs(base, new)
    else:
        ratio, allowance, basis = _of_single_runs(base[0], new[0])
    if base[0].basis == "as recorded" and ratio.low < ratio.high:
        shares = (fmean(account.device_share for account in side) for side in (base, new))
        ratio, basis = without_the_profiler(ratio, *shares), f"{basis}, profiled"
    return _change(before, after, base[0].unit, ratio, allowance, basis, _means_us(base, new))


def device_change(base: Sequence[Account], new: Sequence[Account]) -> StepChange | None:
    """Compare how long the device works in a step, which no profiler prolongs; None where no device did."""
    if not all(account.on_device and account.busy_us for account in (*base, *new)):
        return None
    before, after = ([account.busy_us for account in accounts] for accounts in (base, new))
    if len(base) + len(new) > 2:
        return _change(before, after, base[0].unit, compare_groups(before, after), 0.0, _runs(base, new))
    ratio, allowance, steps = _of_samples(
        base[0].busy_by_step_us, new[0].busy_by_step_us, after[0] / before[0], A_RUN
    )
    return _change(before, after, base[0].unit, ratio, allowance, f"device time of {steps}")


def _change(
    before: Sequence[float],
    after: Sequence[float],
    unit: str,
    ratio: Ratio,
    allowance: float,
    basis: str,
    mean_us: tuple[float, float] | None = None,
) -> StepChange:
    """The change of one figure a run, with the interval around the difference that is shown."""
    base_us, new_us = fmean(before), fmean(after)
    if base_us and ratio.ratio:
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
        verdict=stands(ratio, SAME + min(allowance, OF_TWO_RUNS * A_RUN)),
        basis=basis,
        unit=unit,
        mean_us=mean_us,
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


def _runs(base: Sequence[Account], new: Sequence[Account]) -> str:
    return f"{len(base)} and {len(new)} runs, {base[0].basis}"


def _of_single_runs(base: Account, new: Account) -> tuple[Ratio, float, str]:
    """The ratio with its interval, the part of the interval that is an allowance, and the basis in words."""
    if base.step_us <= 0 or new.step_us <= 0:
        return Ratio(1.0, 0.0, math.inf), 0.0, "a step without a length"
    vary = max(varies(account.device_share, crowding(account.run)) for account in (base, new))
    ratio, allowance, steps = _of_samples(samples_us(base), samples_us(new), new.step_us / base.step_us, vary)
    return ratio, allowance, f"{steps}, {base.basis}"


def _of_samples(
    before: Sequence[float], after: Sequence[float], ratio: float, vary: float
) -> tuple[Ratio, float, str]:
    if before == after:
        return Ratio(1.0, 1.0, 1.0), 0.0, "the same steps"
    steps = f"{len(before)} and {len(after)} steps of one run each"
    if min(len(before), len(after)) < 2 or min(*before, *after) <= 0:
        return Ratio(ratio, 0.0, math.inf), 0.0, steps
    found, allowance = of_one_run_each(before, after, vary)
    on_their_own = f"runs may differ by {100 * math.expm1(allowance):.0f} % on their own"
    if allowance == math.inf:
        on_their_own = "the machine was busy, where runs of the host's work differ without a bound"
    return found, OF_TWO_RUNS * vary, f"{steps}; {on_their_own}"


def varies(device_share: float, crowding: float = 1.0) -> float:
    """By how much runs vary (a standard deviation of the logarithm) in whose steps the device works for such
    a share: the rest is the host's, and takes up to ``crowding`` times as long where others use its cores;
    without a bound if it sets the pace, since the threads of an op wait for the one that has no core."""
    if crowding > 1 and device_share < HALF:
        return math.inf
    of_the_host = math.hypot(A_RUN_OF_THE_HOST, math.log(crowding) / OF_TWO_RUNS)
    return math.hypot(A_RUN * device_share, of_the_host * (1 - device_share))


def crowding(run: LoadedRun) -> float:
    """How many times more work its machine had than cores during a run; 1: no more, or unknown."""
    environment = run.manifest.environment if run.manifest else None
    return crowded(environment.load_average, environment.cpu_count) if environment else 1.0


def crowded(load: float | None, cores: int | None) -> float:
    return max(1.0, load / cores) if load and cores else 1.0


def of_one_run_each(before: Sequence[float], after: Sequence[float], vary: float) -> tuple[Ratio, float]:
    """The ratio of two runs' steps, and the allowance for runs that vary on their own by such a standard
    deviation: never less than the drift within them."""
    allowance = math.hypot(OF_TWO_RUNS * vary, between_runs_noise(before, after))
    return compare_apart(before, after).widened(allowance), allowance


def without_the_profiler(recorded: Ratio, base_share: float, new_share: float) -> Ratio:
    """The interval of the steps as they run, of recordings in which none were timed without the profiler: at
    most as long as recorded, and at least as long as the device works in it, which is such a share."""
    return Ratio(
        recorded.ratio, recorded.low * new_share, recorded.high / base_share if base_share else math.inf
    )


def samples_us(account: Account) -> list[float]:
    """The times (µs) of the steps that an account is of."""
    if account.basis == "as it runs":
        records = account.run.manifest.ranks if account.run.manifest else ()
        own = (record for record in records if record.rank == account.trace.rank)
        return next((unprofiled_rounds_us(record.steps) for record in own), [])
    if not len(account.trace.steps):
        return [account.step_us]
    return [ns / 1000 for ns in leading_of(account.trace)["duration_ns"].to_list()]
