"""How large the report's page is, how soon it is drawn, and what its frames cost while the timeline moves.

    python benchmarks/page.py TRACE.json.gz [--events 10000 100000 300000] [--copies 4] [--rounds 3]

The first so many events of a trace, all of it, and several copies one after the other. Needs playwright and a
chromium. Frames: fifteen pans at each of four zooms, drawn by the CPU.
"""

from __future__ import annotations

import argparse
import gzip
import shutil
import tempfile
import time
from pathlib import Path

import msgspec
from playwright.sync_api import Browser, sync_playwright

from kinetoscope.document.collect.page import with_page
from kinetoscope.document.collect.report import build
from kinetoscope.sources.run import load
from kinetoscope.views import page as html

FRAMES = """async () => {
    const view = kinetoscope.timeline, end = view.store.end, times = [];
    for (const zoom of [1, 0.2, 0.02, 0.002]) {
        view.show(end * 0.3, end * (0.3 + zoom));
        for (let at = 0; at < 15; at++) {
            view.pan(20, 0);
            view.paint();
            times.push(view.drawn);
            await new Promise(requestAnimationFrame);
        }
    }
    const started = performance.now();
    view.statistics(0, end);
    return [times.sort((a, b) => a - b), performance.now() - started, view.store.length];
}"""
DRAWN = """() => new Promise(done => {
    const look = () => window.kinetoscope?.timeline.drawn > 0 ? done() : setTimeout(look, 5);
    look();
})"""
HEAD = "| events | drawn | page | written in | opens in | frame, median | 95th | longest | sums of all |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trace", type=Path)
    parser.add_argument("--events", type=int, nargs="*", default=[10_000, 100_000, 300_000])
    parser.add_argument("--copies", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    data = arguments.trace.read_bytes()
    document = msgspec.json.decode(
        gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data, type=dict[str, msgspec.Raw]
    )
    events = msgspec.json.decode(document["traceEvents"], type=list[msgspec.Raw])
    print(HEAD, "|".join(["", *["---:"] * 9, ""]), sep="\n")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--headless", "--disable-gpu"]
        )
        for count in (*arguments.events, len(events)):
            made = written(Path(folder), document, events[:count])
            print(row(browser, made, count, arguments.rounds), flush=True)
        if arguments.copies:
            made = written(Path(folder), document, copied(events, arguments.copies))
            print(row(browser, made, len(events) * arguments.copies, 1), flush=True)


def copied(events: list[msgspec.Raw], copies: int) -> list[msgspec.Raw]:
    """Each copy a minute after the one before, its correlations apart."""
    found = list(events)
    for copy in range(1, copies):
        for event in map(msgspec.json.decode, events):
            if "ts" in event:
                event["ts"] += copy * 6e7
            if isinstance(arguments := event.get("args"), dict) and "correlation" in arguments:
                arguments["correlation"] += copy * 10**8
            found.append(msgspec.Raw(msgspec.json.encode(event)))
    return found


def written(folder: Path, document: dict[str, msgspec.Raw], events: list[msgspec.Raw]) -> tuple[Path, float]:
    trace, page = folder / "trace.json", folder / "page.html"
    trace.write_bytes(msgspec.json.encode({**document, "traceEvents": events}))
    started = time.perf_counter()
    run = load(trace)
    page.write_text(html.render(with_page(run, build(run)), [trace.name]))
    return page, time.perf_counter() - started


def row(browser: Browser, made: tuple[Path, float], events: int, rounds: int) -> str:
    page, seconds = made
    opened, (times, sums, drawn) = min(looked_at(browser, page) for _ in range(rounds))
    at = [times[len(times) // 2], times[len(times) * 95 // 100], times[-1], sums]
    shown = " | ".join(f"{ms:.0f} ms" if ms >= 10 else f"{ms:.1f} ms" for ms in at)
    size = page.stat().st_size / 1e6
    return f"| {events:,} | {drawn:,} | {size:.2f} MB | {seconds:.1f} s | {opened / 1000:.2f} s | {shown} |"


def looked_at(browser: Browser, path: Path) -> tuple[float, tuple[list[float], float, int]]:
    """Milliseconds from navigation to the first frame, and what ``FRAMES`` finds."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(f"{path.as_uri()}#timeline")
    page.evaluate(DRAWN)
    opened = page.evaluate("performance.getEntriesByName('kinetoscope-drawn')[0].startTime")
    found = page.evaluate(FRAMES)
    page.close()
    return opened, found


if __name__ == "__main__":
    main()
