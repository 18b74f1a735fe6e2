"""Rules on recordings that have nothing, or almost nothing, in them; and ranks put together."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

import traces
from kinetoscope.findings import registry
from kinetoscope.findings.model import Finding, Saving
from kinetoscope.findings.rank_view import RankView
from kinetoscope.findings.registry import Rule, find
from kinetoscope.recording.manifest import Manifest, RankRecord, StepTimings, TimedSteps
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.model import Trace


def launch_bound(rank: int, gap_us: float) -> Trace:
    events = [
        traces.step(1, 0, 10 * gap_us),
        traces.step(2, 10 * gap_us, 10 * gap_us),
        traces.step(3, 20 * gap_us, 10 * gap_us),
    ]
    for i in range(30):
        at = i * gap_us + 1
        events.append(traces.host("aten::relu", at, gap_us - 2))
        events.append(traces.call("cudaLaunchKernel", at + gap_us - 5, 2, i + 1))
        events.append(traces.kernel("relu", at + gap_us - 1, 2, i + 1))
    return traces.trace(*events, rank=rank)


def test_nothing_is_found_in_nothing() -> None:
    assert find(LoadedRun(())) == []
    assert find(LoadedRun((traces.nothing(),))) == []


def test_one_host_event_says_only_that_it_is_little() -> None:
    found = find(LoadedRun((traces.trace(traces.host("aten::add", 5, 5)),)))
    assert {finding.rule for finding in found} == {"too-few-steps"}


@pytest.mark.parametrize(("timed", "found"), [(2, True), (3, False)])
def test_two_recorded_steps_are_enough_where_the_steps_that_were_timed_say_how_they_differ(
    timed: int, found: bool
) -> None:
    steps_s = (0.5,) * timed
    before = TimedSteps(step_s=steps_s, host_s=steps_s)
    manifest = Manifest(ranks=(RankRecord(rank=0, steps=StepTimings(before=before)),))
    trace = traces.trace(traces.step(1, 0, 9), traces.step(2, 10, 9), traces.host("aten::add", 2, 5))
    rules = {finding.rule for finding in find(LoadedRun((trace,), manifest=manifest))}
    assert ("too-few-steps" in rules) is found


def test_one_device_event_without_a_launch() -> None:
    found = find(LoadedRun((traces.trace(traces.kernel("k", 0, 10)),)))
    assert all(finding.saving.us <= 10 for finding in found)


def test_ranks_that_show_the_same_become_one_finding() -> None:
    run = LoadedRun((launch_bound(0, 20), launch_bound(1, 40)))
    found = [finding for finding in find(run) if finding.rule == "overhead-bound"]
    assert len(found) == 1
    assert found[0].ranks == (0, 1)
    assert found[0].rank == 1  # the one that would save most
    # Ten launches per step, each 38 of 40 µs idle; the first gap of all starts with the window.
    assert 340 <= found[0].saving.us <= 400


def test_the_registry_says_whose_a_finding_is_and_drops_what_saves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def made_up(view: RankView) -> Iterable[Finding]:
        for share in (0.2, 0.001):
            saving = Saving(200 * share, "", True, share, unreplayed_us=200 * share)
            yield Finding(subject=f"{share}", title="", saving=saving, evidence=[], advice="")
        saving = Saving(100, "", True, 0.5, unreplayed_us=100)
        yield Finding(subject="capped", title="", saving=saving, evidence=[], advice="", at_most="low")
        if view.first:
            saving = Saving(0, "", False, 0)
            yield Finding(
                subject="of one rank", title="", saving=saving, evidence=[], advice="", at_least="medium"
            )

    monkeypatch.setattr(registry, "rules", lambda: {"made-up": Rule("made-up", made_up)})
    found = find(LoadedRun((traces.nothing(), launch_bound(1, 20))))
    assert {finding.rule for finding in found} == {"made-up"}
    assert [(finding.subject, finding.severity, finding.ranks) for finding in found] == [
        ("capped", "low", (0, 1)),
        ("0.2", "high", (0, 1)),
        ("of one rank", "medium", ()),
    ]


def test_findings_are_remembered_per_run() -> None:
    run = LoadedRun((launch_bound(0, 20),))
    assert find(run) is find(run)
