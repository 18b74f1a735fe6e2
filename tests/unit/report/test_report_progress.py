import io
from pathlib import Path

import pytest

from kinetoscope.progress import ReadingProgress


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def read(stream, seconds):
    clock = Clock()
    with ReadingProgress(stream, clock) as progress:
        for done in range(0, 101, 10):
            clock.now = seconds * done / 100
            progress(Path("runs/trace\x1b[31m.json"), done * 1_000_000, 100_000_000)
    return stream.getvalue()


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_a_quick_reading_is_silent(stream):
    assert read(stream(), 0.9) == ""


def test_a_terminal_sees_how_far_it_is():
    shown = read(Terminal(), 10.0)
    lines = shown.split("\r\x1b[K")
    assert "reading trace[31m.json  50.0 %" in lines
    assert lines[-1] == ""  # nothing stays behind


def test_a_log_hears_nothing_of_the_reading():
    assert read(io.StringIO(), 10.0) == ""


def test_a_failure_clears_the_line_as_well():
    stream = Terminal()
    with pytest.raises(ValueError, match="broken"):
        break_while_reading(stream, Clock())
    assert "reading x" in stream.getvalue()
    assert stream.getvalue().endswith("\r\x1b[K")


def break_while_reading(stream, clock):
    with ReadingProgress(stream, clock) as progress:
        clock.now = 2.0
        progress(Path("x"), 1, 2)
        raise ValueError("broken")
