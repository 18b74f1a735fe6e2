"""Memory at its peak, and ranks compared: what is drawn is what the document says, and names stay names."""

from __future__ import annotations

import gzip
import json
import pickle
from itertools import cycle
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

import traces
from browsing import Open, go
from kinetoscope import numbers
from kinetoscope.analysis.ranks.comparison import compare
from kinetoscope.analysis.ranks.parts import part
from kinetoscope.document import GivenBackRow, MemoryBlock, MemoryPeak, RanksListing
from kinetoscope.document.collect import ranks as comparing
from kinetoscope.document.collect.memory import allocator_histories, peaks
from kinetoscope.document.page import Page
from kinetoscope.sources.run import LoadedRun, MemoryFiles, load
from kinetoscope.trace.read import read
from kinetoscope.views import page as html
from rank_sets import Fault, Job, recorded
from report_sample import HOSTILE, report
from snapshots import MAIN, MIB, Allocator, dump, frames

HELD = Path(__file__).parents[1] / "fixtures" / "h200_memory" / "generate"
AXE = Path(__file__).parents[2] / "web" / "node_modules" / "axe-core" / "axe.min.js"
Row = TypeVar("Row", bound=msgspec.Struct)


def estranged(row: Row) -> Row:
    """The same with a stranger's name for every text."""
    names = cycle(HOSTILE)

    def walked(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: walked(one) for key, one in value.items()}
        if isinstance(value, list):
            return [walked(one) for one in value]
        return next(names) if isinstance(value, str) else value

    return msgspec.convert(walked(msgspec.to_builtins(row, str_keys=True)), type(row), strict=False)


@pytest.fixture(scope="module")
def peak(tmp_path_factory: pytest.TempPathFactory) -> MemoryPeak:
    held = tmp_path_factory.mktemp("held") / "held.json"
    held.write_bytes(gzip.decompress(Path(f"{HELD}.json.gz").read_bytes()))
    memory = (MemoryFiles(0, Path(f"{HELD}.pickle.gz"), held),)
    return peaks(LoadedRun((traces.trace(traces.step(1, 0, 100)),), snapshots=memory)).peaks[0]


@pytest.fixture(scope="module")
def listing(tmp_path_factory: pytest.TempPathFactory) -> RanksListing:
    folder, parts = tmp_path_factory.mktemp("ranks"), []
    for rank, document in recorded(Job("late", ranks=3, steps=3, fault=Fault(2, "kernel"))):
        path = folder / f"rank{rank}.json"
        path.write_text(json.dumps(document))
        parts.append(part(read(path)))
    return comparing.listing(compare(parts), every=True, hangs=(), unread=())


def plain(text: str) -> str:
    return text.replace("\N{NO-BREAK SPACE}", " ")


HINTS = """left => {
    const canvas = document.querySelector(".blocks canvas"), hint = document.querySelector(".blocks .hint");
    const box = canvas.getBoundingClientRect(), found = new Set();
    for (let top = 1; top < box.height - 18; top += 2) {
        const place = {clientX: box.left + left, clientY: box.top + top, bubbles: true};
        canvas.dispatchEvent(new PointerEvent("pointermove", place));
        if (!hint.hidden) found.add(hint.textContent);
    }
    return [...found];
}"""


def written(block: MemoryBlock) -> str:
    line = f" · {block.line}" if block.line else ""
    return f"{numbers.size(block.bytes)} · {block.role} · {block.name or block.owner}{line}"


def large(peak: MemoryPeak, blocks: list[MemoryBlock]) -> set[str]:
    """Those that are at least three pixels high."""
    return {written(one) for one in blocks if one.bytes > peak.requested_bytes / 100}


def still(peak: MemoryPeak, width: float) -> tuple[int, list[MemoryBlock]]:
    """Of places where for three pixels nothing comes or goes, that with most large blocks; and its blocks."""
    found: tuple[int, list[MemoryBlock]] = (0, [])
    for left in range(1, int(width) - 1):
        low, high = ((left + apart) * peak.history_us / width for apart in (-1, 2))
        lives = [(one.start_us or 0, one.end_us or peak.history_us + 1) for one in peak.blocks]
        if any(low <= moment <= high for life in lives for moment in life):
            continue
        there = [one for one, (start, end) in zip(peak.blocks, lives, strict=True) if start < low < end]
        found = max(found, (left, there), key=lambda one: len(large(peak, one[1])))
    return found


def test_allocations_are_where_and_when_they_lay(opened: Open, peak: MemoryPeak) -> None:
    page = opened(html.render(report(memory_peaks=[peak]), ["x"]))
    go(page, "memory")
    left, there = still(peak, page.locator(".blocks canvas").bounding_box()["width"])
    assert len(large(peak, there)) > 2
    for by in ("in the order they came", "by address"):
        page.click(f"text={by}")
        found = {plain(text) for text in page.evaluate(HINTS, left)}
        assert large(peak, there) <= found <= set(map(written, there))


def test_what_was_given_back_is_named_and_a_timeline_reserves_nothing(opened: Open, peak: MemoryPeak) -> None:
    back = GivenBackRow(
        cause="empty_cache", line="train.py:7", times=3, steps=2, segments=9, bytes=6 << 30, again_bytes=0
    )
    timeline = msgspec.structs.replace(peak, moment="timeline", holders=[], blocks=[], stacks=[])
    page = opened(
        html.render(report(memory_peaks=[msgspec.structs.replace(peak, given_back=[back]), timeline]), ["x"])
    )
    go(page, "memory&peak=0")
    shown = " ".join(plain(page.inner_text("main")).split())
    assert "3 9 6.44 GB train.py:7 by empty_cache(), in 2 recorded steps; 0 B taken again" in shown
    assert "of the reserved" in shown
    go(page, "memory&peak=1")
    shown = plain(page.inner_text("main"))
    assert "at the peak of the memory timeline" in shown
    assert "of torch's profiler" in shown
    assert page.locator("#what-was-given-back-to-the-driver").count() == 0
    assert page.locator(".area .reserved, .legend .dash").count() == 0


def test_memory_begins_with_what_failed_and_leads_to_what_would_free_it(
    opened: Open, peak: MemoryPeak
) -> None:
    stack = ["/home/me/train.py:7 loss", "/home/me/train.py:9 main"]
    failed = msgspec.structs.replace(
        peak, moment="out of memory", failed_bytes=5 << 30, failed_by="loss", failed_line="train.py:7",
        failed_stack=stack,
    )  # fmt: skip
    (finding, *_) = report().findings
    findings = [
        msgspec.structs.replace(finding, saving_us=0.0, also=None, saving_bytes=freed)
        for freed in (0, 3 << 30)
    ]
    page = opened(html.render(report(memory_peaks=[peak, failed], findings=findings), ["x"]))
    go(page, "memory")
    assert "which requested 5.37 GB more in loss at train.py:7" in plain(page.inner_text("h1"))
    page.click("summary:has-text('5.37')")
    assert page.locator(".failed .chain li").count() == len(stack)
    assert plain(page.inner_text("#memory-frees")).endswith("frees about 3.22 GB at the peak")
    page.click("#memory-frees a")
    assert page.evaluate("location.hash") == "#overview&finding=1"
    go(page, "memory&peak=0")
    assert page.locator("#memory-frees, .failed").count() == 0


def test_an_allocation_leads_to_its_line_and_survives_a_reload(opened: Open, peak: MemoryPeak) -> None:
    page = opened(html.render(report(memory_peaks=[peak]), ["x"]))
    at, block = next((at, one) for at, one in enumerate(peak.blocks) if one.stack and one.line)
    go(page, f"memory&peak=0&block={at - 1}")
    page.focus(".blocks canvas")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("location.hash") == f"#memory&peak=0&block={at}"
    shown = plain(page.inner_text(".owner"))
    assert f"{numbers.size(block.bytes)} ({block.bytes:,} bytes)" in shown
    assert block.role in shown
    assert page.locator(".owner .chain li").count() == len(peak.stacks[block.stack])
    page.click(f".owner dd a:text-is('{block.line}')")
    assert page.evaluate("location.hash").startswith("#code&file=")
    assert page.evaluate("location.hash").endswith(f"&line={(block.line or '').rpartition(':')[2]}")


def test_who_had_the_memory_at_a_moment_that_is_chosen(opened: Open, peak: MemoryPeak) -> None:
    page = opened(html.render(report(memory_peaks=[peak]), ["x"]))
    at = len(peak.over_time) // 3
    sample = peak.over_time[at]
    go(page, f"memory&peak=0&at={at}")
    assert plain(page.inner_text("figure h3")).endswith(f"{numbers.size(sum(sample.bytes))} allocated")
    page.fill("[aria-label='filter owners at the chosen moment']", "parameter")
    parameters = sample.bytes[peak.roles.index("parameter")]
    rows = page.locator("[aria-label='owners at the chosen moment'] tbody tr td:first-child")
    assert rows.count() > 1
    drawn = [block for block in peak.blocks if block.role == "parameter" and block.start_us is None]
    assert sum(block.bytes for block in drawn) <= parameters
    page.focus(".instant input")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("location.hash") == f"#memory&peak=0&at={at + 1}"
    page.click(".area", position={"x": 1, "y": 90})
    assert page.evaluate("location.hash") == "#memory&peak=0&at=0"


def test_allocations_are_searched_by_anything_on_their_stacks(opened: Open, peak: MemoryPeak) -> None:
    page = opened(html.render(report(memory_peaks=[peak]), ["x"]))
    go(page, "memory")
    page.click("#allocations-by-time summary")
    frame = next(frame for stack in peak.stacks for frame in reversed(stack) if "forward" in frame)
    having = [one for one in peak.blocks if frame in peak.stacks[one.stack]]
    page.fill("[aria-label='filter allocations']", frame)
    rows = page.locator("[aria-label='allocations'] tbody tr")
    if page.locator("#allocations-by-time .rest button").count():
        page.click("#allocations-by-time .rest button")
    assert 0 < rows.count() == len(having) < len(peak.blocks)
    page.click("#allocations-by-time tbody button >> nth=0")
    assert plain(page.inner_text(".owner")).count(frame.rpartition(" ")[2])


def noted(folder: Path) -> tuple[MemoryPeak, Page]:
    """A snapshot in which the program had torch note an epoch, and a graph's private pool is idle in part."""
    allocator = Allocator()
    allocator.alloc(4 * MIB, frames(*MAIN))
    allocator.metadata, allocator.compiled = "epoch <3>", "0/1"
    first = allocator.alloc(3 * MIB, frames(*MAIN), pool=(0, 7))
    allocator.metadata, allocator.compiled = "", "N/A"
    allocator.free(first)
    run = load(dump(folder / "a.pickle", allocator))
    shown = Page(
        timeline=None, program=[], clocks=[], modules=[], frame_texts=[], roofs=[], benches=[], meanings={},
        allocator=allocator_histories(run),
    )  # fmt: skip
    return peaks(run).peaks[0], shown


def test_what_torch_notes_of_an_allocation_and_its_pool_are_shown(opened: Open, tmp_path: Path) -> None:
    peak, shown = noted(tmp_path)
    page = opened(html.render(msgspec.structs.replace(report(memory_peaks=[peak]), page=shown), ["x"]))
    at = next(place for place, one in enumerate(peak.blocks) if one.pool)
    go(page, f"memory&peak=0&block={at}")
    facts = plain(page.inner_text(".blocks .owner"))
    for words in ("noted by the program\nepoch <3>", "compiling\n0/1", "private pool\n0, 7"):
        assert words in facts
    assert "idle in private pools" in plain(page.inner_text("figure .legend"))
    page.locator(".area").hover(position={"x": page.locator(".area").bounding_box()["width"] - 2, "y": 50})
    assert "idle in private pools 17.8 MB" in plain(page.inner_text(".area .hint"))  # of 20 MiB all but 3
    go(page, "memory&peak=0&event=3")  # the pool's allocation
    assert "Noted by the program: epoch <3>" in plain(page.inner_text("#allocator-state"))
    page.fill("[aria-label='filter allocator events']", "epoch")
    assert page.locator("[aria-label='allocator events'] tbody tr").count() == 2


def test_the_wheel_zooms_where_the_pointer_is(opened: Open, peak: MemoryPeak) -> None:
    """With Ctrl nearer, about the moment below the pointer; with Shift along; alone it scrolls the page."""
    page = opened(html.render(report(memory_peaks=[peak]), ["x"]))
    go(page, "memory")
    canvas = page.locator(".blocks canvas").first
    middle = canvas.bounding_box()["width"] / 2
    before = page.evaluate(HINTS, middle)
    is_whole = """[...document.querySelectorAll(".blocks button")]
        .find(one => one.textContent === "all of it").disabled"""

    def turn(by: int, key: str = "") -> None:
        canvas.hover(position={"x": middle, "y": 40})
        if key:
            page.keyboard.down(key)
        page.mouse.wheel(0, by)
        if key:
            page.keyboard.up(key)

    turn(-30)
    turn(-200, "Control")
    page.wait_for_function(f"!({is_whole})")
    assert page.evaluate(HINTS, middle) == before, "the moment below the pointer stays there"
    edge = page.evaluate(HINTS, 2)
    turn(-100_000, "Shift")
    page.wait_for_function(f"({HINTS})(2).join() !== {json.dumps(','.join(edge))}")
    turn(2_000, "Control")
    page.wait_for_function(is_whole)


def test_the_allocator_is_stepped_through_event_by_event(opened: Open, peak: MemoryPeak) -> None:
    (history,) = allocator_histories(
        LoadedRun((), snapshots=(MemoryFiles(0, Path(f"{HELD}.pickle.gz"), None),))
    )
    bare = Page(
        timeline=None, program=[], clocks=[], modules=[], frame_texts=[], roofs=[], benches=[], meanings={},
        allocator=[history],
    )  # fmt: skip
    page = opened(html.render(msgspec.structs.replace(report(memory_peaks=[peak]), page=bare), ["x"]))
    snapshot = pickle.loads(gzip.decompress(Path(f"{HELD}.pickle.gz").read_bytes()))
    (entries,) = (trace for trace in snapshot["device_traces"] if trace)
    go(page, f"memory&peak=0&event={len(entries) - 1}")
    of_device = [one for one in snapshot["segments"] if one["device"] == history_device(snapshot)]
    allocated = sum(
        block["requested_size"]
        for one in of_device
        for block in one["blocks"]
        if block["state"] != "inactive"
    )
    reserved = sum(one["total_size"] for one in of_device)
    shown = plain(page.inner_text("#allocator-state"))
    assert f"then {numbers.size(allocated)} were allocated of {numbers.size(reserved)}" in shown
    page.click("text=event before")
    assert page.evaluate("location.hash") == f"#memory&peak=0&event={len(entries) - 2}"
    assert f"{len(entries) - 1} of {len(entries)}" in plain(page.inner_text("#allocator-state"))
    assert page.locator(".held .segment").count() == len(of_device)
    page.fill("[aria-label='filter allocator events']", "free_completed")
    page.click("[aria-label='allocator events'] tbody button >> nth=0")
    first = next(place for place, entry in enumerate(entries) if entry["action"] == "free_completed")
    assert page.evaluate("location.hash") == f"#memory&peak=0&event={first}"
    assert plain(page.inner_text("#allocator-state h3")).startswith(
        f"free_completed of {numbers.size(entries[first]['size'])} at 0x{entries[first]['addr']:x}"
    )
    axe_finds_nothing(page)


def history_device(snapshot: dict[str, Any]) -> int:
    return next(place for place, trace in enumerate(snapshot["device_traces"]) if trace)


def test_a_thousand_ranks_have_a_page_of_their_own(opened: Open, listing: RanksListing) -> None:
    page = opened(html.render_ranks(listing))
    assert page.locator(".top nav a").all_inner_texts() == ["Ranks"]
    assert page.inner_text("h1").startswith("Rank 2 (GPU")
    page.focus(".painted canvas")
    for key in ("ArrowDown", "ArrowDown", "ArrowDown", "ArrowRight"):
        page.keyboard.press(key)
    table = listing.ranks.paces
    own, usual = table.rows[2].own_us[1], table.own_us[1]
    assert own is not None
    assert usual is not None
    assert plain(page.inner_text("p.owner")) == (
        f"rank 2, {table.steps[1]}: {numbers.time(own)}, of all ranks {numbers.time(usual)} "
        f"(+{numbers.percent(own / usual - 1)})"
    )
    page.click("text=lateness")
    assert numbers.time(table.rows[2].blamed_us[1]) in plain(page.inner_text("p.owner"))
    assert page.locator("#collectives tbody tr").count() == len(listing.ranks.collectives)
    axe_finds_nothing(page)


def axe_finds_nothing(page: Any) -> None:
    if AXE.is_file():
        page.evaluate(AXE.read_text())
        found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        assert [v["id"] for v in found["violations"] if v["impact"] in ("serious", "critical")] == []


def test_names_of_strangers_are_text_there_too(opened: Open, peak: MemoryPeak, listing: RanksListing) -> None:
    document = report(memory_peaks=[estranged(peak)], ranks=estranged(listing.ranks))
    page = opened(html.render(document, ["x"]))
    for width in (390, 1280):
        page.set_viewport_size({"width": width, "height": 900})
        for place in ("memory&block=3", "ranks"):
            go(page, place)
            assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert "<script>window.hacked = 1</script>" in page.inner_text("main")
    assert page.evaluate("window.hacked") is None
    assert page.evaluate("document.scripts.length") == 1
