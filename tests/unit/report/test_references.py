"""Rows name what they are about, so that nothing reads sentences; the page's types are the rows' own."""

from __future__ import annotations

import runpy

import msgspec

from cases.recorded import recorded
from command import ROOT
from kinetoscope.document.collect.report import build
from kinetoscope.document.findings import FindingRow
from kinetoscope.render.blocks import Text
from kinetoscope.trace.damage import DAMAGES, counts_bytes
from kinetoscope.views import findings
from report_sample import report


def test_the_page_s_types_are_those_of_the_rows() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "web_types.py"))
    assert script["TARGET"].read_text("utf-8") == script["written"](), "run python scripts/web_types.py"


def test_a_finding_names_the_kernels_that_it_shows() -> None:
    run = recorded("kernel-variance", "before")
    assert run is not None
    document = build(run)
    (row,) = [row for row in document.findings if row.rule == "kernel-variance"]
    assert row.kernels == [row.subject]
    assert row.subject in {kernel.name for kernel in document.kernels}


def test_a_saving_links_to_the_finding_that_has_most_of_it() -> None:
    (first, *_) = report().findings
    owned = msgspec.structs.replace(first, saving_us=0.0, also="launch-gap", above=["launch-gap"])
    before, link, after = findings.saving_parts(report(), owned)
    assert link == Text("launch-gap", "", "finding", "launch-gap")
    assert findings.saving(report(), owned) == f"{before}launch-gap{after}"


def test_a_finding_whose_savings_are_mostly_anothers_says_whose() -> None:
    run = recorded("many-tiny-kernels", "before")
    assert run is not None
    rows: list[FindingRow] = build(run).findings
    rules = [row.rule for row in rows]
    for at, row in enumerate(rows):
        assert row.above == ([row.also] if row.also else [])
        assert all(rule in rules[:at] for rule in row.above)


def test_damages_know_whether_they_count_bytes() -> None:
    counted = {code for code in DAMAGES if counts_bytes(code)}
    assert counted == {"unreadable-bytes", "unreadable-metadata", "trailing-junk"}
