"""A headless Chromium, and pages that must neither ask anybody for anything nor complain."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from browsing import Open, ready

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SWITCHES = [
    "--no-sandbox",
    "--headless",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
]


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("no chromium here")
    with playwright.sync_playwright() as started:
        instance = started.chromium.launch(executable_path=CHROMIUM, args=SWITCHES)
        yield instance
        instance.close()


@pytest.fixture(scope="module")
def opened(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Open]:
    """Opens pages as files. At the end of the module none of them has asked or complained."""
    folder: Path = tmp_path_factory.mktemp("pages")
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(5_000)
    requests: list[str] = []
    complaints: list[str] = []
    files: list[str] = []

    def open_page(text: str) -> Any:
        path = folder / f"page{len(files)}.html"
        path.write_text(text, encoding="utf-8")
        files.append(path.as_uri())
        page = context.new_page()
        page.on("request", lambda request: requests.append(request.url.split("#")[0]))
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(path.as_uri())
        ready(page)
        return page

    yield open_page
    assert complaints == []
    assert {url for url in requests if not url.startswith("data:")} == set(files)
    context.close()
