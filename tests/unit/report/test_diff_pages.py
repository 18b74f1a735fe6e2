"""A comparison rendered: a screenful, a comment, a page, annotations; findings as SARIF."""

from __future__ import annotations

import io
import json
import re
from functools import cache

import msgspec
import pytest
from rich.console import Console

from cases.recorded import recorded
from kinetoscope.comparison.difference import difference
from kinetoscope.comparison.gates import parse
from kinetoscope.document.collect.difference import build
from kinetoscope.document.difference import Difference, DrawnWork
from kinetoscope.render import markdown, sarif
from kinetoscope.render.blocks import Heading, Table
from kinetoscope.render.terminal import SCREENFUL
from kinetoscope.views import difference as view
from kinetoscope.views import findings as findings_view
from kinetoscope.views import github, page
from page_data import page_data
from report_sample import report

GATES = ("launches > 0", "syncs > 0", "step_time > 3%", "graph_breaks > 0")


@cache
def found(case: str = "sync-in-step") -> Difference:
    before, after = recorded(case, "before"), recorded(case, "after")
    assert before is not None
    assert after is not None
    gates = [parse(text) for text in GATES]
    return build(difference([after], [before]), (["AFTER"], ["BEFORE"]), (1, 1), gates, page=True)


def hostile() -> Difference:
    """Names that would close a cell, run a script, or command a workflow."""
    evil = "<script>alert(1)</script>|x`y`\n::error::\x1b[2Jend"
    document = found()
    changes = [msgspec.structs.replace(change, name=evil, source=evil) for change in document.changes]
    gates = [msgspec.structs.replace(gate, culprit=evil, source="a,b:c.py:3") for gate in document.gates]
    return msgspec.structs.replace(document, changes=changes, gates=gates, code=f"-{evil}\n+```\n")


def comment(document: Difference) -> str:
    return markdown.render(view.blocks(document, "file"))


def printed(document: Difference, width: int, *, whole: bool = False) -> str:
    stream = io.StringIO()
    console = Console(file=stream, width=width, color_system=None, highlight=False)
    view.show(document, console, whole=whole)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("case", "width"), [("sync-in-step", 80), ("sync-in-step", 200), ("graph-break", 100)]
)
def test_the_terminal_shows_a_screenful_with_the_gates(case: str, width: int) -> None:
    text = printed(found(case), width)
    assert len(text.splitlines()) <= SCREENFUL
    for gate in GATES:
        assert f"{gate}:" in text
    assert max(map(len, text.splitlines())) <= width or width == 80


def test_the_whole_listing_shows_every_change() -> None:
    text = printed(found(), 200, whole=True)
    assert all(change.name[:20] in text for change in found().changes)


def test_the_gates_failed_and_say_who_did_it() -> None:
    gates = {gate.name: gate for gate in found().gates}
    assert found().failed == ["launches > 0", "syncs > 0", "graph_breaks > 0"]
    assert not gates["step_time"].failed, "single runs of a host-bound step"
    assert "Memcpy DtoH" in gates["launches"].culprit
    assert "_local_scalar_dense" in gates["syncs"].culprit
    assert "cannot be judged" in gates["graph_breaks"].words


def test_a_review_begins_with_what_failed() -> None:
    assert comment(found()).lstrip().startswith("### ❌ pieces of device work: 81 → 96; ")


def test_times_that_may_be_noise_have_no_rows() -> None:
    step = found().step
    assert step is not None
    unknown = msgspec.structs.replace(step, verdict="cannot tell")
    document = msgspec.structs.replace(found(), step=unknown, device_time=None)
    noise = [change for change in document.changes if view.is_noise(document, change)]
    text = comment(document)
    assert f"{len(noise)} changes of times or some steps alone together: it may be noise" in text
    assert not any(f"`{change.name}`" in text for change in noise)
    assert all(change.name[:20] in printed(document, 200, whole=True) for change in noise)


def test_a_comment_is_small_and_shows_names_as_they_are() -> None:
    text = comment(hostile())
    assert len(text) < 20_000
    assert "<script>" not in re.sub(r"(`+).*?\1", "", text.split("<details>")[0])
    assert "\x1b" not in text
    assert text.count("```") == 2


def test_the_page_needs_nothing_and_holds_names_as_data() -> None:
    text = page.render_difference(hostile())
    assert "alert(1)" not in text
    assert not re.findall(r"(?:src|href)=(?!\"data:,\")", text)
    assert "default-src 'none'" in text


def test_its_timeline_is_one_step_of_each() -> None:
    drawn = found().timelines
    assert drawn is not None
    data = page_data(page.render_difference(found()))
    lanes = data.report["page"]["timeline"]["lanes"]
    within = [[piece for piece in side if piece.start_us >= 0] for side in drawn]
    for rank, side in enumerate(within):
        rows = [
            row
            for lane in lanes
            if lane["rank"] == rank and lane["kind"] == "stream"
            for row in range(lane["first"], lane["first"] + lane["count"])
        ]
        shown = [(data.columns["start"][row], data.columns["duration"][row]) for row in rows]
        assert sorted(shown) == sorted(
            (round(1000 * piece.start_us), round(1000 * piece.duration_us)) for piece in side
        )
    assert list(data.sentences["sides"]) == ["base", "new"]


def test_steps_are_aligned_by_graph_where_both_have_graphs() -> None:
    piece = DrawnWork(
        name="k", category="copy", start_us=0.0, duration_us=5.0, lane=0, call="0/0", aligned_us=3.0
    )
    other = msgspec.structs.replace(piece, call=None, aligned_us=9.0)
    both = msgspec.structs.replace(found(), timelines=([piece, other], [piece]))
    data = page_data(page.render_difference(both))
    kinds = [lane["kind"] for lane in data.report["page"]["timeline"]["lanes"]]
    assert kinds == ["stream", "annotation"] * 2  # the calls stand below their work
    assert data.columns["aligned_start"] == [3000, 9000, 3000, 3000, 3000]
    assert "aligned_start" not in page_data(page.render_difference(found())).columns


def test_a_workflow_gets_one_command_a_line() -> None:
    lines = list(github.commands(hostile()))
    assert len(lines) >= 3
    for line in lines:
        assert re.match(r"::(error|warning) (file=[^,:]+,line=\d+,)?title=", line)
        assert "\n" not in line
    assert lines[0].startswith("::error file=a%2Cb%3Ac.py,line=3,title=kinetoscope%3A launches > 0::")


def test_a_summary_is_appended(tmp_path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setenv(github.SUMMARY, str(tmp_path / "summary"))
    (tmp_path / "summary").write_text("before\n")
    github.announce(found())
    assert (tmp_path / "summary").read_text() == f"before\n{markdown.render(view.blocks(found(), 'file'))}"
    assert len(capsys.readouterr().out.splitlines()) <= github.MOST


def test_findings_are_sarif_with_their_lines() -> None:
    document = report()
    placed = [msgspec.structs.replace(row, source="train.py:12") for row in document.findings]
    text = sarif.render(
        "1", findings_view.results(msgspec.structs.replace(document, findings=placed), ["REC"])
    )
    run = json.loads(text)["runs"][0]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert [rules[result["ruleIndex"]] for result in run["results"]] == [row.rule for row in placed]
    where = run["results"][0]["locations"][0]["physicalLocation"]
    assert where == {"artifactLocation": {"uri": "train.py"}, "region": {"startLine": 12}}
    assert {result["level"] for result in run["results"]} <= {"error", "warning", "note", "none"}


def test_the_page_folds_changes_that_hardly_matter() -> None:
    document = found()
    assert document.step is not None
    small = msgspec.structs.replace(
        document.changes[-1], name="hardly", delta_us=1e-4 * document.step.base_us, parts=[]
    )
    large = msgspec.structs.replace(small, name="much", delta_us=0.5 * document.step.base_us)
    known = msgspec.structs.replace(document.step, verdict="slower")
    changed = msgspec.structs.replace(document, step=known, changes=[*[small] * 10, large, small])
    blocks = view.page(changed)["below"]
    shown, folded = (str(block) for block in blocks if isinstance(block, Table) and "hardly" in str(block))
    assert any(isinstance(block, Heading) and block.folded for block in blocks)
    assert shown.count("'hardly'") == view.SHOWN
    assert shown.count("'much'") == 1
    assert folded.count("'hardly'") == 3


def test_the_page_folds_times_that_may_be_noise() -> None:
    step = found().step
    assert step is not None
    unknown = msgspec.structs.replace(step, verdict="cannot tell")
    document = msgspec.structs.replace(found(), step=unknown, device_time=None)
    noise = [change for change in document.changes if view.is_noise(document, change)]
    blocks = view.page(document)["below"]
    (place,) = (
        place
        for place, block in enumerate(blocks)
        if isinstance(block, Heading) and block.folded and "it may be noise" in str(block)
    )
    shown, folded = str(blocks[:place]), str(blocks[place + 1])
    assert noise
    assert all(change.name in folded for change in noise)
    assert any(change.name in shown for change in document.changes if change not in noise)


def test_a_comment_names_the_largest_parts() -> None:
    whole = next(change for change in found().changes if change.parts)
    assert all(markdown.code(part.name) in comment(found()) for part in whole.parts[: view.FILE_PARTS])
