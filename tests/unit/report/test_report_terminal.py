import io

import msgspec
import pytest
from rich.console import Console

from kinetoscope import numbers
from kinetoscope.document import Health, LaunchRow, Note
from kinetoscope.render import names, terminal
from kinetoscope.render.terminal import LISTING_WIDTH, WIDTH, standard_output
from kinetoscope.views import graph_names, overview
from report_sample import HOSTILE, device, graph, host_only, hostile, kernel, report

LAUNCHES = LaunchRow(
    rank=0,
    device=0,
    launches=100,
    launches_per_step=10.0,
    work_per_launch=1.0,
    host_median_us=5.0,
    host_us_per_launch=20.0,
    latency_median_us=8.0,
    latency_p10_us=6.0,
    latency_p90_us=9.0,
    depth_median=1.0,
    depth_max=2,
    on_idle_device=60,
    shorter_than_call=0,
    queue=[],
)


def shown(document, inputs=("trace.json.gz",), whole=True, **options):
    page = io.StringIO()
    settings = {"file": page, "width": 100, "highlight": False, "markup": False, "emoji": False} | options
    overview.show(document, inputs, Console(**settings), whole=whole)
    return page.getvalue()


def commands(page):
    return [line for line in page.splitlines() if " kinetoscope " in line]


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("width", [60, 80, 100, 160])
@pytest.mark.parametrize("document", [report(), host_only(), hostile()], ids=["gpu", "host", "hostile"])
def test_everything_but_commands_to_copy_fits(document, width, whole):
    page = shown(document, width=width, whole=whole)
    assert [line for line in page.splitlines() if len(line) > width and line not in commands(page)] == []


def test_a_large_report_fits_on_a_screen():
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


@pytest.mark.parametrize(("columns", "used"), [(60, 60), (100, 100), (160, 160), (240, 200)])
def test_a_terminal_s_columns_are_used_up_to_two_hundred(monkeypatch, columns, used):
    monkeypatch.setenv("COLUMNS", str(columns))
    terminal = io.StringIO()
    monkeypatch.setattr("sys.stdout", terminal)
    for is_terminal in (False, True):  # a pipe has as many as COLUMNS says
        terminal.isatty = lambda is_terminal=is_terminal: is_terminal
        assert (standard_output().width, standard_output(widest=None).width) == (used, columns)


def test_a_pipe_that_says_nothing_has_columns_of_its_own(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr("sys.stdout", io.StringIO())
    assert (standard_output().width, standard_output(widest=None).width) == (WIDTH, LISTING_WIDTH)


@pytest.mark.parametrize("width", [60, 70, 80, 100, 120, 160, 200])
def test_the_first_screen_has_forty_lines_at_most(width):
    notes = [Note(code=str(number), text="what is missing " * 8) for number in range(6)]
    many = report(
        health=Health(verdict="degraded", notes=notes),
        kernels=[kernel(f"triton_poi_fused_{number}") for number in range(300)],
        categories=report().categories * 10,
        findings=report().findings * 9,
        devices=[device(rank=rank) for rank in range(64)],
    )
    for document in (many, report(), host_only()):
        lines = shown(document, width=width, whole=False).splitlines()
        assert sum(max(1, -(-len(line) // width)) for line in lines) < 40
        last = [line for line in lines if "kinetoscope " in line][-2:]
        assert last[0].endswith("kinetoscope report trace.json.gz -o report.html")
        assert last[1].endswith("kinetoscope report trace.json.gz --verbose")


def test_wider_screens_hold_more():
    many = report(kernels=[kernel(f"triton_poi_fused_{'k' * 80}_{number}") for number in range(300)])
    rows, widths = {}, {}
    for width in (80, 100, 160, 200):
        lines = shown(many, width=width, whole=False).splitlines()
        listed = [line for line in lines if line.startswith("triton_poi")]
        rows[width], widths[width] = len(listed), len(listed[0].split()[0])
    assert 0 < rows[80] <= rows[100] <= rows[160] <= rows[200]
    assert widths[80] < widths[100] < widths[160]
    assert widths[200] == len(f"triton_poi_fused_{'k' * 80}_0")


def test_launches_are_named_on_the_first_screen_where_they_come_late():
    late = LAUNCHES
    assert "60.0 % of the launches (10 per step) came when the GPU was already idle" in shown(
        report(launching=[late]), whole=False
    )
    early = msgspec.structs.replace(late, on_idle_device=49)
    assert "already idle" not in shown(report(launching=[early]), whole=False)
    assert "were made when the device was already idle" in " ".join(shown(report(launching=[early])).split())


def test_calls_of_compiled_graphs_are_called_by_their_graph():
    called = graph(hash="fabcdefghijklmnop", compile_id="0/0")
    op = host_only().ops[0]
    call = msgspec.structs.replace(op, name="## Call CompiledFxGraph fabcdefghijklmnop ##")
    other = msgspec.structs.replace(op, name="## Call CompiledFxGraph fzzzzzzzzzzzzzzzz ##")
    page = shown(msgspec.structs.replace(host_only(), ops=[call, other], graphs=[called]))
    assert "CompiledFxGraph" not in page
    assert f"graph {graph_names.graph_labels(report(graphs=[called]))[0]}  " in page
    assert "graph fzzzzzzz  " in page


def test_the_verdict_comes_first_and_its_notes_when_it_is_not_good():
    assert (
        shown(report()).splitlines()[1] == "✓ The recording is good: nothing in it weakens the numbers below."
    )
    damaged = Health(
        verdict="degraded",
        notes=[
            Note(code="truncated", text="the file ends in the middle of an event", share_of_device_time=0.02)
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
        "Saves about 12.6 ms per step.",
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
    overview.show(report(), ["trace.json"], Console(file=page, width=100, highlight=False), whole=True)
    page.flush()
    assert b"GPU 0           ######=+............" in raw.getvalue()


def test_many_ranks_keep_to_a_screen():
    page = shown(report(devices=[device(rank=rank) for rank in range(64)]))
    assert "rank 7 · GPU 0" in page
    assert "… and 56 devices more" in page


def test_the_text_file_is_the_terminals_report():
    lines = terminal.text(overview.blocks(report(), ["trace.json.gz"], "whole")).splitlines()
    assert lines == [line.rstrip() for line in shown(report()).splitlines()]


def test_a_recording_of_nothing():
    empty = msgspec.structs.replace(host_only(), ops=[], steps=[])
    assert "neither device work nor ops" in shown(empty)


@pytest.mark.parametrize("width", [60, 72, 80, 100, 120, 160, 200])
def test_columns_leave_before_a_digit_does(width: int) -> None:
    long = [kernel(f"{'k' * 70}_{number}", max_us=1_234_567.0) for number in range(3)]
    document = report(kernels=long)
    console = Console(width=width, file=io.StringIO(), color_system=None)
    overview.show(document, ["t.json"], console, whole=True)
    assert isinstance(console.file, io.StringIO)
    sections = console.file.getvalue().split("\n\n")
    (categories,) = [text for text in sections if text.startswith("GPU time by category")]
    (kernels,) = [text for text in sections if text.startswith("Top kernels")]
    for row in document.categories:
        assert (
            f"{numbers.percent(row.share_of_device_time)}  {numbers.time(row.device_time_us)}" in categories
        )
    rows = [line for line in kernels.splitlines() if line.startswith("kkk")]
    assert len(rows) == 3
    assert "max" in kernels  # the column, or the line that says that there is no room for it
    for line in rows:
        assert "40.0 %  5.40 ms" in line
        assert len(line.rstrip()) <= width
    if width >= 100:
        assert "200 launches" in categories
        assert numbers.span(90.0, 1_234_567.0) in kernels
    assert "…" not in categories
