"""Configurations: parsing, neighbours, descent, what is applied; a module's union; Nsight Compute's text."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinetoscope.bench.autotune import configurations as autotune
from kinetoscope.bench.autotune import winners as apply
from kinetoscope.bench.kernels import ncu, replay
from kinetoscope.bench.measure import timers
from kinetoscope.bench.measure.results import MeasurementSet, RatioToBase
from kinetoscope.bench.measure.timers import Activity, TimingError
from kinetoscope.errors import UsageError
from kinetoscope.statistics.intervals import Verdict


def test_a_configuration_from_the_command_line() -> None:
    parsed = autotune.parse_configuration("XBLOCK=128, R0_BLOCK=64 num_warps=8")
    assert parsed == {"XBLOCK": 128, "R0_BLOCK": 64, "num_warps": 8, "num_stages": 1}
    for wrong in ("XBLOCK", "XBLOCK=a", "=4", "", "XBLOCK=-1", "1X=2"):
        with pytest.raises(UsageError, match="not a configuration"):
            autotune.parse_configuration(wrong)


def test_neighbours_halve_and_double_within_limits_and_leave_the_wrappers_entries_alone() -> None:
    around = autotune.neighbours({"XBLOCK": 1, "RSPLIT_SIZE": 16, "num_warps": 32, "num_stages": 2})
    assert {"XBLOCK": 2, "RSPLIT_SIZE": 16, "num_warps": 32, "num_stages": 2} in around
    assert {c["RSPLIT_SIZE"] for c in around} == {16}
    assert sorted(c["num_stages"] for c in around) == [1, 2, 2, 3]
    assert {c["num_warps"] for c in around} == {16, 32}


def test_the_descent_finds_the_bottom_of_a_bowl_and_skips_what_cannot_run() -> None:
    asked: list[dict[str, int]] = []

    def cost(wanted: list[dict[str, int]]) -> list[float]:
        asked.extend(wanted)
        return [
            float("inf")
            if c["XBLOCK"] * c["num_warps"] > 4096
            else 100 + abs(c["XBLOCK"].bit_length() - 9) * 10 + abs(c["num_warps"].bit_length() - 3) * 7
            for c in wanted
        ]

    start = {"XBLOCK": 16, "num_warps": 16, "num_stages": 1}
    assert autotune.descend(start, cost) == {"XBLOCK": 256, "num_warps": 4, "num_stages": 1}
    assert len(asked) < 100


def test_the_descent_stays_where_differences_are_within_noise() -> None:
    r = random.Random(1)
    start = {"XBLOCK": 16, "num_warps": 4, "num_stages": 1}
    assert autotune.descend(start, lambda wanted: [100 + r.random() * 0.4 for _ in wanted]) == start


def test_the_source_tries_everything() -> None:
    source = "inductor_meta={'max_autotune': False, 'max_autotune_pointwise': False, 'deterministic': False}"
    changed = autotune.max_autotune_source(source)
    assert (
        changed
        == "inductor_meta={'max_autotune': True, 'max_autotune_pointwise': True, 'deterministic': False}"
    )


def tuned(name: str, verdict: Verdict) -> autotune.Tuned:
    comparison = RatioToBase(
        name="winner",
        base="default",
        ratio=0.9,
        low=0.89,
        high=0.91,
        confidence=0.95,
        noise_floor=0.001,
        verdict=verdict,
    )
    final = MeasurementSet(
        subjects=(), comparisons=(comparison,), rounds=48, stopped="precise", seconds=1.0, seed=0
    )
    return autotune.Tuned(
        name=name,
        module="m",
        launches_per_run=1,
        trials=(),
        default={"XBLOCK": 1, "num_warps": 4, "num_stages": 1},
        winner={"XBLOCK": 2, "num_warps": 4, "num_stages": 1},
        final=final,
    )


def test_only_what_is_faster_is_applied() -> None:
    kernels = [tuned("a", "faster"), tuned("b", "cannot tell"), tuned("c", "slower")]
    assert set(apply.winners(kernels)) == {"a"}


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), min_size=1, max_size=20))
def test_busy_is_the_union(spans: list[tuple[int, int]]) -> None:
    work = sorted((Activity("k", start, start + length) for start, length in spans), key=lambda a: a.start_ns)
    covered = {t for a in work for t in range(a.start_ns, a.end_ns)}
    assert replay.union_ns(work) == len(covered)


def activities(names: str) -> list[Activity]:
    spelled = {"m": "erfinv_kernel", "f": "reduce_kernel", "k": "triton_poi_fused_add_0"}
    return [Activity(spelled[n], 10 * i, 10 * i + 7) for i, n in enumerate(names)]


def test_samples_lie_between_markers_whatever_runs_between_them() -> None:
    samples = timers.between_markers(activities("fmkmfmkkm"))
    assert [[a.start_ns for a in sample] for sample in samples] == [[20], [60, 70]]
    for broken in ("mkmm", "fmkmfm", "mm"):
        with pytest.raises(TimingError, match="incomplete"):
            timers.between_markers(activities(broken))


NCU = """==PROF== Connected to process 1234
progress words of the program
==PROF== Disconnected from process 1234
"ID","Process ID","Kernel Name","gpu__time_duration.sum","dram__bytes.sum",\
"sm__throughput.avg.pct_of_peak_sustained_elapsed","gpc__cycles_elapsed.avg.per_second"
"","","","us","Mbyte","%","Ghz"
"0","1234","triton_a","1,023.5","2.5","41.5","1.7"
"1","1234","triton_a","1,021.5","2.5","41.7","1.9"
"2","1234","triton_b","4.0","n/a","3","parsecs"
"""


def test_what_nsight_compute_prints_is_read_back() -> None:
    a, b = ncu.parse(NCU)
    assert (a.name, a.launches, a.duration_ns, a.dram_bytes) == ("triton_a", 2, 1022.5e3, 2.5e6)
    assert a.compute_percent == pytest.approx(41.6)
    assert a.sm_clock_hz == pytest.approx(1.8e9)
    assert (b.duration_ns, b.dram_bytes) == (4000, None)
    assert ncu.parse("==ERROR== ERR_NVGPUCTRPERM") == []


def test_nsight_compute_gets_exact_names_and_leaves_the_clocks_alone() -> None:
    command = ncu.command("/usr/bin/ncu", ["triton_a.b"], ["python", "x.py"])
    assert command[command.index("--kernel-name") + 1] == r"regex:^(triton_a\.b)$"
    assert command[command.index("--clock-control") + 1] == "none"
    assert command[-2:] == ["python", "x.py"]
