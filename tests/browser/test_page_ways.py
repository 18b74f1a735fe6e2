"""Ways through a recording: from evidence to its gap, tracks, flame graph, search, exported tables."""

from __future__ import annotations

import csv
import io
import urllib.parse
from pathlib import Path
from typing import Any

import pytest

import traces
from browsing import Open, go
from kinetoscope import numbers
from kinetoscope.document import Report
from kinetoscope.sources.run import load
from kinetoscope.views import page as html
from page_reports import page_report

RECORDING = Path(__file__).parents[1] / "fixtures" / "h200" / "llama_train_eager_stack.json.gz"


@pytest.fixture(scope="module")
def report() -> Report:
    return page_report(load(RECORDING))


@pytest.fixture(scope="module")
def page(report: Report, opened: Open) -> Any:
    return opened(html.render(report, [RECORDING.name]))


def plain(text: str) -> str:
    return text.replace("\N{NO-BREAK SPACE}", " ")


def test_the_first_screen_says_what_to_change_and_what_was_not_recorded(page: Any, report: Report) -> None:
    go(page, "overview")
    best = next(row for row in report.findings if row.saving_us > 0 and not row.of_the_profiler)
    assert best.advice.startswith(plain(page.inner_text("h1")).rstrip("…")[:80])
    assert numbers.time(best.saving_us) in plain(page.inner_text(".first"))
    assert page.locator("#top-kernels tbody tr").count() == 5
    assert page.locator("a.strip canvas").count() == 1
    shown = plain(page.inner_text("main"))
    assert "--memory" in shown
    assert "--stacks" not in shown, "this recording has them"
    profiler = [row.rule for row in report.findings if row.of_the_profiler]
    listed = page.eval_on_selector_all("#findings > .finding", "rows => rows.map(row => row.dataset.rule)")
    assert not set(profiler) & set(listed)


def test_evidence_shows_its_gap_with_the_gpu_and_the_thread_that_ended_it(page: Any, report: Report) -> None:
    for height in (900, 420):
        page.set_viewport_size({"width": 1280, "height": height})
        go(page, "overview")
        page.click(".finding a.door:text-matches('^idle') >> nth=0")
        page.wait_for_selector(".panel h2:text-matches('^Idle')")
        time = plain(page.inner_text(".panel h2")).removeprefix("Idle ")
        assert any(item.text.startswith(f"idle {time}") for row in report.findings for item in row.evidence)
        page.wait_for_timeout(60)
        seen = page.evaluate(
            """() => { const t = kinetoscope.timeline, { store, marked, view } = t;
                const [device, at] = marked.gap, idle = store.idle[device];
                const after = [...store.work].filter(row => store.start[row] >= idle.end[at])
                    .sort((a, b) => store.start[a] - store.start[b])[0];
                const launch = store.launch[store.work.indexOf(after)], lane = store.laneOf(launch);
                const top = track => 24 + track.top - (track.top < view.fixed ? 0 : view.scroll);
                const isSeen = track => top(track) >= 24 && top(track) + track.height <= view.height;
                const gpu = t.tracks.find(track => track.kind === "idle" && track.index === device);
                const host = t.tracks.find(track => track.kind === "line" && track.line.lane === lane
                    && track.line.number === store.line[launch]);
                return [view.from < idle.start[at], view.to > idle.end[at], isSeen(gpu), isSeen(host)] }"""
        )
        assert seen == [True, True, True, True], height
    page.set_viewport_size({"width": 1280, "height": 900})
    page.reload()
    page.wait_for_selector(".panel h2:text-matches('^Idle')")


def test_tracks_are_filtered_pinned_and_hidden_and_the_address_keeps_that(page: Any) -> None:
    def heads() -> list[str]:
        return page.evaluate("kinetoscope.timeline.tracks.filter(t => t.kind === 'head').map(t => t.key)")

    go(page, "timeline")
    before = heads()
    page.click(".tracks summary")
    page.wait_for_selector(".tracks li")
    rows = page.locator(".tracks li")
    assert rows.count() == len(before)
    rows.last.locator("text=pin").click()
    rows.nth(0).locator("text=hide").click()
    assert heads() == [before[-1], *before[1:-1]]
    assert page.evaluate("kinetoscope.timeline.view.fixed") > 0
    page.wait_for_timeout(250)
    address = page.evaluate("location.hash")
    go(page, "timeline")
    assert heads() == before
    go(page, address[1:])
    assert heads() == [before[-1], *before[1:-1]]
    go(page, "timeline&only=stream")
    assert 0 < len(heads()) < len(before)
    page.fill(".tools input", "")
    assert heads() == before


def test_the_strip_of_the_whole_recording_moves_the_view(page: Any) -> None:
    go(page, "timeline&t=1000-2000")
    box = page.locator(".timeline > .painted canvas").bounding_box()
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + 10)
    start, end, whole = page.evaluate(
        "(({view, store}) => [view.from, view.to, store.end])(kinetoscope.timeline)"
    )
    assert (start + end) / 2 == pytest.approx(whole / 2, rel=0.01)
    assert end - start == pytest.approx(1_000_000)
    legend = page.inner_text(".timeline > .legend")
    assert "matmul" in legend
    assert "idle: launch-bound" in legend
    page.keyboard.press("?")
    assert "zoom" in page.inner_text("dialog.help")
    page.keyboard.press("Escape")


def test_the_flame_graph_zooms_searches_and_turns_round(page: Any, report: Report) -> None:
    go(page, "flame")
    bars = "section.flame a"
    assert page.locator(f"{bars}:has-text('LlamaDecoderLayer_*')").count() == 1
    whole = sum(row.device_time_us for row in report.kernels)
    page.fill(".tools input", "nvjet")
    share = sum(row.device_time_us for row in report.kernels if "nvjet" in row.short_name) / whole
    assert numbers.percent(share) in plain(page.inner_text(".tools"))
    assert page.locator(f"{bars}.leaf:not(.faint)").count() > 0
    page.fill(".tools input", "")
    page.click(f"{bars}:has-text('LlamaMLP_*')")
    page.wait_for_selector("p.lead:has-text('LlamaMLP_*')")
    assert page.locator(f"{bars}:has-text('LlamaAttention_*')").count() == 0
    page.click("text=its callers and callees")
    page.wait_for_selector(".up")
    assert "LlamaDecoderLayer_*" in page.inner_text(".up")
    page.keyboard.down("Shift")
    page.click(".chosen a")
    page.keyboard.up("Shift")
    page.wait_for_selector(".panel h2:text-matches('LlamaMLP_')")


def test_a_search_from_the_timeline_stays_there_and_shows_what_was_found(page: Any) -> None:
    go(page, "timeline")
    page.keyboard.press("/")
    page.fill("dialog.search input", "128x128_64x6")
    assert "128x128_64x6" in page.inner_text(".results a >> nth=0")
    page.keyboard.press("Enter")
    page.wait_for_selector(".panel h2:has-text('128x128_64x6')")


def test_a_table_is_taken_along_as_it_is_sorted_and_filtered(page: Any, report: Report) -> None:
    go(page, "kernels&q=nvjet")
    page.evaluate("document.querySelector('a[download]').addEventListener('click', e => e.preventDefault())")
    page.click("a[download]")
    address = page.get_attribute("a[download]", "href")
    rows = list(csv.DictReader(io.StringIO(urllib.parse.unquote(address.split(",", 1)[1]))))
    found = [row for row in report.kernels if "nvjet" in row.name]
    assert [float(row["device time (µs)"]) for row in rows] == [row.device_time_us for row in found]
    assert [row["kernel"] for row in rows] == [row.short_name for row in found]


def test_without_stacks_the_flame_graph_has_the_noted_modules_and_lines(opened: Open) -> None:
    page = opened(html.render(page_report(traces.two_layers()), ["made"]))
    bars = "section.flame a"
    go(page, "flame")
    assert page.locator(bars).all_inner_texts()[1:6] == [
        "Layer 75.0 %", "Attention 75.0 %",
        "a.py(1): Attention.forward 75.0 %", "gemm 75.0 %",
        "no module 25.0 %",
    ]  # fmt: skip
    go(page, "flame&by=lines")
    assert "a.py: step 25.0" in plain("\n".join(page.locator(bars).all_inner_texts()))
    go(page, "kernels&by=line")
    assert "a.py(2): step" in page.inner_text("main")
