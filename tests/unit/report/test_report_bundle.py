"""The page's script and style, as they are committed: what web/ builds to, small, and asking nobody."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
BUNDLE = ROOT / "src" / "kinetoscope" / "render" / "templates"
SOURCES = ROOT / "web" / "src"


def digest() -> str:
    """As web/build.mjs makes it."""
    found = hashlib.sha256()
    names = {
        path.relative_to(SOURCES).as_posix(): path
        for path in SOURCES.rglob("*")
        if path.suffix in (".ts", ".css")
    }
    for name in sorted(names):
        found.update(f"{name}\n".encode())
        found.update(names[name].read_bytes())
    return found.hexdigest()[:16]


@pytest.mark.parametrize("name", ["page.js", "page.css"])
def test_the_bundle_is_built_from_its_sources(name: str) -> None:
    assert (BUNDLE / name).read_text("utf-8").startswith(f"/* {digest()} */"), "run `npm run build` in web/"


def test_the_bundle_is_small() -> None:
    assert sum((BUNDLE / name).stat().st_size for name in ("page.js", "page.css")) <= 300_000


def test_the_bundle_requests_no_url_and_inserts_no_markup() -> None:
    script, style = ((BUNDLE / name).read_text("utf-8") for name in ("page.js", "page.css"))
    assert set(re.findall(r"https?://[^\"'`\s)]+", script + style)) == {
        "http://www.w3.org/2000/svg", "https://ui.perfetto.dev"
    }  # fmt: skip
    for forbidden in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function("):
        assert forbidden not in script
    assert "url(" not in style
    assert "</script" not in script
