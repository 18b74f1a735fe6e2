"""Steps, launches and memory in the report: the rows are the analyses' own, the sentences are the rows'."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import pytest

from kinetoscope import document
from kinetoscope.document.collect.report import build
from kinetoscope.render import markdown, terminal
from kinetoscope.sources.run import LoadedRun, load
from kinetoscope.views import overview, steps
from kinetoscope.views import page as html
from page_data import words
from report_sample import HOSTILE, report
from traces import event


def trained(trace_of: Any) -> LoadedRun:
    """Five steps of one launch each; the third waits. Memory comes and goes with each."""
    events: list[dict[str, Any]] = []
    at = 0.0
    for number, length in enumerate((100, 100, 2_200, 100, 100)):
        events += [
            event("user_annotation", f"ProfilerStep#{number}", at, length),
            event("cpu_op", "aten::mm", at + 10, 10),
            event("cuda_runtime", "cudaLaunchKernel", at + 12, 3, correlation=number + 1),
            event("kernel", "k", at + 20, 10, tid=7, device=0, stream=7, correlation=number + 1),
        ]
        if length > 100:
            events += [event("cuda_runtime", "cudaMalloc", at + 40, 2_000)]
        for offset, change, total in ((5, 1_000, 1_000 * (number + 1)), (50, -500, 1_000 * number + 500)):
            memory = event("cpu_instant_event", "[memory]", at + offset, 0)
            memory |= {"ph": "i", "s": "t"}
            memory["args"] = {
                "Device Type": 1, "Device Id": 0, "Addr": 1, "Bytes": change,
                "Total Allocated": total, "Total Reserved": 4096,
            }  # fmt: skip
            events.append(memory)
        at += length
    return LoadedRun((trace_of(*events),))


def test_rows_of_a_small_run(trace_of: Any) -> None:
    made = build(trained(trace_of))
    (times,) = made.step_times
    assert (times.steps, times.duration_median_us, times.duration_max_us) == (5, 100, 2_200)
    (outlier,) = made.step_outliers
    assert (outlier.name, outlier.median_us) == ("ProfilerStep#2", 100)
    assert outlier.differences[0].extra_us == pytest.approx(2_000, rel=0.02)
    (launches,) = made.launching
    assert (launches.launches, launches.launches_per_step, launches.latency_median_us) == (5, 1, 8)
    assert (launches.depth_max, launches.on_idle_device) == (1, 5)
    assert sum(point.launches for point in launches.queue) == 5
    (memory,) = made.memory
    assert (memory.peak_allocated_bytes, memory.peak_reserved_bytes) == (5_000, 4_096)
    assert (memory.allocations, memory.releases, memory.turned_over_bytes) == (5, 5, 5_000)
    assert max(point.allocated_bytes for point in memory.over_time) == 5_000
    (malloc,) = made.allocator
    assert (malloc.name, malloc.calls_in_window, malloc.host_us_in_window) == ("cudaMalloc", 1, 2_000)
    about = [what for what, _ in steps.pace_lines(made)]
    assert about == ["steps", "outlier", "launches", "memory", "allocator"]


def test_every_renderer_says_it(trace_of: Any) -> None:
    made = build(trained(trace_of))
    pages = (
        terminal.text(overview.blocks(made, ["x"], "whole")),
        markdown.render(overview.blocks(made, ["x"], "file")),
        words(html.render(made, ["x"])),
    )
    for page in pages:
        shown = " ".join(page.replace("\N{NO-BREAK SPACE}", " ").split())
        assert "ProfilerStep" in shown
        assert "took 2.20 ms, 22.0 × the median" in shown
        assert "peak 5.00 kB of 4.10 kB reserved" in shown


def test_a_real_run_against_its_raw_events(shared_data: Path) -> None:
    """Counted in the file itself: launches of the steps, the largest total that the allocator wrote."""
    path = shared_data / "h200" / "llama_train_eager.json.gz"
    import gzip

    events = msgspec.json.decode(gzip.decompress(path.read_bytes()))["traceEvents"]
    memory = [e["args"] for e in events if e.get("name") == "[memory]" and e["args"]["Device Type"] == 1]
    made = build(load(path))
    (row,) = made.memory
    assert row.peak_allocated_bytes == max(args["Total Allocated"] for args in memory)
    assert row.allocations == sum(args["Bytes"] > 0 for args in memory)
    (times,) = made.step_times
    steps = [e["dur"] for e in events if e.get("cat") == "user_annotation" and "ProfilerStep" in e["name"]]
    assert [step.host_duration_us for step in made.steps] == pytest.approx(steps)
    # The device is busy: its steps are its own, and as long as the host's but for what it lags behind.
    assert times.duration_median_us == pytest.approx(median(steps), rel=0.01)
    (launches,) = made.launching
    calls = {
        e["args"]["correlation"]: e["ts"]
        for e in events
        if e.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in e["args"]
    }
    late = [
        e["ts"] - calls[e["args"]["correlation"]]
        for e in events
        if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset") and e["args"]["correlation"] in calls
    ]
    assert launches.launches == len(late)
    assert launches.latency_median_us == pytest.approx(median(late), abs=0.002)  # double floats of µs


def test_names_from_strangers_stay_text() -> None:
    for name in HOSTILE:
        part = document.StepDifference(kind="op", name=name, extra_us=6.0, count=1)
        outlier = document.StepOutlierRow(
            rank=0, name=name, duration_us=9.0, median_us=3.0, differences=[part]
        )
        page = html.render(msgspec.structs.replace(report(), step_outliers=[outlier]), ["x"])
        assert "<script>window.hacked" not in page
        assert "<img src=x" not in page
