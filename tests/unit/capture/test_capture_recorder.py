"""The recorder's state machine, with a clock and a profiler that do as they are told."""

from __future__ import annotations

from pathlib import Path

import pytest

from kinetoscope.capture.options import Options
from kinetoscope.capture.recorder.phases import Done, Record, Warm
from kinetoscope.capture.recorder.recorder import Recorder
from kinetoscope.capture.steps.start import StartAgreement
from kinetoscope.capture.steps.steady import PATIENCE


class FakeSession:
    def __init__(self, log: list[str], name: str) -> None:
        self.log, self.name = log, name

    def prepare(self) -> None:
        self.log.append(f"{self.name} prepare")

    def start(self) -> None:
        self.log.append(f"{self.name} start")

    def mark(self, step: int | None) -> None:
        self.log.append(f"{self.name} mark {step}")

    def stop(self) -> None:
        self.log.append(f"{self.name} stop")

    def export(self, path: Path) -> None:
        self.log.append(f"{self.name} export")


class FakeDevice:
    def __init__(self) -> None:
        self.log: list[str] = []
        self.sessions = 0

    def session(self, *, any_thread: bool) -> FakeSession:
        self.sessions += 1
        return FakeSession(self.log, f"{'whole' if any_thread else 'steps'}{self.sessions}")

    def synchronize(self) -> None:
        self.log.append("synchronize")


class Program:
    """A loop whose steps take the seconds it is given."""

    def __init__(self, options: Options | None = None, **arguments: object) -> None:
        self.now, self.compiled, self.finished = 100.0, 0, 0
        self.device = FakeDevice()
        self.recorder = Recorder(
            options or Options(),
            self.device,
            Path("trace.json"),
            clock=lambda: self.now,
            compilations=lambda: self.compiled,
            saved=self.finish,
            **arguments,
        )
        self.recorder.begin()

    def finish(self) -> None:
        self.finished += 1

    def step(
        self, seconds: float = 1.0, kind: str = "optimizer", key: int = 1, compiles: bool = False
    ) -> None:
        self.now += seconds
        self.compiled += compiles
        self.recorder.tick(kind, key, "AdamW")

    def steps(self, count: int, seconds: float = 1.0, **source: object) -> None:
        for _ in range(count):
            self.step(seconds, **source)


def test_a_steady_loop_is_timed_without_and_then_recorded_with_the_profiler():
    program = Program()
    program.steps(30)
    timings = program.recorder.timings()
    assert timings.found_by == "optimizer"
    assert timings.step_name == "AdamW"
    assert timings.unprofiled_s == (1.0, 1.0, 1.0)
    assert timings.profiled_s == (1.0, 1.0, 1.0)
    assert timings.settled
    assert program.finished == 1
    log = program.device.log
    # The device is waited for at both ends of the timed steps and of the recorded ones, and nowhere else.
    assert log[log.index("whole1 stop") + 1 :] == [
        "synchronize",
        "synchronize",
        "steps2 prepare",
        "synchronize",
        "steps2 start",
        f"steps2 mark {timings.first_step}",
        f"steps2 mark {timings.first_step + 1}",
        f"steps2 mark {timings.first_step + 2}",
        "synchronize",
        "steps2 mark None",
        "steps2 stop",
        "steps2 export",
    ]


def test_compiling_and_slow_first_steps_are_waited_out():
    program = Program()
    program.steps(3)
    for seconds in (50.0, 30.0, 9.0):
        program.step(seconds, compiles=True)
    program.steps(30)
    timings = program.recorder.timings()
    assert timings.warmup_s[:3] == (50.0, 30.0, 9.0)
    assert set(timings.unprofiled_s) == {1.0}
    assert timings.settled


def test_steps_that_never_settle_are_recorded_all_the_same_and_said_so():
    program = Program()
    for index in range(40):
        program.step(2.0**index)
    timings = program.recorder.timings()
    assert len(timings.profiled_s) == 3
    assert len(timings.warmup_s) == PATIENCE
    assert not timings.settled


def test_warmup_and_steps_are_what_the_user_says():
    program = Program(Options(warmup=20, steps=5))
    program.steps(60)
    timings = program.recorder.timings()
    assert len(timings.profiled_s) == 5
    assert 20 <= timings.warmup_steps <= 26
    assert timings.warmup_s == (1.0,)


def test_an_optimizer_takes_over_from_the_module_it_trains():
    program = Program()
    for _ in range(30):
        program.step(0.6, kind="training module", key=7)
        program.step(0.4)
    timings = program.recorder.timings()
    assert timings.found_by == "optimizer"
    assert timings.profiled_s == pytest.approx((1.0, 1.0, 1.0))


def test_a_module_in_training_counts_as_step_only_when_no_optimizer_comes():
    program = Program()
    program.steps(60, kind="training module", key=7)
    assert program.recorder.timings().found_by == "module"


@pytest.mark.parametrize("count", [1, 4, 7])
def test_a_program_too_short_to_settle_has_its_first_steps_recorded(count: int):
    program = Program()
    program.steps(count)
    program.recorder.end()
    timings = program.recorder.timings()
    assert "whole1 export" in program.device.log
    assert timings.profiled_s == ()
    assert timings.cold
    assert timings.notes
    assert program.finished == 1


def test_first_steps_are_not_said_to_be_none():
    program = Program()
    program.steps(4)
    program.recorder.end()
    assert "holds its first steps" in program.recorder.timings().notes[0]


def test_a_program_without_steps_is_recorded_whole_and_told_so():
    program = Program()
    program.recorder.end()
    assert program.device.log == [
        "whole1 prepare",
        "whole1 start",
        "whole1 mark None",
        "whole1 stop",
        "whole1 export",
    ]
    assert "no steps were found" in program.recorder.timings().notes[0]
    assert program.recorder.timings().found_by == "whole"


def test_a_program_that_ends_while_it_is_recorded_keeps_its_whole_steps():
    program = Program()
    while not isinstance(program.recorder.phase, Record):
        program.step()
    program.step()
    program.recorder.end()
    timings = program.recorder.timings()
    assert timings.profiled_s == (1.0,)
    assert program.device.log[-1] == "steps2 export"


def test_a_call_that_is_running_when_the_program_ends_is_a_step():
    program = Program()
    while not isinstance(program.recorder.phase, Record):
        program.step(kind="module")
    program.now += 0.25
    program.recorder.end()
    assert program.recorder.timings().profiled_s == (0.25,)


def test_a_program_that_ends_before_the_first_recorded_step_falls_back_on_its_first_steps():
    program = Program()
    while not isinstance(program.recorder.phase, Warm):
        program.step()
    program.recorder.end()
    assert program.device.log[-1] == "whole1 export"


def test_whole_records_everything():
    program = Program(Options(whole=True))
    program.steps(50)
    program.recorder.end()
    assert program.device.sessions == 1
    assert program.device.log.count("whole1 stop") == 1
    assert "whole1 mark 49" in program.device.log


def test_a_range_is_timed_from_its_entry_to_its_exit():
    program = Program(Options(range="hot", steps=2))
    for _ in range(40):
        program.step(5.0, kind="range", key=1)
        program.step(2.0, kind="range end", key=1)
    timings = program.recorder.timings()
    assert timings.found_by == "range"
    assert timings.profiled_s == (2.0, 2.0)
    assert timings.unprofiled_s == (2.0, 2.0, 2.0)


def test_what_follows_a_range_is_no_step():
    program = Program(Options(range="hot", steps=5))
    while not isinstance(program.recorder.phase, Record):
        program.step(5.0, kind="range", key=1)
        program.step(2.0, kind="range end", key=1)
    program.now += 9.0
    program.recorder.end()
    assert program.recorder.timings().profiled_s == (2.0,)


def test_the_program_s_own_profiler_ends_ours_and_is_waited_for():
    program = Program()
    while not isinstance(program.recorder.phase, Warm):
        program.step()
    program.recorder.foreign_began()
    before = list(program.device.log)
    assert before[-2:] == ["steps2 start", "steps2 stop"]
    program.steps(20)
    assert program.device.log == before
    program.recorder.foreign_ended()
    program.steps(30)
    assert len(program.recorder.timings().profiled_s) == 3


def test_the_provisional_recording_ends_with_its_budget():
    program = Program()
    program.recorder.budget_spent("spent")
    assert program.device.log[-1] == "whole1 stop"
    program.recorder.end()
    assert program.device.log[-1] == "whole1 export"
    assert "spent" in program.recorder.timings().notes


def test_a_failure_of_ours_stops_the_recording_and_not_the_program():
    program = Program()
    program.steps(3)

    def fail() -> None:
        raise RuntimeError("no such device")

    program.device.synchronize = fail
    program.steps(30)
    assert isinstance(program.recorder.phase, Done)
    assert program.recorder.timings().notes == ("recording stopped: RuntimeError: no such device",)
    assert program.finished == 1


def test_ranks_start_at_the_step_rank_0_names(tmp_path: Path):
    (tmp_path / "ranks").mkdir()
    first = Program(start_agreed=StartAgreement(tmp_path, 0), lockstep=True)
    second = Program(start_agreed=StartAgreement(tmp_path, 1), lockstep=True)
    for index in range(60):
        first.step(0.001 if index < 20 else 1.0)
        second.step(
            2.0**index if index < 10 else 0.0001
        )  # its own clock would have it wait, then take more steps
    a, b = first.recorder.timings(), second.recorder.timings()
    assert a.first_step == b.first_step
    assert len(a.profiled_s) == len(b.profiled_s) == 3
