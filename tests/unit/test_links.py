"""Links of the pages outside of the site, and links of the site that leave it, lead to files that are there;
those within the site are checked while it is built (`make site`)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from command import ROOT

LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)(?:#([^)\s]+))?\)")
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted(ROOT.glob("examples/**/*.md")),
    *sorted(ROOT.glob("docs/**/*.md")),
]
GENERATED = {ROOT / "docs" / "reference" / name for name in ("cli.md", "python.md")} | {
    ROOT / "docs" / "gallery" / "index.md"
}


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    for path, anchor in LINK.findall(page.read_text("utf-8")):
        target = (page.parent / path).resolve()
        assert target in GENERATED or target.exists(), f"{page}: {path}"
        if anchor and target not in GENERATED:
            assert anchor in anchors(target), f"{page}: {path}#{anchor}"
