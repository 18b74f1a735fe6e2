"""Which kernels are worth tuning, and whether a graph's replay keeps what its winners promise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clockwork import measured
from kinetoscope.bench.autotune import configurations as autotune
from kinetoscope.bench.autotune import winners as promise
from kinetoscope.bench.autotune import worth
from kinetoscope.bench.autotune.worth import Copy, Worth
from kinetoscope.bench.kernels.generated import KernelSource, ModuleSource, TensorArgument
from kinetoscope.bench.kernels.replay import ModuleResult
from kinetoscope.bench.kernels.subjects import Subject
from kinetoscope.bench.measure.device import Bench
from kinetoscope.bench.measure.results import Gain, RatioToBase
from kinetoscope.bench.measure.timers import HostTimer
from kinetoscope.bench.request import Request
from kinetoscope.bench.worker import Benches
from kinetoscope.bench.worker import autotune as autotune_kernels
from kinetoscope.compilation.generated.module import KernelFacts
from kinetoscope.errors import KinetoscopeError
from kinetoscope.hardware import find

COPIED = (Copy(1000, 2.0), Copy(2000, 3.0), Copy(4000, 5.0))


@pytest.mark.parametrize(
    ("moved", "expected"), [(0, 2.0), (1000, 2.0), (1500, 2.5), (2000, 3.0), (3000, 4.0), (8000, 10.0)]
)
def test_the_least_time_is_on_the_line_between_two_copies(moved: int, expected: float) -> None:
    assert worth.least_ns(moved, None, "float32", COPIED, None) == pytest.approx(expected)


@given(st.integers(0, 10_000), st.integers(0, 10_000))
def test_more_bytes_never_take_less(a: int, b: int) -> None:
    low, high = sorted((a, b))
    times = [worth.least_ns(moved, None, "float32", COPIED, None) for moved in (low, high)]
    assert times[0] <= times[1]


def test_arithmetic_counts_where_it_takes_longer() -> None:
    peak = find("NVIDIA H200")
    assert peak is not None
    rate = peak.peaks["bf16"]
    flops = int(rate * 1e-6)  # a microsecond's worth
    assert worth.least_ns(1000, flops, "bfloat16", COPIED, peak) == pytest.approx(1000, rel=1e-6)
    assert worth.least_ns(1000, flops, "bfloat16", COPIED, None) == 2.0
    assert worth.least_ns(1000, flops // 10_000, "bfloat16", COPIED, peak) == 2.0


def kernel(name: str, cold: float, least: float, launches: int = 1) -> Worth:
    return Worth(name=name, module="m", launches_per_run=launches, cold_ns=cold, least_ns=least)


def test_the_kernels_that_could_win_most_are_chosen_and_the_others_say_why_not() -> None:
    found = worth.choose(
        [
            kernel("near", 1000, 950),
            kernel("once", 500, 250),
            kernel("often", 100, 50, launches=10),
            kernel("small", 4, 2),
            kernel("third", 300, 200),
            kernel("over", 100, 140),
        ],
        2,
    )
    skipped = {w.name: w.skipped for w in found}
    assert [w.name for w in found][:3] == ["often", "once", "third"]
    assert skipped == {
        "often": None,
        "once": None,
        "third": "beyond the limit",
        "near": "nothing to win",
        "over": "nothing to win",
        "small": "too little to win",
    }
    assert [w.could_win_ns for w in found][:2] == [500, 250]
    assert next(w for w in found if w.name == "over").could_win_ns == 0
    assert {w.skipped for w in worth.choose(found, 0) if w.name == "third"} == {None}


def tuned(name: str, default_ns: float, winner_ns: float, launches: int) -> autotune.Tuned:
    return autotune.Tuned(
        name=name,
        module="m",
        launches_per_run=launches,
        trials=(),
        default={"XBLOCK": 1},
        winner={"XBLOCK": 2},
        final=measured(default=default_ns, winner=winner_ns),
    )


def replay(before: float, after: float) -> ModuleResult:
    return ModuleResult(module="m", aot_id="0_backward", wall=measured(as_recorded=before, applied=after))


def test_a_promise_is_the_sum_of_gains_times_launches() -> None:
    kernels = [tuned("a", 1000, 500, 2), tuned("b", 400, 300, 3), tuned("same", 100, 100, 9)]
    made = promise.promise(kernels, replay(100_000, 98_700))
    assert made is not None
    assert made.promised.ns == pytest.approx(1000 + 300)
    assert made.measured.ns == pytest.approx(1300)
    assert made.outcome == "confirmed"
    other = msgspec.structs.replace(tuned("c", 1000, 500, 1), module="another")
    alone = promise.promise([other], replay(100_000, 99_000))
    assert alone is not None
    assert alone.promised.ns == 0
    assert alone.outcome == "more than promised"
    plain = ModuleResult(module="m", aot_id="", wall=measured(as_recorded=10))
    assert promise.promise(kernels, plain) is None


@pytest.mark.parametrize(
    ("measured", "verdict", "outcome"),
    [
        ((95, 105), "faster", "confirmed"),
        ((60, 85), "faster", "confirmed"),  # meets 80 to 120
        ((125, 140), "faster", "more than promised"),
        ((30, 60), "faster", "in part"),
        ((-20, 30), "cannot tell", "refuted"),
        ((-80, 130), "cannot tell", "cannot tell"),
        ((-80, -10), "slower", "refuted"),
    ],
)
def test_the_outcome_follows_its_rule(measured: tuple[float, float], verdict: Any, outcome: str) -> None:
    comparison = RatioToBase(
        name="applied",
        base="as recorded",
        ratio=1,
        low=1,
        high=1,
        confidence=0.95,
        noise_floor=0,
        verdict=verdict,
    )
    saved = Gain(sum(measured) / 2, *map(float, measured))
    assert promise.outcome(Gain(100, 100, 100), saved, comparison) == outcome


def subject(kind: str) -> Subject:
    argument = TensorArgument((4,), (1,), "float32", "cpu", 0, 0)
    return Subject(
        KernelSource("k", "", kind, ()),
        ModuleSource(Path("m.py"), "", "0_inference", {}),
        KernelFacts("pointwise", ("in_ptr0",), (), None, None),
        (argument,),
        16,
        1,
    )


def test_kernels_without_configurations_are_refused_with_what_is_needed() -> None:
    with pytest.raises(KinetoscopeError, match="none of these 1 kernels") as caught:
        autotune_kernels(Request(task="autotune", input="recording"), [subject("cpp")], [], Benches(None))
    assert "record on a GPU" in str(caught.value)


def test_a_kernel_that_cannot_be_timed_does_not_cost_the_others_their_time() -> None:
    class Refuses(HostTimer):
        def time(self, calls: Any, mode: Any, during: Any) -> list[float]:
            if nothing in calls:
                raise KinetoscopeError("no work was seen")
            return [5.0 for _ in calls]

    def nothing() -> None: ...

    bench = Bench("cpu", "", Refuses(), Refuses(), None)
    medians, lost = worth.cold_medians({"a": lambda: None, "none": nothing, "b": lambda: 1}, bench, 0.01)
    assert medians == {"a": 5.0, "b": 5.0}
    assert list(lost) == ["none"]


def test_copies_are_measured_on_this_device(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    from kinetoscope.bench.measure.device import bench_for

    monkeypatch.setattr(worth, "COPIED", worth.COPIED[::3])
    found = worth.copies(bench_for("cpu"), seconds=0.05)
    assert [copy.bytes for copy in found] == list(worth.COPIED)
    assert found[-1].time_ns > found[0].time_ns > 0
