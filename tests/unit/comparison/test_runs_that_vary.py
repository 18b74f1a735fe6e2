"""Two runs of one program, each as slow as chance will have it: seldom is one called faster or slower."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from broad import broad
from kinetoscope.comparison.account import Account, account
from kinetoscope.comparison.step_change import (
    A_RUN,
    A_RUN_OF_THE_HOST,
    OF_TWO_RUNS,
    SAME,
    device_change,
    of_one_run_each,
    step_change,
    varies,
)
from kinetoscope.recording.manifest import Environment, Manifest, RankRecord, StepTimings
from kinetoscope.sources.run import LoadedRun
from kinetoscope.statistics.intervals import stands
from traces import call, host, kernel, step, trace


def run(chance: random.Random, vary: float) -> list[float]:
    """The steps of a run (µs): all by one factor, each by a third as much on its own."""
    factor = chance.lognormvariate(0, vary)
    return [1000 * factor * chance.lognormvariate(0, vary / 3) for _ in range(40)]


@pytest.mark.parametrize("vary", broad([A_RUN, A_RUN_OF_THE_HOST], [A_RUN]))  # one scale tells
def test_one_run_a_side_is_wrong_one_time_in_twenty(vary: float) -> None:
    verdicts = []
    for seed in range(200):
        chance = random.Random(seed)
        ratio, _ = of_one_run_each(run(chance, vary), run(chance, vary), vary)
        verdicts.append(stands(ratio, SAME + OF_TWO_RUNS * vary))
    wrong = sum(verdict in ("faster", "slower") for verdict in verdicts)
    assert wrong <= 10


def test_the_host_s_part_of_a_step_varies_more_than_the_device_s() -> None:
    assert varies(1.0) == A_RUN
    assert varies(0.0) == A_RUN_OF_THE_HOST
    assert varies(1.0) < varies(0.9) < varies(0.5) < varies(0.0)


def test_nothing_is_said_of_a_host_s_step_on_a_machine_that_was_busy() -> None:
    """Threads of one op wait for each other, and one of them for a core: two recordings of one program had
    steps of 308 ms and of 1.1 ms, at a load of 9 and of 11 on two cores."""

    def busy(step_us: float) -> Account:
        one = profiled(2 * step_us, 0.1 * step_us, unprofiled_us=step_us)
        environment = Environment(cpu_count=2, load_average=9)
        manifest = msgspec.structs.replace(one.run.manifest or Manifest(), environment=environment)
        found = account(replace(one.run, manifest=manifest))
        assert found is not None
        return found

    found = step_change([busy(308_000)], [busy(1_100)])
    assert found.verdict == "cannot tell"
    assert found.fraction < -0.99, "the estimate is shown all the same"
    assert "the machine was busy" in found.basis
    assert step_change([busy(300_000)] * 5, [busy(1_100)] * 5).verdict == "faster", "of several runs it is"


def profiled(step_us: float, work_us: float, unprofiled_us: float | None = None) -> Account:
    """Six steps, each a little longer than the one before, in which a kernel runs; timed without the profiler
    too, or not."""
    events: list[dict[str, Any]] = []
    begin = 1000.0
    for number in range(6):
        length = step_us * (1 + number / 1000)
        events += [
            step(number, begin, length),
            host("aten::mm", begin + 1, 4),
            call("cudaLaunchKernel", begin + 2, 2, number + 1),
            kernel("gemm", begin + 5, work_us * (1 + number / 1000), number + 1),
        ]
        begin += length
    timings = StepTimings(
        unprofiled_s=tuple(unprofiled_us * (1 + n / 1000) / 1e6 for n in range(20)) if unprofiled_us else ()
    )
    manifest = Manifest(ranks=(RankRecord(rank=0, steps=timings),)) if unprofiled_us else None
    found = account(LoadedRun((trace(*events),), manifest=manifest))
    assert found is not None
    return found


def test_a_profiled_step_that_the_host_sets_the_pace_of_is_not_judged() -> None:
    """Without the profiler it may be anything from the device's work to what was recorded."""
    found = step_change([profiled(1000, 100)], [profiled(600, 100)])
    assert found.verdict == "cannot tell"
    assert found.fraction == pytest.approx(-0.4, abs=0.01), "the estimate is shown all the same"
    assert "profiled" in found.basis


def test_a_profiled_step_that_the_device_sets_the_pace_of_is_judged() -> None:
    assert step_change([profiled(1000, 990)], [profiled(600, 595)]).verdict == "faster"


def test_the_device_s_work_is_compared_where_the_step_cannot_be() -> None:
    base, new = profiled(1000, 300), profiled(1010, 200)
    assert step_change([base], [new]).verdict == "cannot tell"
    found = device_change([base], [new])
    assert found is not None
    assert found.verdict == "faster"
    assert found.base_us == pytest.approx(300, rel=0.01)
    assert found.new_us == pytest.approx(200, rel=0.01)


def test_single_runs_of_a_host_s_program_are_not_told_apart_by_what_runs_differ_by() -> None:
    one = profiled(1000, 100, unprofiled_us=800)
    assert step_change([one], [profiled(1000, 100, unprofiled_us=1200)]).verdict == "cannot tell"
    assert step_change([one], [profiled(3000, 100, unprofiled_us=2900)]).verdict == "slower"
