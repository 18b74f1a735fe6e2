"""Phases, as the renderers show them."""

from __future__ import annotations

import io

import msgspec
from rich.console import Console

import report_sample
from kinetoscope import numbers
from kinetoscope.document import PhaseKernel, PhaseRow, Report
from kinetoscope.render import markdown
from kinetoscope.views import headline, overview
from kinetoscope.views.page import render as render_html
from page_data import page_data, words


def phase(name: str, **changes: object) -> PhaseRow:
    row = PhaseRow(
        rank=0,
        phase=name,
        of="step",
        count=2,
        per_step=1.0,
        median_us=406_000.0,
        p10_us=400_000.0,
        p90_us=410_000.0,
        total_us=812_000.0,
        busy_us=203_000.0,
        launches=1_000.0,
        device_time_us=250_000.0,
        kernels=[PhaseKernel(name="flash_fwd", device_time_us=100.0, launches=2)],
    )
    return msgspec.structs.replace(row, **changes)


def requests() -> Report:
    whole = report_sample.report()
    steps = [msgspec.structs.replace(row, phase="request") for row in whole.steps]
    prefill = phase("prefill", of="request", median_us=8_100.0)
    decode = phase("decode", of="request", count=126, per_step=63.0, median_us=6_300.0)
    return msgspec.structs.replace(whole, steps=steps, phases=[phase("request"), prefill, decode])


def terminal(report: Report) -> str:
    console = Console(file=io.StringIO(), width=120)
    overview.show(report, ["trace.json"], console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_request_is_said_with_its_parts() -> None:
    assert headline.window(requests()) == (
        "3 requests (10.0 ms each: 1 prefill of 8.10 ms and 63 decode steps of 6.30 ms)"
    )


def test_each_phase_has_its_own_times() -> None:
    whole = report_sample.report()
    first, *others = whole.steps
    steps = [msgspec.structs.replace(first, phase="evaluate", duration_us=90_000.0)]
    steps += [msgspec.structs.replace(row, phase="train") for row in others]
    made = msgspec.structs.replace(whole, steps=steps, phases=[phase("train"), phase("evaluate", count=1)])
    assert headline.window(made) == "3 steps: 2 train (10.0 ms each) and 1 evaluate (90.0 ms)"


def test_all_renderers_show_the_table_where_there_are_several() -> None:
    for text in (
        terminal(requests()),
        markdown.render(overview.blocks(requests(), ["t"], "file")),
        words(render_html(requests(), ["t"])),
    ):
        assert "phases" in text.lower()
        assert "flash" in text
        for row in requests().phases:
            assert row.phase in text
            assert numbers.time(row.median_us) in text


def test_one_phase_needs_no_table() -> None:
    whole = msgspec.structs.replace(report_sample.report(), phases=[phase("train")])
    for text in (terminal(whole), markdown.render(overview.blocks(whole, ["t"], "file"))):
        assert "Phases" not in text
    assert "Phases" not in str(page_data(render_html(whole, ["t"])).sentences["blocks"]["overview"])
