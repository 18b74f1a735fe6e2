"""The harness, with an injected timer, clock and card."""

from __future__ import annotations

import ctypes
import itertools
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar, cast

import msgspec
import pytest

from kinetoscope.bench import kept
from kinetoscope.bench.measure import results
from kinetoscope.bench.measure.device import clocks_of
from kinetoscope.bench.measure.harness import FEWEST_IN_CHUNK, FEWEST_ROUNDS, TWIN, measure
from kinetoscope.bench.measure.results import ClockReading, Mode
from kinetoscope.bench.measure.timers import Call, HostTimer, last_level_cache_bytes
from kinetoscope.hardware import nvml


class MadeUpTimer:
    """Each call returns its own duration in nanoseconds; time passes on a clock of its own."""

    basis = "made up"

    def __init__(self, noise: float = 0.0) -> None:
        self.seconds = 0.0
        self.log: list[float] = []
        self._noise = noise
        self._random = random.Random(7)

    def time(self, calls: Sequence[Call], mode: Mode, during: Callable[[], None]) -> list[float]:
        times = [cast("float", call()) * self._random.lognormvariate(0, self._noise) for call in calls]
        during()
        self.seconds += sum(times) / 1e9
        self.log += times
        return times

    def now(self) -> float:
        return self.seconds


def test_constant_timings_stop_as_soon_as_that_is_certain() -> None:
    timer = MadeUpTimer()
    measured = measure({"a": lambda: 5e6, "b": lambda: 4e6}, timer=timer, base="a", now=timer.now)
    assert measured.stopped == "precise"
    assert measured.rounds == FEWEST_ROUNDS
    assert measured["a"].median_ns == 5e6
    assert measured["a"].n == measured["b"].n == measured.rounds
    verdicts = {c.name: (c.verdict, c.ratio) for c in measured.comparisons}
    assert verdicts == {"b": ("faster", 0.8), "a" + TWIN: ("cannot tell", 1.0)}


def test_a_planted_3_percent_is_seen_and_identical_things_are_not_different() -> None:
    timer = MadeUpTimer(noise=0.01)
    measured = measure(
        {"a": lambda: 1e6, "same": lambda: 1e6, "slow": lambda: 1.03e6}, timer=timer, base="a", now=timer.now
    )
    verdicts = {c.name: c.verdict for c in measured.comparisons}
    assert verdicts == {"same": "cannot tell", "slow": "slower", "a" + TWIN: "cannot tell"}


def test_noise_that_never_settles_runs_out_of_time() -> None:
    timer = MadeUpTimer(noise=0.5)
    measured = measure({"a": lambda: 1e6}, timer=timer, now=timer.now, seconds=0.1, precision=1e-9)
    assert measured.stopped == "out of time"
    assert 0.1 <= measured.seconds < 0.2
    assert measured.rounds >= FEWEST_ROUNDS


def test_slow_subjects_are_held_to_the_time_bound_and_compared_by_what_there_is() -> None:
    timer = MadeUpTimer(noise=0.001)
    measured = measure(
        {"a": lambda: 2e9, "b": lambda: 1e9},
        timer=timer,
        base="a",
        now=timer.now,
        seconds=20,
        warmup_seconds=0,
    )
    assert measured.stopped == "out of time"
    assert 3 <= measured.rounds <= 5
    assert {c.name: c.verdict for c in measured.comparisons} == {"b": "faster", "a" + TWIN: "cannot tell"}


def test_two_clock_states_settle_by_their_entropy() -> None:
    timer = MadeUpTimer()
    states = itertools.cycle([1.0e6, 1.1e6])
    measured = measure({"a": lambda: next(states)}, timer=timer, now=timer.now, precision=1e-9)
    assert measured.stopped == "settled"


def test_warm_up_is_thrown_away_and_bounded() -> None:
    timer = MadeUpTimer()
    durations = itertools.chain([9e9], itertools.repeat(1e6))  # the first call compiles
    measured = measure({"a": lambda: next(durations)}, timer=timer, now=timer.now)
    assert max(measured["a"].samples_ns) == 1e6


def test_rounds_interleave_every_subject_in_random_order() -> None:
    timer = MadeUpTimer()
    measured = measure(
        {"a": lambda: 1.0, "b": lambda: 2.0, "c": lambda: 3.0}, timer=timer, now=timer.now, seconds=1e-6
    )
    rounds = [timer.log[i : i + 3] for i in range(0, len(timer.log), 3)]
    assert all(sorted(each) == [1, 2, 3] for each in rounds)
    assert len({tuple(each) for each in rounds[-measured.rounds :]}) > 2


def test_buffers_are_rotated() -> None:
    timer = MadeUpTimer()
    measured = measure({"a": [lambda: 1e6, lambda: 2e6]}, timer=timer, now=timer.now)
    assert list(measured["a"].samples_ns[:4]) == [1e6, 2e6, 1e6, 2e6]
    assert "2 sets of buffers" in measured.notes[0]


class MadeUpClocks:
    def __init__(self) -> None:
        self.readings = 0

    def __call__(self, moment, round: int) -> ClockReading:
        self.readings += 1
        return ClockReading(
            moment=moment,
            round=round,
            sm_clock_mhz=345 if self.readings == 2 else 1980,
            max_sm_clock_mhz=1980,
            memory_clock_mhz=3201,
            temperature_c=40,
            power_w=300.0,
        )


def test_samples_at_a_slow_clock_are_marked_and_kept() -> None:
    timer = MadeUpTimer()
    measured = measure({"a": lambda: 1e6}, timer=timer, now=timer.now, clocks=MadeUpClocks())
    assert [r.moment for r in measured.clocks] == ["before", "during", "during", "after"]
    assert measured.slow_clock_rounds == tuple(range(FEWEST_IN_CHUNK))
    assert measured["a"].n == measured.rounds == 2 * FEWEST_IN_CHUNK


def test_the_host_timer_repeats_short_calls_and_flushes_before_cold_ones() -> None:
    elapsed = 0
    log: list[str] = []

    def call() -> None:
        nonlocal elapsed
        elapsed += 1000
        log.append("call")

    timer = HostTimer(flush=lambda: log.append("flush"), clock=lambda: elapsed)
    assert timer.time([call, call], "hot", lambda: None) == [1000, 1000]
    assert len(log) == 1 + 2 + 4 + 8 + 16 + 32 + 2 * 32  # doubled until 20 µs are reached, then two samples
    log.clear()
    timer.time([call] * 2, "cold", lambda: log.append("during"))
    assert log == ["flush", "call", "flush", "call", "during"]
    with pytest.raises(ValueError, match="flushes"):
        HostTimer().time([lambda: None], "cold", lambda: None)


def test_cache_sizes_are_read_as_linux_writes_them(tmp_path: Path) -> None:
    for index, size in enumerate(["48K", "2048K", "105M"]):
        (tmp_path / f"index{index}").mkdir()
        (tmp_path / f"index{index}" / "size").write_text(size + "\n")
    assert last_level_cache_bytes(tmp_path) == 105 << 20
    assert last_level_cache_bytes(tmp_path / "nothing") == 32 << 20


def test_measurements_survive_the_disk_and_their_name_stays_in_the_folder(tmp_path: Path) -> None:
    timer = MadeUpTimer(noise=0.01)
    measured = measure({"a": lambda: 1e6}, timer=timer, now=timer.now, clocks=MadeUpClocks())
    path = results.save(tmp_path, "../../../etc/passwd <b>", measured)
    assert path.parent == tmp_path / "bench"
    assert msgspec.json.decode(path.read_bytes(), type=results.MeasurementSet) == measured
    (path.parent / "autotune-1.json").write_text("{}")
    [problem] = kept.read(tmp_path).problems
    assert problem.startswith("not a measurement")


class FakeNvml:
    """Answers as libnvidia-ml does: 0 for success, numbers through pointers."""

    VALUES: ClassVar[dict[str, int]] = {
        "nvmlDeviceGetMaxClockInfo": 1980,
        "nvmlDeviceGetTemperature": 41,
        "nvmlDeviceGetPowerUsage": 312500,
        "nvmlDeviceGetEnforcedPowerLimit": 650_000,
    }

    def __init__(self) -> None:
        self.uuid = b""

    def nvmlInit_v2(self) -> int:
        return 0

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes, handle) -> int:
        self.uuid = uuid
        return 0 if uuid.startswith(b"GPU-") else 6

    def nvmlDeviceGetClockInfo(self, handle, which: int, value) -> int:
        value._obj.value = {1: 1755, 2: 3201}[which]
        return 0

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle, value) -> int:
        assert isinstance(value._obj, ctypes.c_ulonglong)
        value._obj.value = 0x4 | 0x20
        return 0

    def __getattr__(self, name: str):
        if name not in self.VALUES:
            raise AttributeError(name)

        def answer(*arguments) -> int:
            arguments[-1]._obj.value = self.VALUES[name]
            return 0

        return answer


def test_nvml_readings() -> None:
    library = FakeNvml()
    reading = nvml.Card("abc", library).read()
    assert library.uuid == b"GPU-abc"
    assert reading == nvml.NvmlReading(
        sm_clock_mhz=1755,
        max_sm_clock_mhz=1980,
        memory_clock_mhz=3201,
        temperature_c=41,
        power_w=312.5,
        power_limit_w=650.0,
        throttle_reasons=("power cap", "thermal (software)"),
    )


def test_a_round_has_all_that_nvml_reads() -> None:
    taken = clocks_of(nvml.Card("abc", FakeNvml()))("during", 3)
    assert (taken.moment, taken.round, taken.sm_clock_mhz, taken.power_limit_w) == ("during", 3, 1755, 650.0)


def test_a_machine_without_nvml_says_so() -> None:
    class Refuses:
        def nvmlInit_v2(self) -> int:
            return 9

    with pytest.raises(nvml.NvmlError, match="nvmlInit_v2 answered 9"):
        nvml.Card("abc", Refuses())
