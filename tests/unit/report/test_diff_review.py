"""The parts of a comparison that a reviewer reads first: what failed and where, its share of the step."""

from __future__ import annotations

import io
import os

from msgspec.structs import replace
from rich.console import Console

from kinetoscope.comparison.changes import Change
from kinetoscope.comparison.comparability import surroundings
from kinetoscope.comparison.compiler import Fact
from kinetoscope.comparison.difference import difference
from kinetoscope.comparison.gates import parse
from kinetoscope.document.collect.difference import build
from kinetoscope.document.difference import Difference, FindingChange
from kinetoscope.render import markdown
from kinetoscope.sources.run import LoadedRun
from kinetoscope.views import difference as view
from kinetoscope.views import github
from traces import Event, call, host, kernel, step, trace

HERE = f"{os.getcwd()}/train.py:8"


def run(waits: int = 0, *, rank: int = 0) -> LoadedRun:
    """Three steps of 1 ms with a kernel, and so many waits of the host behind it."""
    events: list[Event] = []
    for number in (1, 2, 3):
        at = 1000.0 * number
        events += [step(number, at, 1000), host("aten::mm", at + 1, 8)]
        events += [call("cudaLaunchKernel", at + 2, 2, number), kernel("gemm", at + 10, 400, number)]
        for wait in range(waits):
            events += [host("aten::item", at + 420 + 40 * wait, 30)]
            events += [call("cudaStreamSynchronize", at + 421 + 40 * wait, 20, 0)]
    return LoadedRun((trace(*events, rank=rank),))


def compared(waits: int = 0, *changes: Change, facts: tuple[Fact, ...] = ()) -> Difference:
    """Another version with so many waits more; or a slower one, because of these changes."""
    found = build(difference([run()], [run(waits)]), (["base"], ["new"]), (1, 1), [parse("syncs > 0")])
    if not changes and not facts:
        return found
    assert found.step is not None
    return replace(
        found, step=replace(found.step, verdict="slower"), changes=list(changes), facts=list(facts)
    )


def comment(found: Difference) -> str:
    return markdown.render(view.blocks(found, "file"))


def test_the_review_begins_with_what_failed_and_not_with_a_time_that_is_not_known() -> None:
    first = comment(compared(2)).splitlines()[0]
    assert first.startswith("### ❌ calls that wait for the device: 0 → 2")
    assert first.endswith("the step's time: cannot tell")


def test_a_change_has_its_share_of_the_base_s_step() -> None:
    change = Change(kind="kernel", what="slower", name="gemm", delta_us=-125.0, launches=(1.0, 1.0))
    (row,) = [line for line in comment(compared(0, change)).splitlines() if "gemm" in line]
    assert "\N{MINUS SIGN}12.5 %" in row


def test_idle_time_is_said_in_words() -> None:
    change = Change(kind="idle", what="less", name="launch-bound", cause="launch-bound", delta_us=-90.0)
    assert "less idle time" in comment(compared(0, change))


def test_lines_are_as_seen_from_the_repository() -> None:
    found = compared(2)
    gates = [replace(gate, source=HERE) for gate in found.gates]
    new = FindingChange(rule="sync-in-step", title="a wait", saving_us=1.0, severity="low", source=HERE)
    changes = [replace(change, source=HERE) for change in found.changes]
    found = replace(found, gates=gates, findings_come=[new], changes=changes)
    error, warning = github.commands(found)
    assert error.startswith("::error file=train.py,line=8,")
    assert warning.startswith("::warning file=train.py,line=8,")
    assert "train.py:8" in comment(found)
    assert os.getcwd() not in comment(found)


def test_a_count_names_what_grew_most() -> None:
    (syncs,) = [row for row in compared(2).counts if row.name == "syncs"]
    assert syncs.most == "aten::item, 0 → 2"
    assert all(row.most == "" for row in compared().counts)


def test_a_graph_break_has_a_row_of_its_own() -> None:
    change = Change(kind="kernel", what="slower", name="gemm", delta_us=125.0, launches=(1.0, 1.0))
    fact = Fact("graph_break", "added", "1 graph break added: print", HERE)
    rows = [line for line in comment(compared(0, change, facts=(fact,))).splitlines() if line.startswith("|")]
    assert [("print" in row, "train.py:8" in row) for row in rows if "print" in row] == [(True, True)]
    assert rows.index(next(row for row in rows if "print" in row)) < rows.index(
        next(row for row in rows if "gemm" in row)
    )


def test_a_line_is_there_however_long_the_reason() -> None:
    fact = Fact("recompilation", "added", f"1 recompilation added: {'a guard that failed, ' * 9}", HERE)
    found = replace(compared(), step=None, facts=[fact])
    console = Console(file=io.StringIO(), width=100, legacy_windows=False)
    view.show(found, console)
    assert isinstance(console.file, io.StringIO)
    assert "train.py:8  1 recompilation added" in console.file.getvalue()


def test_two_ranks_are_said_to_be_two() -> None:
    found = surroundings(run(), run(rank=1))
    assert found.comparability == "limited"
    assert found.why[0].startswith("they are two ranks, 0 and 1")


def test_nothing_is_called_faster_or_slower_of_two_that_are_not_comparable() -> None:
    for verdict in ("faster", "slower", "same"):
        found = compared()
        assert found.step is not None
        apart = replace(found, comparability="none", step=replace(found.step, verdict=verdict))
        assert ": of two that are not comparable (" in view.headline(apart)
        assert view.reason(apart)[0] == "What differs"
        assert comment(apart).startswith("### ⚪ ")


def of_host(*ops: tuple[str, float], marked: bool = True) -> LoadedRun:
    """A step of 100 µs with ops, each of so many µs."""
    events = [step(1, 1000, 100)] if marked else []
    events += [host(op, 1010.0 + 20 * place, us) for place, (op, us) in enumerate(ops)]
    return LoadedRun((trace(*events),))


def test_what_ran_otherwise_is_shown_however_little_time_it_takes() -> None:
    """An op of 0.1 µs in a step of 100 µs, and nothing else."""
    sides = [of_host(("aten::mm", 50))], [of_host(("aten::mm", 50), ("aten::to", 0.1))]
    found = build(difference(*sides), (["base"], ["new"]), (1, 1))
    assert "aten::to" in comment(found)
    assert "smaller change" not in comment(found)


def test_more_runs_are_no_advice_where_the_two_cannot_be_compared() -> None:
    sides = [of_host(("aten::mm", 50))], [of_host(("aten::mm", 50), marked=False)]
    found = build(difference(*sides), (["base"], ["new"]), (1, 1))
    assert found.comparability == "none"
    assert view.next_step(found) is None
