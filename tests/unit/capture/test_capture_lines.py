"""The lines of the program that call each op: the phase that notes them, and the trace function."""

from __future__ import annotations

import sys
import textwrap
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from fake_program import FakeDevice, Program
from kinetoscope.capture.options import Options
from kinetoscope.capture.recorder import lines as lines_module
from kinetoscope.capture.recorder.lines import Lines, hindrance
from kinetoscope.capture.recorder.phases import Done, NoteLines


@pytest.mark.parametrize("light", [False, True])
def test_lines_are_noted_in_one_step_after_those_of_host_and_device(light: bool):
    program = Program(Options(), device=FakeDevice(light=light))
    program.steps(400, 0.1)
    assert isinstance(program.recorder.phase, Done)
    log = program.device.log
    name = "lines3"
    assert [line.split()[1] for line in log if line.startswith(name)] == [
        "prepare", "start", "mark", "mark", "stop", "export",
    ]  # fmt: skip
    full = [at for at, line in enumerate(log) if line.endswith("trace.json")]
    alone = [at for at, line in enumerate(log) if line.startswith("light4 prepare")]
    assert full < [log.index(f"{name} prepare")] < (alone or [len(log)])
    assert bool(alone) == light
    assert f"{name} export trace.lines.json" in log
    assert program.recorder.timings().notes == ()
    assert program.recorder.timings().after is not None


def test_where_the_trace_function_would_be_noticed_the_step_passes_without_it_and_a_note_says_so():
    device = FakeDevice()
    device.hindrance = "the program is traced"
    program = Program(Options(), device=device)
    program.steps(90, 0.1)
    assert not any(line.startswith("lines") for line in device.log)
    assert program.recorder.timings().notes == (
        "the lines of the program that call each op were not recorded: the program is traced",
    )


def test_a_program_that_ends_in_that_step_has_its_recording():
    program = Program(Options())
    program.until(NoteLines, 0.1)
    program.recorder.end()
    timings = program.recorder.timings()
    assert len(timings.profiled_s) == 3
    assert program.device.log[-1].endswith("stop")


def test_a_disk_that_does_not_take_them_costs_the_lines_alone():
    program = Program(Options())
    program.until(NoteLines, 0.1)

    def full(session: object, path: Path) -> None:
        raise OSError(28, "No space left on device")

    program.device.export = full
    program.steps(60, 0.1)
    timings = program.recorder.timings()
    assert timings.after is not None
    assert "No space left on device" in timings.notes[0]


def test_a_debugger_or_coverage_keeps_its_trace_function():
    before = sys.gettrace()
    try:
        sys.settrace(lambda frame, event, argument: None)
        assert "traced already" in (hindrance() or "")
    finally:
        sys.settrace(before)


PROGRAM = """
    def inner(lines):
        seen = 1
        return seen

    class Block:
        def forward(self):
            value = inner(None)
            return value

    def step():
        begin(sys._getframe())
        total = 1
        total += Block().forward()
        last = sorted([3, 1], key=lambda one: one)
        end()
"""


def test_each_line_lasts_until_the_next_and_modules_lie_around_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    if sys.gettrace() is not None:
        pytest.skip("the tests are traced")
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "program.py"
    file.write_text(textwrap.dedent(PROGRAM))
    lines = Lines()
    names = {"sys": sys, "begin": lines.start, "end": lines.stop}
    exec(compile(file.read_text(), str(file), "exec"), names)
    names["step"]()  # type: ignore[operator]
    assert sys.gettrace() is None
    events = lines.events()
    own = [(event.part or "") for event in events if not (event.part or "").startswith("nn.Module")]
    qualified = sys.version_info >= (3, 11)
    forward = "Block.forward" if qualified else "forward"
    # Going back into a function goes on with the line that called.
    assert list(dict.fromkeys(own)) == [
        "program.py(13): step",
        "program.py(14): step",
        f"program.py(8): {forward}",
        "program.py(3): inner",
        "program.py(4): inner",
        f"program.py(9): {forward}",
        "program.py(15): step",
        "program.py(15): step.<lambda>" if qualified else "program.py(15): <lambda>",
        "program.py(16): step",
    ]
    flat = [event for event in events if not (event.part or "").startswith("nn.Module")]
    assert all(one.ended_ns <= other.began_ns for one, other in pairwise(flat))
    (module,) = [event for event in events if (event.part or "").startswith("nn.Module")]
    assert module.part == ("nn.Module: Block" if qualified else "nn.Module: forward")
    inside = [event for event in flat if module.began_ns <= event.began_ns < module.ended_ns]
    assert {
        event.part for event in flat if "forward" in (event.part or "") or "inner" in (event.part or "")
    } <= {event.part for event in inside}


OF_LOCALS = """
    def logged(step, loss):
        text = ""
        for name, value in locals().items():
            text += name
        return text

    def step():
        begin(sys._getframe())
        said = logged(1, 2)
        end()
        return said
"""


@pytest.mark.parametrize("renews", [lines_module.RENEWS_LOCALS, True])
def test_a_function_that_goes_through_its_variables_does_so_while_lines_are_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renews: bool
):
    """Python 3.10 would end the loop with an error, where the function's lines are noted as well."""
    if sys.gettrace() is not None:
        pytest.skip("the tests are traced")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(lines_module, "RENEWS_LOCALS", renews)
    file = tmp_path / "program.py"
    file.write_text(textwrap.dedent(OF_LOCALS))
    lines = Lines()
    names: dict[str, Any] = {"sys": sys, "begin": lines.start, "end": lines.stop}
    exec(compile(file.read_text(), str(file), "exec"), names)
    assert names["step"]() == "steplosstext"
    noted = {event.part or "" for event in lines.events()}
    assert any(part.endswith(": step") for part in noted)
    assert any(part.endswith(": logged") for part in noted) != renews
