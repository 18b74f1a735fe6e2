"""The recorder's state machine, with a clock and a profiler that do as they are told."""

from __future__ import annotations

from statistics import median

import pytest

from fake_program import FakeDevice, FakeSession, Program
from kinetoscope.capture.options import Options
from kinetoscope.capture.recorder.context import SLOWED
from kinetoscope.capture.recorder.phases import (
    STANDBY_S,
    TIMED_ON_S,
    Done,
    Prepare,
    RecordSteps,
    Settle,
    Standby,
    TimeAfter,
    TimeBefore,
    TimeOn,
)
from kinetoscope.capture.steps.ledgers import Prefetch
from kinetoscope.capture.steps.timing import PATIENCE, QUEUE_PATIENCE, TIMED_ON
from kinetoscope.recording.manifest import BatchPadding
from kinetoscope.statistics.rounds import rounds


def test_a_steady_loop_is_timed_recorded_and_timed_again():
    program = Program()
    program.ledgers.padding = BatchPadding(tokens=64, padding=16, beyond=0)
    program.steps(30, 0.1)
    assert program.ledgers.installed
    program.steps(340, 0.1)
    timings = program.recorder.timings()
    assert timings.found_by == "optimizer"
    assert timings.step_name == "AdamW"
    assert timings.padding == program.ledgers.padding
    assert timings.unprofiled_s == pytest.approx([0.1] * 20)
    assert timings.profiled_s == pytest.approx((0.1, 0.1, 0.1))
    assert timings.before is not None
    assert timings.after is not None
    assert (timings.before.clock, timings.before.step_s) == ("host", timings.unprofiled_s)
    assert timings.after.step_s == pytest.approx([0.1] * 20)
    assert timings.settled
    assert timings.loader_workers is None
    assert program.finished == 1
    assert not program.ledgers.installed
    log = program.device.log
    # At both ends of timed steps a device without a clock is waited for, of recorded ones any device.
    assert log[log.index("whole1 stop") + 1 :] == [
        "whole1 export trace.json",
        "release",  # what the first recording left in the process is out of it when the program is timed
        "synchronize",
        "synchronize",
        "full2 prepare",
        "synchronize",
        "full2 start",
        "synchronize",
        f"full2 mark {timings.first_step}",
        f"full2 mark {timings.first_step + 1}",
        f"full2 mark {timings.first_step + 2}",
        "synchronize",
        "full2 mark None",
        "full2 stop",
        "full2 export trace.json",
        "release",
        "synchronize",
        "synchronize",
    ]


@pytest.mark.parametrize(
    ("lost", "kept"),
    [(["full2"], ["full3", "light4"]), (["light3"], ["full2", "light4"]), (["full2", "full3"], [])],
)
def test_what_torch_loses_is_recorded_once_more(lost: list[str], kept: list[str]) -> None:
    def fails(session: FakeSession) -> None:
        if session.name in lost:
            raise RuntimeError("inserted.second INTERNAL ASSERT FAILED")

    device = FakeDevice(light=True)
    device.stopping = fails
    program = Program(device=device)
    program.steps(400, 0.1)
    timings = program.recorder.timings()
    assert [entry.split()[0] for entry in device.log if "export" in entry] == ["whole1", *kept]
    assert len(timings.profiled_s) == (3 if kept else 0)
    assert any("INTERNAL ASSERT" in note for note in timings.notes) == (not kept)


def test_what_the_profiler_leaves_in_the_process_is_said():
    device = FakeDevice()
    device.releases = False
    program = Program(device=device)
    program.steps(80, 0.1)
    timings = program.recorder.timings()
    assert not timings.released
    assert SLOWED in timings.notes


def test_what_the_profiler_left_at_first_is_no_weakness_once_steps_were_timed_without_it():
    device = FakeDevice()
    device.releases = False
    program = Program(device=device)
    program.steps(12, 0.1)
    device.releases = True
    program.steps(50, 0.1)
    timings = program.recorder.timings()
    assert (timings.slowed, timings.released) == (True, True)
    assert SLOWED not in timings.notes


@pytest.mark.parametrize(
    ("seconds", "before", "after"), [(0.001, 20, 20), (0.15, 14, 14), (0.3, 4, 7), (1.0, 2, 3), (30.0, 1, 3)]
)
def test_twenty_steps_are_timed_or_two_seconds_and_three_at_least_or_a_second_of_few(
    seconds: float, before: int, after: int
):
    program = Program()
    program.steps(80, seconds)
    timings = program.recorder.timings()
    assert timings.before is not None
    assert timings.after is not None
    assert (len(timings.before.step_s), len(timings.after.step_s)) == (before, after)


@pytest.mark.parametrize("kind", ["optimizer", "module"])
def test_a_program_of_four_steps_of_seconds_is_recorded_warm(kind: str):
    program = Program()
    program.device.clock = lambda: program.now
    program.step(9.0, kind=kind)  # with all that a first step loads
    program.steps(3, 2.4, kind=kind)
    program.now += 2.4 * (kind == "module")  # its last call ends with the program
    program.recorder.end()
    timings = program.recorder.timings()
    assert not timings.cold
    assert timings.settled
    assert timings.unprofiled_s == timings.profiled_s == pytest.approx([2.4])
    assert timings.before is not None
    assert timings.before.clock == "device"


@pytest.mark.parametrize("seconds", [0.25, 0.4, 0.7])
@pytest.mark.parametrize("kind", ["optimizer", "module"])
def test_of_a_trial_of_ten_steps_two_are_recorded_warm(kind: str, seconds: float):
    program = Program(device=FakeDevice(light=True))
    program.step(9.0, kind=kind)
    for index in range(9):
        program.step(seconds * (1.3 if index % 2 else 0.9), kind=kind)  # which never settle
    program.recorder.end()
    timings = program.recorder.timings()
    assert not timings.cold
    assert len(timings.profiled_s) >= 2
    assert len(timings.unprofiled_s) >= 2
    assert max(timings.unprofiled_s) < 2 * seconds


def test_long_steps_that_still_get_faster_are_waited_for():
    program = Program()
    program.steps(2, 0.9)
    for seconds in (0.9, 0.7, 0.5, 0.35, 0.3, 0.29, 0.3):
        program.step(seconds)
    program.steps(20, 0.3)
    timings = program.recorder.timings()
    assert timings.settled
    assert max(timings.unprofiled_s) == pytest.approx(0.3)


@pytest.mark.parametrize(("pause_s", "recorded"), [(0.3, 3), (0.45, 2)])
def test_as_few_as_two_steps_are_recorded_where_each_pauses_the_program_for_long(
    pause_s: float, recorded: int
):
    program = Program(device=FakeDevice(light=True))
    program.device.paused = lambda: setattr(program, "now", program.now + pause_s)
    program.steps(150)
    timings = program.recorder.timings()
    assert len(timings.profiled_s) == recorded
    assert [line for line in program.device.log if line.startswith("light3 mark")] == [
        *(f"light3 mark {timings.first_step + recorded + 3 + index}" for index in range(recorded)),
        "light3 mark None",
    ]


def test_few_steps_that_compile_or_wait_for_a_loader_are_no_reason_for_haste():
    compiles, waits = Program(), Program()
    for _ in range(6):
        compiles.step(2.4, compiles=True)
        waits.ledgers.wait(data_s=1.2)
        waits.step(2.4)
    for program in (compiles, waits):
        program.recorder.end()
        assert program.recorder.timings().cold


def test_a_step_of_seconds_that_a_loader_fed_from_what_it_did_in_a_pause_is_not_timed():
    program = Program()
    program.ledgers.prefetch = Prefetch(1, 2)
    program.device.paused = lambda: setattr(program, "now", program.now + 5.0)
    program.until(RecordSteps, 2.4)
    assert program.recorder.timings().before is not None
    assert program.made == 5  # two and a half of them make five seconds


def test_a_program_that_still_gets_faster_is_timed_once_it_is_warm():
    program = Program()
    for index in range(250):
        program.step(0.03 + 0.03 * 0.98**index)
    timings = program.recorder.timings()
    assert timings.before is not None
    assert timings.after is not None
    # Before, ten steps are let pass and no more, lest the program end before it is recorded.
    assert len(timings.before.step_s) == len(timings.after.step_s) == 20
    assert median(timings.before.step_s) > 0.045
    halves = timings.after.step_s[:10], timings.after.step_s[10:]
    assert median(halves[1]) > 0.9 * median(halves[0])


def test_a_program_that_never_ends_getting_faster_is_recorded_all_the_same():
    program = Program()
    program.until(TimeBefore, 0.06)
    passed = 0
    while not isinstance(program.recorder.phase, Prepare):
        program.step(0.06 * 0.95**passed)
        passed += 1
    assert passed == 30
    program.until(TimeAfter, 0.06)
    passed = 0
    while not isinstance(program.recorder.phase, Standby):
        program.step(0.06 * 0.95**passed)
        passed += 1
    assert QUEUE_PATIENCE <= passed < QUEUE_PATIENCE + 10


@pytest.mark.parametrize(
    ("seconds", "before", "after"), [(0.001, 20, 64), (0.033, 20, 64), (0.12, 20, 20), (0.5, 4, 4)]
)
def test_where_steps_wait_for_a_loader_whole_rounds_are_timed_and_more_of_them_afterwards(
    seconds: float, before: int, after: int
):
    program = Program()
    program.ledgers.prefetch = Prefetch(4, 8)
    for _ in range(250):
        program.ledgers.wait(data_s=seconds / 2, sync_s=0.0, gc_s=0.0)
        program.step(seconds)
    timings = program.recorder.timings()
    assert timings.before is not None
    assert timings.after is not None
    assert (len(timings.before.step_s), len(timings.after.step_s)) == (before, after)


def test_each_step_has_the_time_that_it_waited():
    program = Program()
    for index in range(80):
        program.ledgers.wait(data_s=0.001 * (index % 2), sync_s=0.002, gc_s=0.003)
        program.step(0.1)
    timings = program.recorder.timings()
    for steps in (timings.before, timings.after, timings.recorded):
        assert steps is not None
        assert set(steps.data_s) == {0.0, 0.001}
        assert set(steps.sync_s) == {0.002}
        assert set(steps.gc_s) == {0.003}
        assert len(steps.host_s) == len(steps.step_s) == len(steps.data_s)


def test_the_device_s_clock_counts_where_the_host_runs_ahead():
    """The host takes 1 ms per step, or 100 where its queue is full; the device takes 10 ms for each."""
    device = FakeDevice()
    program = Program(device=device)
    steps = 0
    device.clock = lambda: 0.010 * steps
    for index in range(80):
        steps = index
        program.step(0.100 if index % 10 == 9 else 0.001)
    timings = program.recorder.timings()
    assert timings.before is not None
    assert timings.after is not None
    assert timings.before.clock == timings.after.clock == "device"
    assert timings.before.step_s == timings.unprofiled_s == pytest.approx([0.010] * 20)
    assert sorted(timings.before.host_s) == pytest.approx([0.001] * 18 + [0.100] * 2)
    log = device.log
    # It is asked when all is over, once for each timing, and not waited for while steps are timed.
    assert log[log.index("full2 export trace.json") + 1 :] == ["release", "elapsed", "elapsed"]
    assert log[log.index("whole1 export trace.json") + 1 :][:2] == ["release", "full2 prepare"]


def test_a_step_without_its_mark_does_not_count():
    device = FakeDevice()
    program = Program(device=device)
    device.clock = lambda: program.now
    program.until(TimeBefore, 0.1)
    device.marks = False
    program.step(0.1)
    device.marks = True
    program.steps(80, 0.1)
    timings = program.recorder.timings()
    assert timings.before is not None
    assert (timings.before.clock, len(timings.before.step_s)) == ("device", 18)


def test_a_device_that_fails_leaves_the_host_s_times():
    class Failing(FakeDevice):
        def elapsed_s(self, marks: object) -> list[float]:
            raise RuntimeError("device-side assert")

    program = Program(device=Failing())
    program.device.clock = lambda: program.now
    program.until(Prepare, 0.1)
    program.recorder.end()
    before = program.recorder.timings().before
    assert before is not None
    assert (before.clock, len(before.step_s)) == ("host", 20)


def test_a_step_that_compiles_does_not_count():
    program = Program(Options(warmup=2))
    program.until(TimeBefore, 0.1)
    program.steps(5, 0.1)
    program.step(7.0, compiles=True)
    program.steps(80, 0.1)
    timings = program.recorder.timings()
    assert timings.unprofiled_s == pytest.approx([0.1] * 20)


def test_a_program_that_compiles_in_every_step_is_recorded_all_the_same():
    program = Program()
    program.steps(200, 0.1, compiles=True)
    timings = program.recorder.timings()
    assert len(timings.profiled_s) == 3
    assert timings.before is not None
    assert timings.unprofiled_s == pytest.approx([0.1] * len(timings.unprofiled_s))
    assert len(timings.unprofiled_s) >= 20


@pytest.mark.parametrize("acts", [0, 20])
def test_a_pause_is_foreseen_by_first_steps_of_the_same_kind_alone(acts: int):
    """An agent's first calls were recorded: its episodes, with thousands of them, pause for longer."""
    told, device = list[str](), FakeDevice()
    program = Program(device=device, tell=told.append)
    device.export = lambda session, path: setattr(program, "now", program.now + 0.2)
    for _ in range(60):
        for _ in range(acts):
            program.step(0.005, "module", 2)
        program.step(0.1)
    (said,) = [text for text in told if text.startswith("recording ") and "one more" not in text]
    assert ("this will pause the program for about 0.2 s" in said) == (acts == 0)


def test_steps_do_not_count_until_they_have_settled_again():
    program = Program()
    program.until(Prepare, 0.1)
    assert isinstance(program.recorder.phase, Prepare)
    for seconds in (0.9, 0.5, 0.3, 0.2, 0.1):
        program.step(seconds)
        assert isinstance(program.recorder.phase, Prepare)
    program.step(0.1)
    assert isinstance(program.recorder.phase, RecordSteps)
    program.steps(80, 0.1)
    assert program.recorder.timings().profiled_s == pytest.approx([0.1] * 3)


class Loaded(Program):
    """A loop that waits for its loader 30 ms of each 33, unless its queue holds batches: pauses fill it."""

    def __init__(self, queue: int, **arguments: object) -> None:
        super().__init__(**arguments)
        self.queue, self.filled = queue, 0
        self.ledgers.prefetch = Prefetch(workers=1, batches=min(queue, 35))
        self.device.paused = self.fill

    def fill(self) -> None:
        self.filled = self.queue

    def steps(self, count: int, seconds: float = 0.003, **source: object) -> None:
        for _ in range(count):
            waited = 0.0 if self.filled else 0.030
            self.filled = max(0, self.filled - 1)
            self.ledgers.wait(data_s=waited)
            self.step(seconds + waited)


@pytest.mark.parametrize("light", [False, True])
def test_a_loader_s_queue_drains_before_anything_counts(light: bool):
    program = Loaded(35, device=FakeDevice(light=light))
    program.steps(320)
    timings = program.recorder.timings()
    assert isinstance(program.recorder.phase, TimeOn)
    for steps in (timings.before, timings.recorded, timings.after):
        assert steps is not None
        assert set(steps.data_s) == {0.030}
    assert timings.notes == ()


def test_a_queue_that_does_not_drain_is_not_waited_for_for_ever_and_said_so():
    program = Loaded(2)
    program.until(TimeBefore, 0.1)
    program.queue, program.filled = 10_000, 0  # the first pause's batches are used up, the next ones' are not
    program.steps(300)
    timings = program.recorder.timings()
    assert isinstance(program.recorder.phase, Done)
    assert timings.before is not None
    assert timings.recorded is not None
    assert set(timings.before.data_s) == {0.030}
    assert set(timings.recorded.data_s) == {0.0}
    assert timings.after is None
    assert timings.notes == (
        "the loader's queue had not drained: for waits use the time without the profiler",
        "the loader's queue had not drained: the program was not timed again after the recording",
        "waits for the data loader changed while recording (30.0 → 0.0 ms per step): "
        "use the time without the profiler",
    )


@pytest.mark.parametrize(("recorded_s", "said"), [(0.010, False), (0.007, False), (0.002, True)])
def test_a_wait_for_the_loader_that_changed_is_said_where_it_matters_to_a_step(recorded_s: float, said: bool):
    program = Program()
    program.ledgers.prefetch = Prefetch(workers=1, batches=2)
    for _ in range(200):
        waited = recorded_s if isinstance(program.recorder.phase, RecordSteps) else 0.010
        program.ledgers.wait(data_s=waited)
        program.step(0.090 + waited)
    timings = program.recorder.timings()
    assert timings.recorded is not None
    assert timings.recorded.data_s[0] == pytest.approx(recorded_s)
    assert any("waits for the data loader changed" in note for note in timings.notes) == said


def test_the_batches_loaded_while_we_paused_the_program_pass_before_it_is_timed():
    program = Loaded(32)
    program.ledgers.prefetch = Prefetch(workers=4, batches=32)
    program.fill()  # as ending the provisional recording does
    program.steps(250)
    timings = program.recorder.timings()
    assert timings.before is not None
    assert set(timings.before.data_s) == {0.030}
    assert len(timings.profiled_s) == 4  # whole rounds of the workers


@pytest.mark.parametrize(("seconds", "timed"), [(0.01, 24), (0.25, 8)])
def test_a_loop_that_waits_for_bursts_of_batches_is_timed_in_whole_rounds(seconds: float, timed: int):
    program = Program()
    program.ledgers.prefetch = Prefetch(workers=8, batches=16)
    for index in range(200):
        waited = 0.0 if index % 8 else 0.8
        program.ledgers.wait(data_s=waited)
        program.step(waited + seconds)
    timings = program.recorder.timings()
    assert timings.loader_workers == 8
    for steps, count in ((timings.before, timed), (timings.recorded, 8), (timings.after, timed)):
        assert steps is not None
        assert len(steps.step_s) == count
        assert sum(steps.step_s) / count == pytest.approx(0.1 + seconds)


def test_a_light_pass_follows_the_full_one_with_as_many_steps():
    program = Program(Options(steps=4, lines=False), device=FakeDevice(light=True))
    program.steps(80, 0.1)
    timings = program.recorder.timings()
    assert timings.after is not None
    assert timings.released
    log = program.device.log
    light = log[log.index("full2 export trace.json") + 1 :]
    first = int(light[light.index("light3 start") + 1].removeprefix("light3 mark "))
    assert first > timings.first_step + 4
    assert light == [
        "light3 prepare",
        "synchronize",
        "light3 start",
        *[f"light3 mark {first + step}" for step in range(4)],
        "synchronize",
        "light3 mark None",
        "light3 stop",
        "light3 export trace.device.json",
        "release",
        "synchronize",
        "synchronize",
    ]


def recorded(seconds: float = 0.1) -> Program:
    program = Program()
    program.until(Standby, seconds)
    return program


def test_steps_that_get_twice_as_fast_are_recorded_in_the_place_of_those_before():
    program = recorded()
    program.steps(60, 0.1)
    program.steps(300, 0.01)
    timings = program.recorder.timings()
    assert timings.unprofiled_s == pytest.approx([0.01] * len(timings.unprofiled_s))
    assert timings.profiled_s == pytest.approx((0.01, 0.01, 0.01))
    assert timings.settled
    assert timings.notes == ()
    assert program.device.sessions == 3


def test_a_library_may_plan_for_some_hundred_sizes_before_steps_get_faster():
    """The second half of 384 lengths, an attention to each of which is planned for in 100 ms."""
    program = recorded()
    program.steps(192, 0.1)
    program.steps(300, 0.01)
    assert program.recorder.timings().unprofiled_s[0] == pytest.approx(0.01)


def test_who_waits_for_a_recording_is_not_held_up_by_faster_steps_that_may_come():
    program = recorded()
    program.steps(round(TIMED_ON_S / 0.1) - 2, 0.1)
    assert program.recorder.records_more
    program.steps(4, 0.1)
    assert isinstance(program.recorder.phase, Standby)
    assert not program.recorder.records_more


def test_steps_that_are_a_little_faster_are_not_recorded_again():
    program = recorded()
    program.steps(501, 0.06)
    assert isinstance(program.recorder.phase, Done)
    assert program.device.sessions == 2


@pytest.mark.parametrize("seconds", [0.1, 0.01])
def test_a_program_that_ends_before_faster_steps_are_recorded_keeps_the_others_and_their_number(
    seconds: float,
):
    program = recorded(seconds)
    before = program.recorder.timings()
    program.until(Settle, seconds / 3)
    program.step(seconds / 3)
    program.recorder.end()
    timings = program.recorder.timings()
    assert timings.profiled_s == before.profiled_s
    assert timings.passed == program.made
    assert "the program ended before those were recorded" in timings.notes[-1]


def test_one_pass_is_one_pass():
    program = Program(Options(one_pass=True, lines=False), device=FakeDevice(light=True))
    program.steps(80, 0.1)
    assert isinstance(program.recorder.phase, Standby)
    assert program.device.sessions == 2


def test_compiling_and_slow_first_steps_are_waited_out():
    program = Program()
    program.steps(3)
    for seconds in (50.0, 30.0, 9.0):
        program.step(seconds, compiles=True)
    program.steps(30)
    timings = program.recorder.timings()
    assert timings.warmup_s[:3] == (50.0, 30.0, 9.0)
    assert set(timings.unprofiled_s) == {0.125}
    assert timings.settled


def test_steps_that_never_settle_are_recorded_all_the_same_and_said_so():
    program = Program()
    for index in range(60):
        program.step(1e-3 * 1.3**index)
    timings = program.recorder.timings()
    assert len(timings.profiled_s) == 3
    assert len(timings.warmup_s) == PATIENCE
    assert not timings.settled


def test_steps_that_never_settle_are_not_waited_for_again_after_a_pause():
    program = Program()
    program.step()
    for index in range(60):
        program.step((0.01, 0.02)[index % 2])
    timings = program.recorder.timings()
    assert not timings.settled
    assert timings.first_step is not None
    assert timings.first_step <= 2 + PATIENCE + 20 + 2  # first ones, let pass, timed, let pass


def test_warmup_and_steps_are_what_the_user_says():
    program = Program(Options(warmup=20, steps=5))
    program.steps(60)
    timings = program.recorder.timings()
    assert len(timings.profiled_s) == 5
    assert timings.warmup_steps == 20 + 16 + 2  # of which two seconds are timed and two steps let pass
    assert timings.warmup_s == (0.125,)


def test_an_optimizer_takes_over_from_the_module_it_trains():
    program = Program()
    for _ in range(30):
        program.step(0.6, kind="training module", key=7)
        program.step(0.4)
    timings = program.recorder.timings()
    assert timings.found_by == "optimizer"
    assert timings.profiled_s == pytest.approx((1.0, 1.0, 1.0))


def test_a_rollout_of_any_length_before_the_first_update_is_not_taken_for_steps():
    program = Program()
    for _ in range(12):
        program.steps(500, seconds=0.001, kind="optimizer's module", key=7)
        for _ in range(4):
            program.step(0.1)
    timings = program.recorder.timings()
    assert (timings.found_by, timings.cold) == ("optimizer", False)
    assert len(timings.profiled_s) == 3


def test_a_module_in_training_counts_as_step_only_when_no_optimizer_comes():
    program = Program()
    program.steps(60, kind="training module", key=7)
    assert program.recorder.timings().found_by == "module"


def test_values_read_before_the_training_begins_are_no_first_steps():
    program = Program()
    for _ in range(6):
        program.step(0.001, kind="early loop", key=0)
    assert not any("export" in entry for entry in program.device.log)
    program.steps(3, 0.1)
    log = program.device.log
    marks = [entry for entry in log if "mark" in entry]
    assert marks == ["whole1 mark 0", "whole1 mark 1", "whole1 mark None", "whole1 mark None"]


def test_steps_are_timed_on_once_all_is_recorded_and_what_is_known_is_saved_before():
    program = recorded()
    saved = program.recorder.timings()
    assert saved.after is not None
    assert saved.later is None
    program.steps(7, 0.1)
    program.step(0.9)
    program.steps(round(STANDBY_S / 0.1), 0.1)
    assert isinstance(program.recorder.phase, Done)
    later = program.recorder.timings().later
    assert later is not None
    assert later.step_s == pytest.approx([*[0.1] * 7, 0.9, *[0.1] * (len(later.step_s) - 8)])
    assert sum(later.step_s) == pytest.approx(STANDBY_S, abs=0.2)
    assert later.first is not None
    # The last step that was timed after the recording comes right before.
    assert saved.after.first is not None
    assert later.first == saved.after.first + len(saved.after.step_s)


def test_short_steps_are_timed_on_each_and_not_more_than_so_many():
    program = recorded(0.001)
    program.steps(40, 0.001)
    program.step(0.5)
    program.steps(2 * TIMED_ON, 0.001)
    later = program.recorder.timings().later
    assert later is not None
    assert len(later.step_s) == TIMED_ON
    assert later.step_s[40] == pytest.approx(0.5)
    assert sum(later.step_s) == pytest.approx(0.001 * (TIMED_ON - 1) + 0.5)


@pytest.mark.parametrize("seconds", [0.1, 0.001])
def test_evaluations_between_later_steps_are_of_none(seconds: float):
    program = recorded(seconds)
    for step in range(60):
        if step % 6 == 5:
            program.recorder.model_called(False)
            program.now += 0.3
        program.recorder.model_called(True)
        program.step(seconds)
    later = program.recorder.timings().later
    assert later is not None
    assert later.step_s == pytest.approx([seconds] * len(later.step_s))
    assert sum(later.between_s) == pytest.approx(0.3 * 10)
    found = rounds(later.between_s)
    assert found is not None
    assert found.size == 6


@pytest.mark.parametrize(
    ("every", "took_s", "waits"),
    [(8, 0.3, True), (8, 0.05, False), (8, 3.0, False), (16, 0.3, False), (70, 0.9, False)],
)
def test_an_evaluation_that_comes_soon_and_takes_long_is_recorded(
    every: int, took_s: float, waits: bool
) -> None:
    program = Program()
    for step in range(1, 300):
        if step % every == 0:
            program.recorder.model_called(False)
            program.now += took_s
        program.recorder.model_called(True)
        program.step(0.1)
    log = program.device.log
    recorded = log[log.index("full2 start") : log.index("full2 stop")]
    assert ("full2 part evaluate" in recorded) == waits
    assert sum("mark" in entry for entry in recorded) == 3 + 1 + waits  # beginnings of steps, and an end
    assert len(program.recorder.timings().profiled_s) == 3


def test_later_steps_in_which_something_compiles_do_not_count():
    program = recorded()
    program.steps(5, 0.1)
    program.step(8.0, compiles=True)
    program.steps(5, 0.1)
    program.recorder.end()
    later = program.recorder.timings().later
    assert later is not None
    assert (later.step_s, later.first) == (pytest.approx([0.1] * 10), None)


def test_where_ranks_go_together_steps_are_timed_on_and_nothing_more_is_recorded():
    program = Program(lockstep=True)
    program.until(TimeOn, 0.1)
    assert not program.recorder.records_more
    assert not program.recorder.done
    program.steps(300, 0.04)
    assert isinstance(program.recorder.phase, Done)
    assert program.device.sessions == 2
    later = program.recorder.timings().later
    assert later is not None
    assert len(later.step_s) == round(TIMED_ON_S / 0.04)


def test_a_profiler_of_the_programs_own_ends_what_is_timed_on():
    program = recorded()
    program.steps(5, 0.1)
    program.recorder.foreign_began()
    program.steps(5, 0.9)
    program.recorder.foreign_ended()
    program.steps(5, 0.1)
    later = program.recorder.timings().later
    assert later is not None
    assert later.step_s == pytest.approx([0.1] * 5)
