"""While a program goes on, what was recorded of it is read for the report at its end."""

from __future__ import annotations

from pathlib import Path

import pytest

from kinetoscope.capture.options import Options
from kinetoscope.capture.process import launch
from kinetoscope.trace import cache
from programs import TRAIN

# Steps of 3,000 ops, until the tables are there: a trace of fewer than 5,000 events is not kept.
WAITS = f"""{TRAIN}
x, until = torch.ones(2, 2), time.monotonic() + 100
while not os.path.isfile(sys.argv[1]) and time.monotonic() < until:
    for _ in range(3000):
        x.add_(0)
    train(1, sleep_s=0.1)
"""


def test_a_recording_is_read_while_its_program_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(launch, "TIMED_ON_S", 0.0)
    monkeypatch.setattr(cache, "is_off", lambda: False)
    monkeypatch.delenv("KINETOSCOPE_CACHE", raising=False)
    out, script, read = tmp_path / "recording", tmp_path / "waits.py", tmp_path / "read"
    script.write_text(WAITS)
    begins = launch._ReadAhead.begin

    def begin(reading: launch._ReadAhead) -> bool:
        if reading.process is None:
            begins(reading)
        elif reading.process.poll() is not None:
            read.touch()  # the program may end
        return read.exists()

    monkeypatch.setattr(launch._ReadAhead, "begin", begin)
    program = launch.program([str(script), str(read)])
    outcome = launch.run(program, Options(steps=2, warmup=2), out, lambda folder: None, report=True)
    assert outcome.status == 0
    assert read.exists()
    assert cache.recall(out / "trace" / "rank0.json") is not None


def test_reading_ahead_ends_with_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(launch, "TIMED_ON_S", 0.0)
    reading = launch._ReadAhead(tmp_path / "nothing", lambda: False)
    assert not reading.begin()
    assert reading.process is None
    reading = launch._ReadAhead(tmp_path / "nothing", lambda: True)
    assert reading.begin()
    assert reading.process is not None
    reading.end()
    assert reading.process.returncode is not None
