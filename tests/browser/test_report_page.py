"""The HTML report in a real browser: nothing of a name runs, nothing is fetched, tables sort and filter."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kinetoscope.report.pages import html
from report_sample import host_only, hostile, kernel, report

playwright = pytest.importorskip("playwright.sync_api")

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium here")

SWITCHES = [
    "--no-sandbox",
    "--headless",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
]


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as started:
        instance = started.chromium.launch(executable_path=CHROMIUM, args=SWITCHES)
        yield instance
        instance.close()


@pytest.fixture
def opened(browser, tmp_path):
    """Opens a report; afterwards the page must have asked nobody for anything and complained of nothing."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    requests, complaints = [], []

    def open_report(document) -> playwright.Page:
        path: Path = tmp_path / "report.html"
        path.write_text(html.render(document, ["runs/trace.json.gz"]), encoding="utf-8")
        page = context.new_page()
        page.on("request", lambda request: requests.append(request.url))
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(path.as_uri())
        return page

    yield open_report
    assert [url for url in requests if not url.startswith(("file://", "data:"))] == []
    assert len([url for url in requests if url.startswith("file://")]) == 1
    assert complaints == []
    context.close()


def column(page, table, index):
    return page.eval_on_selector_all(
        f"#{table} tbody tr",
        f"rows => rows.filter(r => !r.hidden).map(r => r.cells[{index}].innerText.split('\\n')[0])",
    )


@pytest.mark.parametrize("document", [report(), host_only(), hostile()], ids=["gpu", "host", "hostile"])
@pytest.mark.parametrize("width", [400, 1280])
def test_it_opens_without_a_complaint_and_fits(opened, document, width):
    page = opened(document)
    page.set_viewport_size({"width": width, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.inner_text("h1")


def test_hostile_names_do_not_run(opened):
    page = opened(hostile())
    for summary in page.query_selector_all("summary"):
        summary.evaluate("node => node.parentElement.open = true")
    for cell in page.query_selector_all("#kernels .name")[:6]:
        cell.hover()
    assert page.evaluate("window.hacked") is None
    assert page.evaluate("document.scripts.length") == 1
    assert page.evaluate("getComputedStyle(document.body).display") == "block"
    assert "<script>window.hacked = 1</script>" in page.inner_text("#kernels")


def test_heads_sort(opened):
    page = opened(
        report(
            kernels=[
                kernel("b", device_time_us=900.0, launches=5),
                kernel("c", device_time_us=80.0, launches=40),
                kernel("a", device_time_us=7.0, launches=300),
            ]
        )
    )
    page.click("#kernels th button:text-is('launches')")
    assert column(page, "kernels", 0) == ["a", "c", "b"]
    page.click("#kernels th button:text-is('launches')")
    assert column(page, "kernels", 0) == ["b", "c", "a"]
    page.click("#kernels th button:text-is('kernel')")
    assert column(page, "kernels", 0) == ["a", "b", "c"]
    assert page.get_attribute("#kernels th:first-child", "aria-sort") == "ascending"


def test_typing_filters(opened):
    page = opened(report())
    page.fill("input[data-filters=kernels]", "nvjet")
    assert column(page, "kernels", 0) == ["nvjet_sm90_tst_128x128_64x6_2x1_v_bz_NNT"]
    page.fill("input[data-filters=kernels]", "aten::add")
    assert len(column(page, "kernels", 0)) == 3


def test_dark_where_the_reader_wants_it(opened):
    page = opened(report())
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.emulate_media(color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != light
