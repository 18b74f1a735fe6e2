"""Every part of the page, on documents of each kind: it fits, and nothing of a name runs."""

from __future__ import annotations

import gzip
import random
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from broad import broad
from browsing import Open, go
from kinetoscope import numbers
from kinetoscope.document import Report
from kinetoscope.document.replay import ReplayRow
from kinetoscope.recording import manifest as manifests
from kinetoscope.recording.manifest import Manifest, Program, RankRecord
from kinetoscope.sources.run import load
from kinetoscope.views import page as html
from page_reports import page_report
from report_sample import HOSTILE, as_it_runs, host_only, hostile, kernel, report, timing
from traces import call, host, step
from traces import kernel as work

PLACES = [
    "overview",
    "timeline",
    "kernels",
    "flame",
    "code",
    "compile",
    "ops",
    "steps",
    "memory",
    "ranks",
    "about",
]
FIXTURES = Path(__file__).parents[1] / "fixtures"
BREAKS = FIXTURES / "h200_breaks"
HELD = FIXTURES / "h200_memory" / "pairwise"
# As it was when it was recorded: a line shorter.
SOURCE = (FIXTURES.parent / "gpu" / "programs" / "breaks.py").read_text().replace("\n", " ", 1)
AXE = Path(__file__).parents[2] / "web" / "node_modules" / "axe-core" / "axe.min.js"
NAMES = [
    *HOSTILE[:10], *HOSTILE[11:],  # files hold no lone surrogates
    "'-alert(1)-'", "javascript:window.hacked=1", "${window.hacked=1}", "&lt;b&gt;&#x3c;",
    "<svg/onload=window.hacked=1>", "__proto__", "constructor", "a&b=c#d/e%",
]  # fmt: skip


def rendered(document: Report) -> str:
    return html.render(document, ["runs/trace.json.gz"])


def hostile_trace(folder: Path) -> str:
    """A page whose every op, thread, annotation and kernel has a name from a stranger."""
    import json

    events: list[dict[str, Any]] = [step(1, 0, 100 * len(NAMES))]
    for at, name in enumerate(NAMES):
        start = 100.0 * at
        events += [
            host(name, start, 80), call("cudaLaunchKernel", start + 5, 5, at + 1),
            work(name, start + 20, 30, at + 1, grid=[at + 1, 1, 1]),
            host(f"{name}.py({at}): {name}", start, 90, "python_function"),
            {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": name}},
        ]  # fmt: skip
    path = folder / "trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return rendered(page_report(load(path)))


@pytest.fixture(scope="module")
def breaks(opened: Open, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A recording with its compile log and its source: every part has something to show."""
    folder = tmp_path_factory.mktemp("breaks")
    for name in ("breaks.json.gz", "breaks.log.gz"):
        shutil.copy(BREAKS / name, folder)
    program = Program(files={"/home/me/programs/breaks.py": SOURCE})
    (folder / "program.json").write_bytes(msgspec.json.encode(program))
    shutil.copy(f"{HELD}.pickle.gz", folder)
    (folder / "held.json").write_bytes(gzip.decompress(Path(f"{HELD}.json.gz").read_bytes()))
    ranks = (
        RankRecord(
            rank=0, trace="breaks.json.gz", compile_log="breaks.log.gz", program="program.json",
            memory="pairwise.pickle.gz", memory_held="held.json",
        ),
    )  # fmt: skip
    manifests.write(folder, Manifest(command=("breaks.py",), ranks=ranks, exit="ok"))
    return opened(rendered(page_report(load(folder))))


@pytest.fixture(scope="module", params=["gpu", "host", "hostile document", "hostile trace"])
def any_page(request: pytest.FixtureRequest, opened: Open, tmp_path_factory: pytest.TempPathFactory) -> Any:
    documents = {
        "gpu": lambda: rendered(report(timings=[timing()], as_it_runs=as_it_runs())),
        "host": lambda: rendered(host_only()),
        "hostile document": lambda: rendered(hostile()),
        "hostile trace": lambda: hostile_trace(tmp_path_factory.mktemp("hostile")),
    }
    return opened(documents[request.param]())


def parts(page: Any) -> list[str]:
    return page.eval_on_selector_all(".top nav a", "tabs => tabs.map(tab => tab.dataset.place)")


def fits(page: Any) -> None:
    for width in (390, 1280):
        page.set_viewport_size({"width": width, "height": 900})
        for place in parts(page):
            go(page, place)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, place
            assert page.evaluate("document.querySelector('#main').childElementCount") > 0


def test_every_part_opens_and_fits_and_nothing_of_a_name_runs(any_page: Any) -> None:
    fits(any_page)
    for at in range(min(any_page.evaluate("kinetoscope.app.report.kernels.length"), 4)):
        go(any_page, f"kernels/{at}")
    assert any_page.evaluate("window.hacked") is None
    assert any_page.evaluate("document.scripts.length") == 1
    assert any_page.evaluate("getComputedStyle(document.body).display") == "block"
    assert any_page.evaluate("document.querySelectorAll('main img, main iframe, main object').length") == 0


def test_every_part_of_a_whole_recording_fits(breaks: Any) -> None:
    assert [place for place in PLACES if place not in parts(breaks)] == ["ranks"]
    fits(breaks)


KINDS = {
    "eager": ["h200/mm_64_warm_eager.json.gz"],
    "CUDA graphs": ["h200_modes/reduce-overhead.json.gz", "h200_modes/compile.log.gz"],
    "host-bound": ["h100_everyday/host-bound"],
    "a compile log": ["h200_modes/compile.log.gz"],
    "two ranks": [f"../cases/collective-imbalance/before.rank{rank}.json.gz" for rank in (0, 1)],
}


# What is damaged is the eager one, cut.
@pytest.mark.parametrize("kind", broad([*KINDS, "damaged"], {*KINDS, "damaged"} - {"eager"}))
def test_every_part_of_every_kind_of_recording(opened: Open, tmp_path: Path, kind: str) -> None:
    if kind == "damaged":
        whole = gzip.decompress((FIXTURES / "h200" / "mm_64_warm_eager.json.gz").read_bytes())
        inputs = [tmp_path / "damaged.json"]
        inputs[0].write_bytes(whole[: len(whole) * 2 // 3])
    else:
        inputs = [FIXTURES / name for name in KINDS[kind]]
    fits(opened(rendered(page_report(load(*inputs)))))


def test_names_are_shown_as_they_are(opened: Open, tmp_path: Path) -> None:
    page = opened(hostile_trace(tmp_path))
    go(page, "kernels")
    shown = page.inner_text("#kernels")
    assert "<script>window.hacked = 1</script>" in shown
    assert "{{ 7 * 7 }}" in shown
    assert not set(shown) & set("\x1b\u202e\u2066")
    for at in range(len(NAMES)):
        go(page, f"timeline&k={at}")
        page.wait_for_selector(".panel h2")
    page.keyboard.press("/")
    page.fill("dialog input", "window.hacked")
    assert page.locator(".results a").count() > 3
    assert page.evaluate("window.hacked") is None


@pytest.mark.skipif(not AXE.is_file(), reason="axe-core is not installed: npm ci in web/")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_serious_is_in_the_way_of_anybody(breaks: Any, scheme: str) -> None:
    breaks.emulate_media(color_scheme=scheme)
    breaks.evaluate(AXE.read_text())
    for place in [*parts(breaks), "kernels/0", "timeline&k=0", "compile/0", "code&file=breaks.py&line=27"]:
        go(breaks, place)
        found = breaks.evaluate("axe.run(document, {resultTypes: ['violations']})")
        grave = [v for v in found["violations"] if v["impact"] in ("serious", "critical")]
        nodes = [
            (v["id"], node["html"][:160], node["failureSummary"][:300]) for v in grave for node in v["nodes"]
        ]
        assert nodes == [], place
    breaks.emulate_media(color_scheme="light")


def column(page: Any, table: str, index: int) -> list[str]:
    return page.eval_on_selector_all(
        f"#{table} tbody tr", f"rows => rows.map(r => r.cells[{index}].innerText.split('\\n')[0])"
    )


def test_tables_sort_and_filter(opened: Open) -> None:
    rows = [
        kernel("b", device_time_us=900.0, launches=5),
        kernel("c", device_time_us=80.0, launches=40),
        kernel("a", device_time_us=7.0, launches=300, ops=[]),
    ]
    page = opened(rendered(report(kernels=rows)))
    go(page, "kernels")
    page.click("#kernels th button:text-is('launches')")
    assert column(page, "kernels", 0) == ["a", "c", "b"]
    page.click("#kernels th button:text-is('launches')")
    assert column(page, "kernels", 0) == ["b", "c", "a"]
    page.click("#kernels th button:text-is('kernel')")
    assert column(page, "kernels", 0) == ["a", "b", "c"]
    assert page.get_attribute("#kernels th:first-child", "aria-sort") == "ascending"
    page.fill("input[aria-label='filter kernels']", "aten::add")
    assert column(page, "kernels", 0) == ["b", "c"]
    page.fill("input[aria-label='filter kernels']", "")
    assert column(page, "kernels", 0) == ["a", "b", "c"]


def test_numbers_are_written_as_everywhere(breaks: Any) -> None:
    draw = random.Random(7)
    values = [0.0, 0.9996, 999.6, 1e6] + [10 ** draw.uniform(-5, 9) for _ in range(300)]
    shares = [0.0, 1.0, 0.0001, 0.9999] + [draw.random() for _ in range(100)]
    written = breaks.evaluate(
        """([values, shares]) => [values.map(kinetoscope.numbers.time), values.map(kinetoscope.numbers.size),
            shares.map(kinetoscope.numbers.percent), values.map(v => kinetoscope.numbers.span(v / 3, v))]""",
        [values, shares],
    )
    plain = [[text.replace("\N{NO-BREAK SPACE}", " ") for text in texts] for texts in written]
    assert plain[0] == [numbers.time(value) for value in values]
    assert plain[1] == [numbers.size(value) for value in values]
    assert plain[2] == [numbers.percent(share) for share in shares]
    assert plain[3] == [numbers.span(value / 3, value) for value in values]


def test_dark_where_the_reader_wants_it(breaks: Any) -> None:
    light = breaks.evaluate("getComputedStyle(document.body).backgroundColor")
    breaks.emulate_media(color_scheme="dark")
    assert breaks.evaluate("getComputedStyle(document.body).backgroundColor") != light
    breaks.emulate_media(color_scheme="light")


def test_graph_breaks_lead_to_their_lines_and_kernels_to_their_source(breaks: Any) -> None:
    go(breaks, "compile")
    shown = breaks.inner_text("main")
    for text in ("breaks.py:29", "20, 2 per step", "84.6 %", "triton_poi_fused_mul_sin_0"):
        assert text in shown.replace("\N{NO-BREAK SPACE}", " ")
    breaks.click("text=breaks.py:29")
    breaks.wait_for_selector(".program details.wanted")
    assert "graph break" in breaks.inner_text(".program details.wanted")
    go(breaks, "compile")
    breaks.click("#generated-kernels a >> nth=0")
    breaks.wait_for_selector("h2:text-is('Source')")
    assert "@triton.jit" in breaks.inner_text(".side-by-side pre.code:visible")
    breaks.click("text=in its module")
    breaks.wait_for_selector("#lit")
    breaks.go_back()
    breaks.wait_for_selector("h2:text-is('Source')")


def test_a_file_of_the_program_is_shown_whole_with_what_its_lines_took(breaks: Any) -> None:
    go(breaks, "code")
    breaks.click("#files a >> nth=0")
    breaks.wait_for_selector(".program")
    shown = breaks.eval_on_selector_all(
        ".program .program-line code", "lines => lines.map(line => line.textContent)"
    )
    assert shown == SOURCE.splitlines()
    times = breaks.eval_on_selector_all(
        ".program .program-line",
        "lines => lines.map(line => [Number(line.children[0].textContent), line.children[1].textContent])",
    )
    rows = breaks.evaluate("kinetoscope.app.report.compilation.source_lines")
    expected = {row["line"]: numbers.time(row["device_time_us"]) for row in rows if row["device_time_us"]}
    found = {line: time.replace("\N{NO-BREAK SPACE}", " ") for line, time in times if time}
    assert expected.items() <= found.items()
    assert {row["line"] for row in rows if row["code"].strip() in shown[row["line"] - 1]} >= expected.keys()
    assert "changed after it had been compiled" not in breaks.inner_text("main")
    breaks.evaluate("const [file] = kinetoscope.app.report.page.program; file.text = '\\n' + file.text")
    go(breaks, "code&file=programs/breaks.py")
    assert "changed after it had been compiled" in breaks.inner_text("main")
    go(breaks, "code&file=elsewhere.py&line=3")
    assert "Nothing more is known" in breaks.inner_text("main")


def test_a_lane_leads_to_what_was_compiled(breaks: Any) -> None:
    go(breaks, "compile")
    facts = breaks.evaluate("kinetoscope.app.report.compilation")
    drawn = breaks.eval_on_selector_all(
        ".lane", "lanes => lanes.map(lane => [...lane.children].map(one => parseFloat(one.style.width)))"
    )
    rows = facts["stretches"]
    whole = max(row["start_s"] + row["duration_s"] for row in rows) - min(row["start_s"] for row in rows)
    assert [sum(widths) for widths in drawn] == pytest.approx(
        [100 * frame["compile_s"] / whole for frame in facts["frames"]], abs=0.5
    )
    breaks.click(".lane >> nth=1")
    breaks.wait_for_selector("h1:has-text('What was compiled of')")
    assert breaks.locator(".lane").count() == 1
    assert breaks.locator("#compilations tbody tr").count() == 1
    graphs = [row for row in facts["graphs"] if row["frame"] == 1]
    assert breaks.locator("#graphs tbody tr").count() == len(graphs)


def test_the_page_prints_on_light_paper(breaks: Any) -> None:
    go(breaks, "overview")
    ink = breaks.evaluate("getComputedStyle(document.body).color")
    breaks.emulate_media(media="print", color_scheme="dark")  # paper is light
    assert breaks.evaluate("getComputedStyle(document.body).color") == ink
    assert not breaks.is_visible(".top")
    assert breaks.is_visible("h1")
    breaks.emulate_media(media="screen", color_scheme="light")


def test_what_a_finding_saves_leads_to_the_one_that_saves_it_already(opened: Open) -> None:
    (first,) = report().findings
    owned = msgspec.structs.replace(
        first,
        rule="small-grid",
        also=first.rule,
        saving_us=2_000.0,
        share_of_step=0.06,
        saving_low_us=-1_000.0,
        saving_high_us=3_000.0,
    )
    sure = msgspec.structs.replace(first, rule="hotspot", saving_low_us=9_000.0, saving_high_us=15_000.0)
    whole = msgspec.structs.replace(sure, saving_high_us=35_000.0)
    replay = ReplayRow(
        rank=0, step_us=35_000.0, recorded_us=35_000.0, error=0.0, unexplained=0.0, pace=1.0,
        critical_path=[], savings_of_us=35_000.0,
    )  # fmt: skip
    maybe = msgspec.structs.replace(whole, rule="dtype-casts", saving_us=0.0, saving_condition="it fits")
    page = opened(rendered(report(findings=[first, owned, sure, whole, maybe], replay=replay)))
    shown = [text.replace("\N{NO-BREAK SPACE}", " ") for text in page.locator(".saves").all_inner_texts()]
    assert shown[0] == "saves about 12.6 ms per step"
    assert shown[1].startswith("saves about 12.6 ms per step alone, 2.00 ms on top of those above")
    assert shown[1].endswith("likely -1.00 ms to 3.00 ms")
    assert shown[2].endswith("likely 9.00–15.0 ms")
    assert shown[3].endswith("likely 9.00 ms or more")  # what is left of a step is more than nothing
    assert shown[4] == "saves about 12.6 ms per step if it fits"
    assert "Estimate: " in page.locator("[data-rule=dtype-casts]").inner_text()
    page.click(".saves >> text=overhead-bound")
    page.wait_for_selector(".finding.lit")
    assert page.get_attribute(".finding.lit", "data-rule") == "overhead-bound"
