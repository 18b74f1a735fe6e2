"""A comparison's page: one step of each on one timeline, what differs, and names that stay names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from browsing import Open, go
from cases.recorded import recorded
from kinetoscope import numbers
from kinetoscope.comparison.difference import difference
from kinetoscope.comparison.gates import parse
from kinetoscope.comparison.timelines import DrawnWork
from kinetoscope.document.collect.difference import build
from kinetoscope.document.difference import Difference
from kinetoscope.views.page import render_difference
from report_sample import HOSTILE

AXE = Path(__file__).parents[2] / "web" / "node_modules" / "axe-core" / "axe.min.js"


@pytest.fixture(scope="module")
def found() -> Difference:
    before, after = recorded("sync-in-step", "before"), recorded("sync-in-step", "after")
    assert before is not None
    assert after is not None
    gates = [parse(text) for text in ("launches > 0", "step_time > 3%")]
    return build(difference([after], [before]), (["AFTER"], ["BEFORE"]), (1, 1), gates, page=True)


def plain(text: str) -> str:
    return text.replace("\N{NO-BREAK SPACE}", " ")


def test_it_is_the_reports_page_with_both_steps(opened: Open, found: Difference) -> None:
    page = opened(render_difference(found))
    assert page.locator(".top nav a").all_inner_texts() == ["Comparison"]
    assert found.step is not None
    assert f"slower by {numbers.time(found.step.delta_us)}" in plain(page.inner_text("h1"))
    heads = page.evaluate("kinetoscope.timeline.tracks.filter(one => one.label).map(one => one.label)")
    assert [head.split(":")[0] for head in heads] == ["base", "new"]
    shown = plain(page.inner_text("main"))
    for words in ("FAILED launches > 0", "_local_scalar_dense", "Because of", "Counted", "copied_bytes"):
        assert words in shown
    rows = page.eval_on_selector_all("#busy-by-category tbody tr", "rows => rows.map(row => row.innerText)")
    assert [plain(row).split("\t")[0] for row in rows] == [row.name for row in found.categories]


def test_the_generated_kernel_is_folded_by_itself_and_whole(opened: Open, found: Difference) -> None:
    code = "\n".join(f"-before {line}\n+now {line}" for line in range(200))
    page = opened(render_difference(msgspec.structs.replace(found, code=code)))
    page.click("summary:has-text('The generated kernel')")
    assert page.inner_text(".folded[class] details[open] pre") == code


def test_a_kernel_of_a_change_is_lit_on_both_timelines(opened: Open, found: Difference) -> None:
    page = opened(render_difference(found))
    page.click("#because-of a:has-text('elementwise<Abs')")
    page.wait_for_timeout(100)
    names = page.evaluate(
        "[...kinetoscope.timeline.marked.found].map(at => kinetoscope.app.store.names[at].name)"
    )
    assert {"AbsFunctor" in name for name in names} == {True}
    page.focus(".canvas canvas")
    page.keyboard.press("n")
    assert "AbsFunctor" in (page.get_attribute(".panel h2", "title") or "")


def test_a_switch_aligns_both_by_compiled_graph(opened: Open, found: Difference) -> None:
    piece = DrawnWork(
        name="k", category="copy", start_us=0.0, duration_us=5.0, lane=0, call="0/0", aligned_us=3.0
    )
    other = msgspec.structs.replace(piece, call=None, start_us=6.0, aligned_us=9.0)
    page = opened(render_difference(msgspec.structs.replace(found, timelines=([piece, other], [piece]))))
    page.click("text=compiled graph >> nth=0")
    page.wait_for_selector("a[aria-current=true]:text-is('compiled graph')")
    page.focus(".canvas canvas")
    page.keyboard.press("ArrowRight")
    page.wait_for_timeout(250)
    assert "by=graph" in page.evaluate("location.hash")
    panel = plain(page.inner_text(".panel"))
    assert "0.000 µs" in panel, "where it starts in its own step"
    go(page, "comparison")
    assert page.locator("a[aria-current=true]:text-is('step')").count() == 1


def hostile(found: Difference) -> Difference:
    names = iter([name for name in HOSTILE if "\ud800" not in name] * 9)
    changes = [
        msgspec.structs.replace(
            row, name=name, source=name, ops=[name],
            base=[msgspec.structs.replace(one, name=name) for one in row.base],
        )
        for row, name in zip(found.changes, names, strict=False)
    ]  # fmt: skip
    gates = [msgspec.structs.replace(row, culprit=next(names), source=next(names)) for row in found.gates]
    assert found.timelines is not None
    steps = [
        [msgspec.structs.replace(one, name=next(names)) for one in side[-9:]] for side in found.timelines
    ]
    ops = [msgspec.structs.replace(row, name=next(names)) for row in found.ops]
    return msgspec.structs.replace(
        found, changes=changes, gates=gates, ops=ops, timelines=(steps[0], steps[1]), why=[next(names)],
        code=f"-{next(names)}\n+{next(names)}",
    )  # fmt: skip


def test_names_of_strangers_are_text_and_it_fits(opened: Open, found: Difference) -> None:
    page = opened(render_difference(hostile(found)))
    page.eval_on_selector_all("details", "all => all.forEach(one => one.open = true)")
    for width in (390, 1280):
        page.set_viewport_size({"width": width, "height": 900})
        go(page, "comparison&k=3")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert "<script>window.hacked = 1</script>" in page.inner_text("main")
    assert page.evaluate("window.hacked") is None
    assert page.evaluate("document.scripts.length") == 1


@pytest.mark.skipif(not AXE.is_file(), reason="axe-core is not installed: npm ci in web/")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_serious_is_in_the_way_of_anybody(opened: Open, found: Difference, scheme: str) -> None:
    page: Any = opened(render_difference(found))
    page.emulate_media(color_scheme=scheme)
    page.evaluate(AXE.read_text())
    found_by_axe = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
    assert [v["id"] for v in found_by_axe if v["impact"] in ("serious", "critical")] == []
