"""The recorder where programs are short, end, fail, profile themselves, or have several ranks."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest

from fake_program import FakeDevice, FakeSession, Program
from kinetoscope.capture.options import Options
from kinetoscope.capture.recorder.phases import (
    Done,
    Prepare,
    RecordSteps,
    Recover,
    Settle,
    TimeAfter,
    TimeBefore,
)
from kinetoscope.capture.steps.start import StartAgreement
from kinetoscope.recording.manifest import TimedSteps


@pytest.mark.parametrize("count", [1, 4, 7])
def test_a_program_too_short_to_settle_has_its_first_steps_recorded(count: int):
    program = Program()
    program.steps(count)
    program.recorder.end()
    timings = program.recorder.timings()
    assert "whole1 export trace.json" in program.device.log
    assert timings.profiled_s == ()
    assert timings.cold
    assert timings.notes
    assert program.finished == 1


def test_first_steps_are_not_said_to_be_none():
    program = Program()
    program.steps(4)
    program.recorder.end()
    assert "holds its first steps" in program.recorder.timings().notes[0]


def test_first_steps_of_another_kind_are_no_part_of_the_steps_that_were_timed_later():
    program = Program()
    program.steps(4, seconds=0.01, kind="module", key=7)  # the towers of a step that is recorded too late
    assert "whole1 export trace.json" in program.device.log
    program.until(TimeBefore)
    program.steps(2)
    program.recorder.end()
    timings = program.recorder.timings()
    assert (timings.found_by, timings.before, timings.unprofiled_s, timings.levels) == (
        "module",
        None,
        (),
        (),
    )
    assert timings.notes[0] == (
        "a step is one AdamW.step() of 0.125 s, and none was recorded: what is recorded are calls of AdamW"
    )


def test_a_program_without_steps_is_recorded_whole_and_told_so():
    program = Program()
    program.recorder.end()
    assert program.device.log == [
        "whole1 prepare",
        "whole1 start",
        "whole1 mark None",
        "whole1 stop",
        "whole1 export trace.json",
    ]
    assert "no steps were found" in program.recorder.timings().notes[0]
    assert program.recorder.timings().found_by == "whole"


def test_a_program_that_ends_while_it_is_recorded_keeps_its_whole_steps():
    program = Program()
    program.until(RecordSteps)
    program.steps(1)
    program.recorder.end()
    timings = program.recorder.timings()
    assert timings.profiled_s == (0.125,)
    assert program.device.log[-1] == "full2 export trace.json"


@pytest.mark.parametrize("timed", [0, 1, 2])
def test_a_program_that_ends_while_it_is_timed_keeps_what_was_timed(timed: int):
    program = Program()
    program.until(TimeBefore)
    program.steps(timed)
    program.recorder.end()
    timings = program.recorder.timings()
    ones, none = (0.125,) * timed, (0.0,) * timed
    first = program.made - timed - 1
    expected = TimedSteps(step_s=ones, host_s=ones, data_s=none, sync_s=none, gc_s=none, first=first)
    assert timings.before == (expected if timed else None)
    assert timings.cold
    assert [line for line in program.device.log if "export" in line] == ["whole1 export trace.json"]


@pytest.mark.parametrize(
    ("seconds", "timed"),
    [
        ((0.15, 0.1), ()),
        ((0.1, 0.15, 0.12), (0.1, 0.15, 0.12)),
        ((0.19, 0.17, 0.14, 0.11, 0.08, 0.06), (0.11, 0.08, 0.06)),  # still getting faster
    ],
)
def test_of_a_program_that_ends_before_its_steps_have_settled_these_are_what_was_timed(
    seconds: tuple[float, ...], timed: tuple[float, ...]
):
    program = Program()
    program.until(Settle)
    program.step(9.0, compiles=True)
    for each in seconds:
        program.step(each)
    assert isinstance(program.recorder.phase, Settle)
    program.recorder.end()
    timings = program.recorder.timings()
    assert (timings.before.step_s if timings.before else ()) == pytest.approx(timed)
    assert timings.cold


@pytest.mark.parametrize(
    ("light_steps", "last"),
    [
        (None, "light3 stop"),  # while the pass is prepared
        (0, "light3 stop"),
        (1, "light3 stop"),
        (2, "light3 export trace.device.json"),
    ],
)
def test_a_program_that_ends_in_the_light_pass_keeps_the_full_one(light_steps: int | None, last: str):
    program = Program(device=FakeDevice(light=True))
    program.until(RecordSteps)
    program.until(Prepare)
    if light_steps is not None:
        program.until(RecordSteps)
        program.steps(light_steps)
    program.recorder.end()
    timings = program.recorder.timings()
    assert "full2 export trace.json" in program.device.log
    assert program.device.log[-1] == last
    assert len(timings.profiled_s) == 3
    assert timings.after is None
    assert not timings.cold
    assert not program.ledgers.installed
    assert program.finished == 1


@pytest.mark.parametrize(
    ("phase", "steps", "timed"), [(Recover, 0, 0), (Recover, 1, 0), (TimeAfter, 0, 0), (TimeAfter, 2, 2)]
)
def test_a_program_that_ends_after_the_recording_keeps_it(phase: type, steps: int, timed: int):
    program = Program()
    program.until(RecordSteps)
    program.until(phase)
    program.steps(steps)
    program.recorder.end()
    timings = program.recorder.timings()
    assert timings.profiled_s == (0.125, 0.125, 0.125)
    assert len(timings.after.step_s if timings.after else ()) == timed
    assert timings.notes == ()


def test_the_program_s_own_profiler_after_the_recording_ends_what_is_ours():
    program = Program(device=FakeDevice(light=True))
    program.until(RecordSteps)
    program.until(Prepare)
    program.recorder.foreign_began()
    assert program.device.log[-2:] == ["light3 start", "light3 stop"]
    assert isinstance(program.recorder.phase, Done)
    assert len(program.recorder.timings().profiled_s) == 3


def test_a_call_that_is_running_when_the_program_ends_is_a_step():
    program = Program()
    program.until(RecordSteps, kind="module")
    program.now += 0.25
    program.recorder.end()
    assert program.recorder.timings().profiled_s == (0.25,)


def test_a_program_that_ends_before_the_first_recorded_step_falls_back_on_its_first_steps():
    program = Program()
    program.until(Prepare)
    program.recorder.end()
    assert program.device.log[-2:] == ["full2 start", "full2 stop"]
    assert [line for line in program.device.log if "export" in line] == ["whole1 export trace.json"]
    assert program.recorder.timings().cold


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
    assert timings.unprofiled_s == (2.0,)
    assert timings.after is not None
    assert timings.after.step_s == (2.0, 2.0, 2.0)


def test_what_follows_a_range_is_no_step():
    program = Program(Options(range="hot", steps=5))
    while not isinstance(program.recorder.phase, RecordSteps):
        program.step(5.0, kind="range", key=1)
        program.step(2.0, kind="range end", key=1)
    program.now += 9.0
    program.recorder.end()
    assert program.recorder.timings().profiled_s == (2.0,)


def test_the_program_s_own_profiler_ends_ours_and_is_waited_for():
    program = Program()
    program.until(Prepare)
    program.recorder.foreign_began()
    before = list(program.device.log)
    assert before[-2:] == ["full2 start", "full2 stop"]
    program.steps(20)
    assert program.device.log == before
    program.recorder.foreign_ended()
    program.steps(30)
    assert len(program.recorder.timings().profiled_s) == 3


def test_the_provisional_recording_ends_with_its_budget():
    program = Program()
    program.recorder.budget_spent("spent")
    assert program.device.log[-1] == "whole1 export trace.json"
    program.recorder.end()
    assert program.device.log[-1] == "whole1 export trace.json"
    assert "only the program's beginning is recorded, until spent" in program.recorder.timings().notes


def test_a_budget_that_was_spent_is_no_matter_once_steps_are_recorded():
    program = Program()
    program.recorder.budget_spent("spent")
    program.steps(100)
    assert program.recorder.timings().notes == ()
    assert program.recorder.measured.recorded


def test_a_failure_of_ours_stops_the_recording_and_not_the_program():
    program = Program()
    program.steps(3)

    def fail() -> None:
        raise RuntimeError("no such device")

    program.device.synchronize = fail
    program.steps(30)
    assert isinstance(program.recorder.phase, Done)
    assert program.recorder.timings().notes[0] == "recording stopped: RuntimeError: no such device"
    assert program.finished == 1


def test_the_first_steps_are_on_disk_as_soon_as_they_are_over():
    known: list[TimedSteps | None] = []
    program = Program()
    program.recorder.provisional.saved = lambda: known.append(program.recorder.timings().before)
    program.steps(4)
    assert program.device.log[-2:] == ["whole1 stop", "whole1 export trace.json"] or known == [None]
    timings = program.recorder.timings()
    assert (timings.cold, timings.found_by, timings.first_step) == (True, "optimizer", 0)
    assert "holds its first steps" in timings.notes[0]
    program.steps(80)
    timings = program.recorder.timings()
    assert not timings.cold
    assert timings.notes == ()


def full_disk(device: FakeDevice, *names: str) -> None:
    """The exports of the sessions of these names fail."""

    def export(session: FakeSession, path: Path) -> None:
        session.log.append(f"{session.name} export {path}")
        if session.name in names:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))

    device.export = export


def test_first_steps_that_cannot_be_written_leave_the_rest_as_it_is():
    program = Program()
    full_disk(program.device, "whole1")
    program.steps(400)
    timings = program.recorder.timings()
    assert (timings.cold, len(timings.profiled_s)) == (False, 3)
    assert timings.notes == ("the first steps could not be written: No space left on device",)
    assert program.finished == 1


def test_where_recorded_steps_cannot_be_written_the_first_ones_are_the_recording():
    program = Program()
    full_disk(program.device, "full2")
    program.steps(80)
    timings = program.recorder.timings()
    assert (timings.cold, timings.profiled_s, timings.recorded) == (True, (), None)
    assert timings.notes[0] == "the recorded steps could not be written: No space left on device"
    assert isinstance(program.recorder.phase, Done)


def test_a_light_pass_that_cannot_be_written_costs_nothing_else():
    program = Program(device=FakeDevice(light=True))
    full_disk(program.device, "light3")
    program.steps(80)
    timings = program.recorder.timings()
    assert (timings.cold, len(timings.profiled_s)) == (False, 3)
    assert timings.after is not None
    assert timings.notes == ("the pass of the device alone could not be written: No space left on device",)


def test_ranks_start_at_the_step_rank_0_names(tmp_path: Path):
    (tmp_path / "ranks").mkdir()
    first = Program(start_agreed=StartAgreement(tmp_path, leads=True), lockstep=True)
    second = Program(start_agreed=StartAgreement(tmp_path, leads=False), lockstep=True)
    for index in range(60):
        first.step(0.001 if index < 20 else 1.0)
        second.step(
            2.0**index if index < 10 else 0.0001
        )  # its own clock would have it wait, then take more steps
    a, b = first.recorder.timings(), second.recorder.timings()
    assert a.first_step == b.first_step
    assert len(a.profiled_s) == len(b.profiled_s) == 3
    assert a.before is not None
    assert b.before is not None
    assert len(a.before.step_s) == len(b.before.step_s) == 20
    assert (tmp_path / "ranks" / "start").read_text().split()[1] == "20"


def test_ranks_stay_together_where_one_compiles_and_waits(tmp_path: Path):
    (tmp_path / "ranks").mkdir()
    ranks = [
        Program(
            device=FakeDevice(light=True),
            start_agreed=StartAgreement(tmp_path, leads=rank == 0),
            lockstep=True,
        )
        for rank in range(2)
    ]
    for index in range(80):
        ranks[0].step(0.5)
        ranks[1].ledgers.wait(data_s=0.4 if index < 30 else 0.0)
        before = isinstance(ranks[1].recorder.phase, TimeBefore) and not ranks[1].compiled
        ranks[1].step(0.5, compiles=before)
    marks = [[line for line in rank.device.log if "mark" in line] for rank in ranks]
    assert marks[0] == marks[1]
    a, b = (rank.recorder.timings() for rank in ranks)
    assert a.before is not None
    assert b.before is not None
    assert (len(a.before.step_s), len(b.before.step_s)) == (4, 3)  # the one that compiled does not count
    assert all(isinstance(rank.recorder.phase, Done) for rank in ranks)


def test_parts_of_a_request_are_marked_where_steps_are_recorded():
    program = Program()

    def request() -> None:
        program.step(0.1, kind="request")
        for part in ("prefill", "decode"):
            program.recorder.part(part)

    for _ in range(80):
        request()
    log = program.device.log
    parts = ["part prefill", "part decode"]
    assert log[log.index("whole1 start") + 1 : log.index("whole1 stop") + 1] == [
        f"whole1 {what}" for what in ("mark 0", *parts, "mark 1", *parts, "mark None", "mark None", "stop")
    ]
    first = program.recorder.timings().first_step
    assert first is not None
    begin = log.index(f"full2 mark {first}")
    assert log[begin : begin + 4] == [
        f"full2 {what}" for what in (f"mark {first}", *parts, f"mark {first + 1}")
    ]


def test_parts_in_other_threads_are_not_the_step_s():
    program = Program()
    program.step(0.1, kind="request")
    thread = threading.Thread(target=program.recorder.part, args=("decode",))
    thread.start()
    thread.join()
    assert "whole1 part decode" not in program.device.log


def test_requests_that_generate_in_other_threads_are_said_to_be_missing():
    """A streamed answer is generated in a thread of its own, whose ops a session of one thread has not."""
    program = Program()
    program.until(RecordSteps, 0.1, kind="request")
    program.recorder.part("decode")
    assert not any("other threads" in note for note in program.recorder.timings().notes)
    for _ in range(2):
        thread = threading.Thread(target=program.recorder.part, args=("decode",))
        thread.start()
        thread.join()
    assert sum("other threads" in note for note in program.recorder.timings().notes) == 1


def test_one_request_is_a_step_and_a_long_one_has_a_budget():
    program = Program()
    program.step(0.1, kind="request")
    program.recorder.part("prefill")
    program.recorder.budget_spent("spent")
    assert "whole1 stop" in program.device.log
    program.recorder.end()
    timings = program.recorder.timings()
    assert timings.found_by == "request"
    assert not any("no steps were found" in note for note in timings.notes)


def test_a_recording_that_another_thread_has_to_end_is_given_up_when_that_calls_again():
    device = FakeDevice()
    program = Program(device=device)
    program.until(RecordSteps, 0.1, kind="module")
    device.ends_here = False
    program.now += 60.0
    program.recorder._in_main_thread()  # which looks for a leader that has fallen silent
    assert isinstance(program.recorder.phase, RecordSteps)
    device.ends_here = True
    program.step(0.1, kind="module")
    assert not isinstance(program.recorder.phase, RecordSteps)
    assert any("was not called for long" in note for note in program.recorder.timings().notes)
    device.ends_here = False
    program.until(RecordSteps, 0.1, kind="module")
    device.ends_here = True
    program.now += 60.0
    program.recorder._in_main_thread()
    assert not isinstance(program.recorder.phase, RecordSteps)
