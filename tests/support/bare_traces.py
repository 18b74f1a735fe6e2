"""Whether the interval that `diff` gives of two bare traces holds the change measured without a profiler. By
hand:

    PYTHONPATH=src:tests python tests/support/bare_traces.py [CASE …]

prints a line for each pair of `tests/cases`, and how many hold. The steps without the profiler were timed in
five rounds when the pairs were recorded; they are kept from the comparison.
"""

from __future__ import annotations

import sys
from statistics import median

from msgspec.structs import replace

from cases.recorded import cases, recorded
from kinetoscope.analysis.passes.unprofiled import unprofiled_rounds_us
from kinetoscope.comparison.account import recorded_account
from kinetoscope.comparison.gates import interval_words
from kinetoscope.comparison.step_change import StepChange, step_change
from kinetoscope.sources.run import LoadedRun
from kinetoscope.statistics.intervals import Ratio, compare_groups


def compared(case: str) -> tuple[Ratio, StepChange] | None:
    """The measured change, with the interval of its rounds, and what the traces alone say; None where one of
    the sides was not recorded, or not timed without the profiler."""
    runs = [run for side in ("before", "after") if (run := recorded(case, side)) is not None]
    timed = [_timed_us(run) for run in runs]
    bare = [own for run in runs if (own := recorded_account(replace(run, manifest=None)))]
    if len(bare) < 2 or not all(timed):
        return None
    rounds = compare_groups(*timed)
    return Ratio(median(timed[1]) / median(timed[0]), rounds.low, rounds.high), step_change(
        bare[:1], bare[1:]
    )


def _timed_us(run: LoadedRun) -> list[float]:
    ranks = run.manifest.ranks if run.manifest else ()
    return [us for rank in ranks[:1] for us in unprofiled_rounds_us(rank.steps)]


def holds(measured: Ratio, step: StepChange) -> bool:
    return step.ratio.low <= measured.ratio <= step.ratio.high


def is_wrong(measured: Ratio, step: StepChange) -> bool:
    """Whether the traces alone call faster what is measured to be slower, or the other way round."""
    return {"faster": measured.low > 1, "slower": measured.high < 1}.get(step.verdict, False)


def main(names: list[str]) -> None:
    found = [(name, *both) for name in names or cases() if (both := compared(name))]
    print("| pair | measured, 95 % | recorded, 95 % | verdict | holds |\n|---|--:|--:|---|---|")
    for name, measured, step in found:
        cells = [
            name,
            f"{_percent(measured.ratio)} ({interval_words(measured.low - 1, measured.high - 1)})",
            f"{_percent(step.ratio.ratio)} ({interval_words(step.low_fraction, step.high_fraction)})",
            step.verdict,
            "yes" if holds(measured, step) else "**no**",
        ]
        print(f"| {' | '.join(cells)} |")
    within = sum(holds(measured, step) for _, measured, step in found)
    known = sum(step.verdict in ("faster", "slower") for _, _, step in found)
    wrong = sum(is_wrong(measured, step) for _, measured, step in found)
    print(
        f"\n{within} of {len(found)} intervals hold what was measured; {wrong} of {known} verdicts are wrong"
    )


def _percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f} %"


if __name__ == "__main__":
    main(sys.argv[1:])
