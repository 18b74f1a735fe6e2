"""The program's own numbers of a real two-pass recording, against its manifest and the raw events of its
light pass."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from statistics import median

import pytest

from kinetoscope import numbers
from kinetoscope.document import Report
from kinetoscope.document.collect.report import build
from kinetoscope.sources.run import load
from kinetoscope.views import headline

RECORDING = Path(__file__).resolve().parents[1] / "fixtures" / "h100_everyday" / "host-bound"
# What the program printed, run plain on the same machine: the host is noisy, so within a tenth.
PLAIN_MS = 14.72


@pytest.fixture(scope="module")
def report() -> Report:
    return build(load(RECORDING))


def busy_us_of_raw_events() -> float:
    """Union of all device work of the light pass from its first marked step's work on, over its three
    steps."""
    events = json.loads(gzip.decompress((RECORDING / "trace" / "rank0.device.json.gz").read_bytes()))[
        "traceEvents"
    ]
    steps = sorted(
        (e["ts"], e["ts"] + e["dur"]) for e in events if str(e.get("name", "")).startswith("ProfilerStep#")
    )
    work = sorted(
        (e["ts"], e["ts"] + e["dur"])
        for e in events
        if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")
    )
    total, reached = 0.0, steps[0][0]
    for start, end in work:
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total / len(steps)


def test_the_step_is_that_of_the_steps_before_the_recording(report: Report) -> None:
    steps = json.loads((RECORDING / "manifest.json").read_text())["ranks"][0]["steps"]
    own = report.as_it_runs
    assert own is not None
    assert own.step_us.median == pytest.approx(1e6 * median(steps["before"]["step_s"]))
    assert own.step_us.median == pytest.approx(1e3 * PLAIN_MS, rel=0.1)
    assert own.after_us == pytest.approx(1e6 * median(steps["after"]["step_s"]))


def test_busy_is_the_light_pass_over_that_step(report: Report) -> None:
    own = report.as_it_runs
    assert own is not None
    assert own.busy_fraction == pytest.approx(busy_us_of_raw_events() / own.step_us.median, rel=0.01)
    # The profiled program was busy for half of that share.
    assert report.devices[0].busy_fraction < 0.6 * own.busy_fraction
    assert "100% of its kernels matched" in own.basis


def test_the_headline_is_about_the_program(report: Report) -> None:
    text = headline.headline(report)
    assert text.startswith("As it runs, a step takes 15.6")
    assert "15.0" in text


def test_the_recorded_step_is_one_figure_wherever_it_stands(report: Report) -> None:
    own = report.as_it_runs
    assert own is not None
    assert own.recorded_step_us == pytest.approx(median(step.duration_us for step in report.steps))
    assert own.recorded_step_us == pytest.approx(report.step_times[0].duration_median_us)
    (note,) = [note for note in report.health.notes if note.code == "profiling-inflation"]
    assert f"a step took {numbers.time(own.recorded_step_us)} with" in note.text
