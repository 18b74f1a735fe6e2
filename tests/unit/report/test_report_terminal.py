import io

import msgspec
import pytest
from rich.console import Console

from kinetoscope import numbers
from kinetoscope.report.document import Health, HealthNote
from kinetoscope.report.pages import text
from kinetoscope.report.pages.terminal import print_report
from kinetoscope.report.words import names
from report_sample import HOSTILE, device, host_only, hostile, kernel, report


def shown(document, inputs=("trace.json.gz",), **options):
    page = io.StringIO()
    settings = {"file": page, "width": 100, "highlight": False, "markup": False, "emoji": False} | options
    print_report(document, inputs, Console(**settings))
    return page.getvalue()


def commands(page):
    return [line for line in page.splitlines() if " kinetoscope " in line]


@pytest.mark.parametrize("width", [60, 80, 100])
@pytest.mark.parametrize("document", [report(), host_only(), hostile()], ids=["gpu", "host", "hostile"])
def test_everything_but_commands_to_copy_fits(document, width):
    page = shown(document, width=width)
    assert [line for line in page.splitlines() if len(line) > width and line not in commands(page)] == []


def test_a_screenful():
    many = report(
        kernels=[kernel(f"triton_poi_fused_{number}") for number in range(300)],
        steps=report().steps * 40,
        categories=report().categories * 10,
        findings=report().findings * 9,
    )
    page = shown(many)
    assert len(page.splitlines()) <= 60
    assert "… and 290 kernels more" in page
    assert "… and 114 steps more" in page


def test_the_verdict_comes_first_and_its_notes_when_it_is_not_good():
    assert (
        shown(report()).splitlines()[1] == "✓ The recording is good: nothing in it weakens the numbers below."
    )
    damaged = Health(
        verdict="degraded",
        notes=[
            HealthNote(
                code="truncated", text="the file ends in the middle of an event", share_of_device_time=0.02
            )
        ],
    )
    lines = shown(report(health=damaged)).splitlines()
    assert lines[1].startswith("⚠ The recording is degraded:")
    assert lines[2] == "  -  the file ends in the middle of an event"


def test_the_numbers_are_the_reports():
    page = shown(report())
    for expected in (
        "40.0 % busy  compute 30.0 % · communication 6.7 % · copy 3.3 %",
        "idle because  launch-bound 42.0 % · synchronization 18.0 %",
        "share of 13.5 ms of device time",
        "200 launches  2 kernels",
        "Saves about 12.6 ms a step.",
    ):
        assert expected in page
    rows = [line.split() for line in page.splitlines() if line.startswith("triton_poi_fused_add_mul_0")]
    assert rows == [
        [
            "triton_poi_fused_add_mul_0",
            "pointwise",
            "40.0",
            "%",
            "5.40",
            "ms",
            "30",
            "170",
            "µs",
            "90.0–410",
            "µs",
        ]
    ]


def test_a_bar_has_its_whole_width():
    bars = [line for line in shown(report()).splitlines() if line.startswith(("GPU 0", "ProfilerStep"))]
    assert len(bars) == 4
    assert {sum(line.count(fill) for fill in "█▓▒░") for line in bars} == {20}


def test_next_commands_are_exact_and_quoted():
    page = shown(report(), inputs=["my runs/trace.json.gz"])
    assert [line.split("  ")[-1].strip() for line in commands(page)] == [
        "kinetoscope findings 'my runs/trace.json.gz'",
        "kinetoscope explain overhead-bound",
        "kinetoscope kernels 'my runs/trace.json.gz' --category pointwise",
        "kinetoscope report 'my runs/trace.json.gz' -o report.html",
    ]


def test_what_only_informs_is_not_called_slow():
    only = [msgspec.structs.replace(row, severity="info") for row in report().findings]
    page = shown(report(findings=only))
    assert "kinetoscope findings" in page
    assert "why the first one is slow" not in page


def test_without_a_device_the_op_table_leads():
    page = shown(host_only())
    assert "Top kernels" not in page
    first = page.index("aten::mm", page.index("Top ops"))
    assert first < page.index("aten::add", page.index("Top ops"))


def test_markup_in_names_is_text():
    marked = "[red]not markup[/red]"
    page = shown(report(kernels=[kernel(marked)]), force_terminal=True, color_system="truecolor")
    assert marked in page


def test_no_name_reaches_the_terminal_with_a_control_character():
    page = shown(hostile(), width=20_000)
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert names.plain(HOSTILE[7]) in page
    page.encode()


def test_colour_only_where_it_is_wanted(monkeypatch):
    assert "\x1b[" not in shown(report())
    assert "\x1b[" in shown(report(), force_terminal=True, color_system="standard")
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[3" not in shown(report(), force_terminal=True)


def test_a_terminal_without_unicode_gets_bars_that_it_can_show():
    raw = io.BytesIO()
    page = io.TextIOWrapper(raw, encoding="ascii", errors="replace")
    print_report(report(), ["trace.json"], Console(file=page, width=100, highlight=False))
    page.flush()
    assert b"GPU 0           ######=+............" in raw.getvalue()


def test_many_ranks_keep_to_a_screen():
    page = shown(report(devices=[device(rank=rank) for rank in range(64)]))
    assert "rank 7 · GPU 0" in page
    assert "… and 56 devices more" in page


def test_the_text_file_is_the_terminals_report():
    lines = text.render(report(), ["trace.json.gz"]).splitlines()
    assert lines == [line.rstrip() for line in shown(report()).splitlines()]


def test_a_recording_of_nothing():
    empty = msgspec.structs.replace(host_only(), ops=[], steps=[])
    assert "neither device work nor ops" in shown(empty)


@pytest.mark.parametrize("width", [60, 72, 80, 100, 120, 160, 200])
def test_columns_leave_before_a_digit_does(width: int) -> None:
    long = [kernel(f"{'k' * 70}_{number}", max_us=1_234_567.0) for number in range(3)]
    document = report(kernels=long)
    console = Console(width=width, file=io.StringIO(), color_system=None)
    print_report(document, ["t.json"], console)
    assert isinstance(console.file, io.StringIO)
    sections = console.file.getvalue().split("\n\n")
    (categories,) = [text for text in sections if text.startswith("GPU time by category")]
    (kernels,) = [text for text in sections if text.startswith("Top kernels")]
    for row in document.categories:
        assert (
            f"{numbers.percent(row.share_of_device_time)}  {numbers.time(row.device_time_us)}" in categories
        )
    for line in kernels.splitlines()[-3:]:
        assert "40.0 %  5.40 ms" in line
        assert len(line.rstrip()) <= width
    if width >= 100:
        assert "200 launches" in categories
        assert numbers.span(90.0, 1_234_567.0) in kernels
    assert "…" not in categories
