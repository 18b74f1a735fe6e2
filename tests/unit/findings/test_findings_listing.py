"""How findings and explanations look, and that names from a trace cannot reach the terminal."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from command import SMALL, kinetoscope
from kinetoscope.document import Evidence, FindingRow, FindingsListing
from kinetoscope.errors import UsageError
from kinetoscope.findings.documentation import SECTIONS, documentation
from kinetoscope.findings.glossary.explanation import explanation, glossary
from kinetoscope.render.json import indented
from kinetoscope.render.terminal import show
from kinetoscope.views import explanation as explanation_view
from kinetoscope.views import findings as view

HOSTILE = "[red]k\x1b[31m\u202eernel[/red] <script>\nnext"


def finding(**changes: object) -> FindingRow:
    fields: dict[str, object] = {
        "rule": "hotspot",
        "severity": "high",
        "title": "A kernel",
        "saving_us": 1234.5,
        "saving_basis": "a basis",
        "evidence": [Evidence(text="seen", start_us=110.0, end_us=120.0, events=(1, 2, 3, 4, 5, 6))],
        "advice": "do it",
        "share_of_step": 0.25,
        "saving_alone_us": 1230.0,
        "saving_on_critical_path": True,
    }
    return FindingRow(**(fields | changes))  # type: ignore[arg-type]


def shown(*findings: FindingRow, width: int = 100, most: int = 0) -> str:
    page = io.StringIO()
    console = Console(file=page, width=width, highlight=False, markup=False, emoji=False)
    show(view.listing(FindingsListing(findings=list(findings), start_us=100.0), most), console)
    return page.getvalue()


def explained(word: str | None) -> str:
    page = io.StringIO()
    console = Console(file=page, width=100, highlight=False, markup=False, emoji=False)
    if word is None:
        show(explanation_view.glossary(glossary()), console)
    else:
        show(explanation_view.explanation(explanation(word)), console)
    return page.getvalue()


def test_those_that_a_limit_leaves_out_are_counted() -> None:
    page = shown(finding(title="One"), finding(title="Two", severity="low"), finding(title="Three"), most=1)
    assert page.splitlines()[0] == "3 findings  2 high · 1 low"
    assert "One" in page
    assert "Two" not in page
    assert "… and 2 findings more" in page


def test_a_finding_shows_all_it_has() -> None:
    page = shown(
        finding(
            source="train.py:12", proof="kinetoscope tune -- train.py", snippet="x = 1\ny = 2", ranks=[0, 3]
        )
    )
    for part in (
        "hotspot", "high", "about 1.23 ms per step", "25.0 % of the step; a basis", "do it", "x = 1",
        "y = 2", "train.py:12",
        "at 10.0 µs", "events 1, 2, 3, 4…", "kinetoscope tune -- train.py", "ranks 0, 3",
        "kinetoscope explain hotspot",
    ):  # fmt: skip
        assert part in page, part


def test_a_saving_is_told_apart_from_what_it_is_about_and_says_why_it_stands_where_it_does() -> None:
    page = shown(
        finding(affected_us=5000.0, saving_alone_us=3000.0, stands_below="its advice has cost time"),
        width=160,
    )
    assert (
        "affects  5.00 ms per step, saves about 3.00 ms per step alone, 1.23 ms on top of those above" in page
    )
    assert "its advice has cost time" in page


def test_what_a_finding_is_about_is_left_out_where_its_advice_saves_more() -> None:
    page = shown(finding(affected_us=1000.0, saving_us=1230.0, saving_alone_us=1230.0), width=160)
    assert "about 1.23 ms per step" in page
    assert "affects" not in page


def test_the_lines_that_a_finding_is_about_are_named_with_their_function() -> None:
    page = shown(finding(source="train.py:12", lines=["train.py:12 step", "model.py:3 Block.forward"]))
    assert "train.py:12  in step" in page
    assert "model.py:3 Block.forward" in page


def test_a_listing_without_findings_says_so() -> None:
    assert "Nothing found" in shown()


def test_a_condition_stands_with_the_saving_and_its_basis() -> None:
    page = shown(finding(saving_us=0.0, saving_alone_us=3000.0, saving_condition="inputs come again"))
    assert " ".join(page.split()).count("about 3.00 ms per step if inputs come again (a basis)") == 1
    assert "of the step" not in page  # it has no share of what all save together


@pytest.mark.parametrize(
    "field",
    ["rule", "title", "saving_condition", "saving_basis", "advice", "source", "proof", "snippet", "severity"],
)
def test_hostile_text_is_shown_and_not_obeyed(field: str) -> None:
    page = shown(finding(**{field: HOSTILE}))
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert "[red]k" in page.replace("\n", "")


@pytest.mark.parametrize("width", [60, 80, 100])
def test_a_page_of_findings_fits_its_width(width: int) -> None:
    page = shown(finding(title="word " * 60, advice="word " * 60, source="a" * 200), width=width)
    assert max(len(line.rstrip()) for line in page.splitlines()) <= width


def test_json_has_the_contracts_keys() -> None:
    row = json.loads(indented(view.document(FindingsListing(findings=[finding()]))))["findings"][0]
    contract = {"rule", "severity", "title", "saving_us", "saving_basis", "evidence", "advice", "source"}
    assert contract <= set(row)
    assert set(row["evidence"][0]) == {"text", "start_us", "end_us", "events"}


@pytest.mark.parametrize("slug", documentation())
def test_every_rule_is_explained(slug: str) -> None:
    page = explained(slug)
    assert slug in page
    assert all(heading in page for heading in SECTIONS)
    assert "``" not in page


def test_terms_and_kernel_names_are_explained() -> None:
    assert "Linear with a bias" in explained("aten::addmm")
    assert "cuBLAS" in explained("nvjet_sm90_tst_64x8_64x16_2x4_h_bz_TNT")
    assert "overhead-bound" in explained(None)
    assert "aten::addmm" in explained(None)
    assert "overhead-bound" in explained("overhead_bound")


def test_an_unknown_word_is_an_error_with_a_way_out() -> None:
    with pytest.raises(UsageError) as caught:
        explained("aten::addm")
    assert "aten::addmm" in str(caught.value)
    with pytest.raises(UsageError):
        explained(HOSTILE)


def test_findings_and_explain_run_as_commands() -> None:
    done = kinetoscope("findings", SMALL, "--json")
    assert done.returncode == 0
    assert "overhead-bound" in {row["rule"] for row in json.loads(done.stdout)["findings"]}
    assert kinetoscope("findings", SMALL).returncode == 0
    assert kinetoscope("explain", "sync-in-step").returncode == 0
    assert kinetoscope("explain", "no such word").returncode == 2
