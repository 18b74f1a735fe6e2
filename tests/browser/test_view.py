"""``kinetoscope view``, and what it hands over to Perfetto, for which another window stands."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from browsing import ready
from command import RECORDING

PERFETTO = "https://ui.perfetto.dev"
# Answers the third ping, as a page does that takes a while to start.
STAND_IN = """<script>
let pings = 0;
addEventListener("message", ({data, source, origin}) => {
    if (data === "PING") { if (++pings >= 3) source.postMessage("PONG", origin); }
    else window.got = {title: data.perfetto.title, bytes: data.perfetto.buffer.byteLength, pings};
});
</script>"""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    command = [sys.executable, "-m", "kinetoscope", "view", str(RECORDING), "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130


def test_a_trace_is_served_and_handed_over_to_perfetto(browser: Any, address: str) -> None:
    assert address.startswith("http://127.0.0.1:")
    context = browser.new_context()
    asked: list[str] = []
    context.on("request", lambda request: asked.append(request.url.split("#")[0]))
    context.route(f"{PERFETTO}/**", lambda route: route.fulfill(body=STAND_IN, content_type="text/html"))
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.goto(f"{address}#timeline&t=1000-2000")
    ready(page)
    assert asked == [address]
    origin = page.evaluate("kinetoscope.timeline.store.timeline.origin_ns")
    with context.expect_page() as opening:
        page.click("text=open in Perfetto")
    other = opening.value
    other.wait_for_function("window.got", timeout=20_000)
    found = other.evaluate("window.got")
    assert found["title"] == RECORDING.name
    assert found["bytes"] > 100_000
    assert found["pings"] >= 3
    start, end = origin + 1_000_000, origin + 2_000_000
    assert f"visStart={start}&visEnd={end}" in other.url
    assert "PinTracksByRegex" in other.url
    assert set(asked) == {address, f"{PERFETTO}/", f"{address}trace.pftrace"}
    assert complaints == []
    context.close()


def test_nothing_is_left_when_it_is_asked_to_end(tmp_path: Path) -> None:
    environment = {**os.environ, "BROWSER": "true", "XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "kinetoscope", "view", str(RECORDING)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        deadline = time.monotonic() + 20
        while not list(tmp_path.rglob("open.html")) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert list(tmp_path.rglob("open.html"))
        process.terminate()
        assert process.wait(20) == 128 + signal.SIGTERM
    assert list(tmp_path.rglob("open.html")) == []
