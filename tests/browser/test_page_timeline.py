"""The timeline against sums of the trace's own tables; from the first screen to a source line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from browsing import Open, go, ready
from kinetoscope import numbers
from kinetoscope.analysis.kernels.work import work
from kinetoscope.document import Report
from kinetoscope.sources.run import LoadedRun, load
from kinetoscope.views import page as html
from page_reports import page_report

RECORDING = Path(__file__).parents[2] / "examples" / "recordings" / "llama_train_compile.json.gz"


@pytest.fixture(scope="module")
def run() -> LoadedRun:
    return load(RECORDING)


@pytest.fixture(scope="module")
def report(run: LoadedRun) -> Report:
    return page_report(run)


@pytest.fixture(scope="module")
def page(report: Report, opened: Open) -> Any:
    return opened(html.render(report, [RECORDING.name]))


@pytest.fixture(scope="module")
def origin(page: Any) -> int:
    return page.evaluate("kinetoscope.timeline.store.timeline.origin_ns")


def facts(page: Any, selector: str = ".panel") -> dict[str, str]:
    pairs = page.eval_on_selector_all(
        f"{selector} dl.facts dt", "terms => terms.map(t => [t.innerText, t.nextElementSibling.innerText])"
    )
    return {term: text.replace("\N{NO-BREAK SPACE}", " ") for term, text in pairs}


def test_a_range_is_summed_exactly(run: LoadedRun, page: Any, origin: int) -> None:
    (trace,) = run.traces
    middle = work(trace).sort("start_ns")[len(trace.device_events) // 3]
    start = int(middle["start_ns"][0]) - origin + 700  # inside of a kernel: its part counts
    end = start + 2_000_000
    go(page, f"timeline&r={start / 1000}-{end / 1000}")
    shown = facts(page)
    inside = work(trace).with_columns(
        (pl.col("start_ns") - origin).clip(start, end).alias("from"),
        (pl.col("end_ns") - origin).clip(start, end).alias("to"),
    )
    covered: set[int] = set()
    for low, high in inside.select("from", "to").iter_rows():
        covered.update(range(low, high))
    begins = inside.filter((pl.col("start_ns") - origin).is_between(start, end, closed="left"))
    assert shown["launches that start in it"] == numbers.count(len(begins))
    total = inside.select((pl.col("to") - pl.col("from")).sum()).item()
    assert shown["device time, summed"] == numbers.time(total / 1000)
    assert (
        shown["busy"]
        == f"{numbers.time(len(covered) / 1000)}, {numbers.percent(len(covered) / (end - start))}"
    )
    sums = page.evaluate(f"kinetoscope.timeline.statistics({start}, {end})")
    assert sums["devices"][0]["busy"] + sum(t for _, t in sums["devices"][0]["idle"]) == end - start
    categories = inside.group_by(pl.col("category").cast(pl.String)).agg(
        (pl.col("to") - pl.col("from")).sum()
    )
    assert {row["name"]: row["time"] for row in sums["categories"]} == {
        name: time for name, time in categories.iter_rows() if time
    }


def test_steps_divide_into_uses_and_idle_time(page: Any) -> None:
    go(page, "overview")
    steps = page.evaluate("kinetoscope.app.report.steps")
    shown = page.eval_on_selector_all(
        "section .bars .bar",
        "bars => bars.map(bar => [...bar.children].map(part => [part.title, parseFloat(part.style.width)]))",
    )[1 : 1 + len(steps)]  # the first is the device's
    for step, parts in zip(steps, shown, strict=True):
        busy = sum(width for title, width in parts if "idle, " not in title)
        assert busy == pytest.approx(100 * step["busy_us"] / step["duration_us"], abs=0.01)
        assert sum(width for _, width in parts) == pytest.approx(100, abs=0.11)
    assert [any(title.startswith("its end") for title, _ in parts) for parts in shown] == [False, True]


def test_an_event_shows_how_it_came_about(run: LoadedRun, page: Any, origin: int) -> None:
    from kinetoscope.analysis.origins.dispatch import links

    (trace,) = run.traces
    longest = int(trace.device_events["duration_ns"].arg_max() or 0)
    row = trace.device_events.row(longest, named=True)
    at = page.evaluate(
        """([start, duration]) => { const s = kinetoscope.timeline.store;
            return s.work.find(row => s.start[row] === start && s.duration[row] === duration) }""",
        [row["start_ns"] - origin, row["duration_ns"]],
    )
    go(page, f"timeline&k={at}")
    shown = facts(page)
    assert all(shown.values())  # what is not known has no label either
    launch = trace.host_events.row(row["launch"], named=True)
    assert shown["duration"] == f"{row['duration_ns'] / 1000:,.3f} µs"
    assert shown["waited"].startswith(numbers.time((row["start_ns"] - launch["start_ns"]) / 1000))
    assert shown["grid × block"] == f"{row['grid']} × {row['block']}"
    assert shown["registers a thread"] == str(row["registers"])
    count = page.eval_on_selector_all(".panel ol.chain >> nth=0 >> li", "rows => rows.length")
    assert count == len(links(trace, longest)) - 1  # the work itself is the panel's head
    assert page.get_attribute(".panel h2", "title") == row["name"]


def test_the_address_keeps_the_place(page: Any) -> None:
    go(page, "timeline&t=1000-2000&k=5")
    page.focus(".canvas canvas")
    page.keyboard.press("d")
    page.wait_for_timeout(250)
    moved = page.evaluate("location.hash")
    assert "k=5" in moved
    view = page.evaluate("({...kinetoscope.timeline.view})")
    page.reload()
    ready(page)
    again = page.evaluate("({...kinetoscope.timeline.view})")
    assert again["from"] == pytest.approx(view["from"], abs=1)
    assert again["to"] == pytest.approx(view["to"], abs=1)


def test_keys_mouse_and_wheel_move_it(page: Any) -> None:
    def view() -> tuple[float, float]:
        return page.evaluate("[kinetoscope.timeline.view.from, kinetoscope.timeline.view.to]")

    go(page, "timeline&t=10000-20000")
    start, end = view()
    page.focus(".canvas canvas")
    page.keyboard.press("w")
    assert view()[1] - view()[0] == pytest.approx(0.7 * (end - start))
    page.keyboard.press("s")
    page.keyboard.press("a")
    assert view()[0] < start
    box = page.locator(".canvas canvas").bounding_box()
    page.mouse.move(box["x"] + 400, box["y"] + 300)
    page.mouse.down()
    page.mouse.move(box["x"] + 300, box["y"] + 300, steps=3)
    before = view()[0]
    page.mouse.up()
    page.keyboard.down("Control")
    page.mouse.wheel(0, -200)
    page.keyboard.up("Control")
    page.wait_for_timeout(50)
    assert view()[1] - view()[0] < end - start
    assert before > start - (end - start)
    page.keyboard.down("Shift")
    page.mouse.move(box["x"] + 200, box["y"] + 300)
    page.mouse.down()
    page.mouse.move(box["x"] + 500, box["y"] + 300, steps=3)
    page.mouse.up()
    page.keyboard.up("Shift")
    assert "A range of" in page.inner_text(".panel h2")
    page.focus(".canvas canvas")
    page.keyboard.press("Escape")
    assert not page.is_visible(".panel")
    page.keyboard.press("ArrowRight")
    first = page.evaluate("kinetoscope.timeline.marked.selected")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("kinetoscope.timeline.marked.selected") == first + 1


def test_tracks_grow_and_shrink(page: Any) -> None:
    def height() -> float:
        return page.evaluate("kinetoscope.timeline.tracks.find(t => t.kind === 'line').height")

    go(page, "timeline&t=10000-20000")
    usual, end = height(), page.evaluate("kinetoscope.timeline.view.to")
    page.focus(".canvas canvas")
    page.keyboard.press("Shift+W")
    page.keyboard.press("Shift+W")
    assert height() == 2 * usual
    assert page.evaluate("kinetoscope.timeline.view.to") == end
    page.wait_for_timeout(250)  # the address follows a little later
    assert "tall=2" in page.evaluate("location.hash")
    for _ in range(9):
        page.keyboard.press("Shift+S")
    assert height() == usual / 2


def test_an_event_of_a_finding_is_opened_by_its_number(report: Report, page: Any) -> None:
    event = next(event for row in report.findings for seen in row.evidence for event in seen.events)
    place = html.event_place(report, event)
    assert place is not None
    go(page, place.removeprefix("#"))
    row = page.evaluate("kinetoscope.timeline.marked.selected")
    start, end, low, high = page.evaluate(
        """row => { const { store, view } = kinetoscope.timeline;
            return [store.start[row], store.endOf(row), view.from, view.to] }""",
        row,
    )
    assert low <= start <= end <= high
    assert high - low <= 3 * (end - start) + 20
    assert html.event_place(report, 1 << 40) is None


def test_search_leads_everywhere(page: Any) -> None:
    go(page, "overview")
    page.keyboard.press("/")
    page.fill("dialog input", "triton")
    assert page.locator(".results a").count() > 3
    page.keyboard.press("Enter")
    page.wait_for_selector("h1.mono")
    assert "triton" in page.inner_text("h1")
    page.go_back()
    page.wait_for_selector(".cards")


def test_evidence_is_lit_in_the_timeline(page: Any) -> None:
    go(page, "overview")
    page.click(".finding li a >> nth=0")
    page.wait_for_selector("canvas")
    lit = page.evaluate("[...kinetoscope.timeline.marked.rows]")
    assert lit
    page.focus(".canvas canvas")
    page.keyboard.press("d")
    page.wait_for_timeout(250)  # the address follows a little later
    page.reload()
    ready(page)
    assert page.evaluate("[...kinetoscope.timeline.marked.rows]") == lit
    page.go_back()
    page.wait_for_selector(".finding")


def test_groups_are_those_of_the_verb(run: LoadedRun, page: Any) -> None:
    from kinetoscope.analysis.origins.sums import kernels

    for by in ("op", "graph", "step", "module", "annotation"):
        go(page, f"kernels&by={by}")
        found = page.eval_on_selector_all(
            "#groups tbody tr", "rows => rows.map(r => [r.querySelector('a').title, r.cells[2].innerText])"
        )
        expected = kernels(run, by).select(by, "device_time_ns").head(200).rows()
        assert sorted((name, time.replace("\N{NO-BREAK SPACE}", " ")) for name, time in found) == sorted(
            (name, numbers.time(ns / 1000)) for name, ns in expected
        ), by


def test_from_the_first_screen_to_the_source_in_ten_clicks(opened: Open, shared_data: Path) -> None:
    """The mixnet_l training: which kernel first, what it would save, which lines, its source."""
    inputs = [
        shared_data / "h200" / "mixnet_l_train_bs128_compile.json.gz",
        shared_data / "compile-logs" / "mixnet_l_train.log.gz",
    ]
    page = opened(html.render(page_report(load(*inputs)), ["mixnet"]))
    # 76.6 ms of idle time end with a launch out of compiled code, counted in the file's raw events,
    # less what a CUDA graph still pauses between its kernels; 6.4 ms end with others' launches.
    assert "saves about 71.8 ms" in page.inner_text(".finding >> nth=0").replace("\N{NO-BREAK SPACE}", " ")
    page.click(".top nav >> text=Kernels")
    page.click("#kernels th button:text-is('could save')")
    page.click("#kernels a.mono[title^=triton] >> nth=0")
    page.wait_for_selector("h2:text-is('Source')")
    assert float(facts(page, "main")["could save at most"].split()[0]) > 0
    assert "@triton.jit" in page.inner_text(".side-by-side pre.code:visible")
    line = page.inner_text(".side-by-side ol.lines a >> nth=0")
    assert ".py:" in line
    page.click(".side-by-side ol.lines a >> nth=0")
    page.wait_for_selector(".program details.wanted")
    assert page.locator(".program details.wanted li a").count() > 0
    go(page, "code")
    assert page.locator("#lines tbody tr").count() > 20
