"""What a finding shows, and which line of the program it names."""

from __future__ import annotations

import polars as pl
import pytest

import traces
from kinetoscope.findings import evidence
from kinetoscope.findings.rank_view import RankView
from kinetoscope.sources.run import LoadedRun


def view(*events: traces.Event) -> RankView:
    trace = traces.trace(*events)
    return RankView(LoadedRun((trace,)), trace)


@pytest.mark.parametrize(
    ("frame", "line"),
    [
        ("train.py(12): step", "train.py:12"),
        ("/home/me/train.py(12): step", "/home/me/train.py:12"),
        ("torch/nn/modules/module.py(1775): _wrapped_call_impl", None),
        ("/usr/lib/python3.12/contextlib.py(12): inner", None),
        ("/venv/lib/python3.11/site-packages/lightning/loop.py(3): run", None),
        ("<built-in method item of Tensor object at 0x7f>", None),
        ("<frozen importlib._bootstrap>(488): f", None),
    ],
)
def test_only_the_programs_own_lines_are_sources(frame: str, line: str | None) -> None:
    assert evidence.user_line(frame) == line


def test_a_source_is_the_nearest_line_of_the_program_around_an_op() -> None:
    shown = view(
        traces.host("train.py(3): main", 0, 100, "python_function"),
        traces.host("train.py(9): step", 5, 80, "python_function"),
        traces.host("torch/nn/modules/module.py(1): _call_impl", 10, 60, "python_function"),
        traces.host("aten::mm", 20, 10),
    )
    host = shown.trace.host_events
    assert evidence.source(shown, host.filter(pl.col("name") == "aten::mm")["id"]) == "train.py:9"
    assert evidence.source(shown, host["id"].clear()) is None


def test_a_place_is_named_as_far_as_it_is_known() -> None:
    assert evidence.at_line("a.py", 3) == "a.py:3"
    assert evidence.at_line("a.py", None) == "a.py"
    assert evidence.at_line(None, 3) is None


def test_evidence_spans_its_events_and_lists_the_first_of_them() -> None:
    shown = view(*(traces.kernel("k", 10 * number, 4) for number in range(20)))
    seen = evidence.of(shown, "all", shown.work)
    assert (seen.start_us, seen.end_us, seen.events) == (0, 194, tuple(range(12)))
    start, end = shown.bounds
    nothing = evidence.of(shown, "none", shown.work.clear())
    assert (nothing.start_us, nothing.end_us, nothing.events) == (start / 1000, end / 1000, ())


def test_gaps_say_how_long_and_why_the_device_idled() -> None:
    shown = view(
        traces.call("cudaLaunchKernel", 0, 2, 1),
        traces.kernel("k", 5, 5, 1),
        traces.call("cudaLaunchKernel", 40, 2, 2),
        traces.kernel("k", 45, 5, 2),
    )
    longest = shown.gaps.sort("idle_ns", descending=True).head(1)
    (seen,) = evidence.of_gaps(shown, longest)
    assert seen.text == f"idle {longest['idle_ns'][0] / 1000:.1f} µs: {longest['text'][0]}"
    assert seen.end_us - seen.start_us == longest["idle_ns"][0] / 1000
    assert evidence.of_gaps(shown, shown.gaps.clear()) == []
