"""The labelled cases: each rule fires before the fix, is silent after it, and foresees what the fix saved."""

from __future__ import annotations

import statistics

import pytest
from msgspec.structs import replace

from cases.document import LEAST, MOST, NOT_PREDICTED, pages
from cases.recorded import (
    cases,
    findings,
    found,
    measured_bytes,
    measured_us,
    predicted_bytes,
    predicted_us,
    recorded,
)
from kinetoscope.findings.experience import interval
from kinetoscope.findings.rank_view import views
from kinetoscope.findings.registry import find, rules
from kinetoscope.recording.manifest import Manifest, RankRecord, StepTimings

# By rule the subjects of what can still be done once its case's fix is made.
NEXT = {"no-tensor-cores": {"bfloat16"}, "decode-gap": {"copies", "other"}}
SHOWN = [case for case in cases() if case in rules()]


@pytest.mark.parametrize("case", SHOWN)
def test_a_rule_fires_before_the_fix_and_is_silent_after(case: str) -> None:
    if recorded(case, "before") is None:
        pytest.skip("its programs have not been run on a GPU yet")
    assert found(case, "before")
    assert recorded(case, "after") is not None
    assert {finding.subject for finding in found(case, "after")} <= NEXT.get(case, set())


def test_predicted_savings_are_what_the_fixes_saved() -> None:
    ratios = [
        predicted_us(case) / measured
        for case in SHOWN
        if predicted_us(case) > 0 and (measured := measured_us(case)) is not None and measured > 0
    ]
    assert len(ratios) >= 30
    assert 0.5 <= statistics.median(ratios) <= 2
    assert sum(LEAST <= ratio <= MOST for ratio in ratios) >= 0.8 * len(ratios)
    assert all(1 / 3 <= ratio <= 3 for ratio in ratios)


@pytest.mark.parametrize("case", NOT_PREDICTED)
def test_what_is_not_predicted_promises_nothing(case: str) -> None:
    assert {finding.saving.us for finding in found(case, "before")} == {0}


def test_predicted_bytes_are_what_the_fixes_freed() -> None:
    for case in SHOWN:
        # A leak frees what the recorded steps have kept, more with every step. A fix may cost memory.
        if case != "memory-leak" and (measured := measured_bytes(case)) is not None and measured > 0:
            assert predicted_bytes(case) == pytest.approx(measured, rel=0.1), case


def test_a_first_step_after_settled_ones_is_not_cold() -> None:
    recording = recorded("cold-start-step", "before")
    assert recording is not None
    settled = StepTimings(settled=True, warmup_s=(0.001, 0.001), unprofiled_s=(0.001,))
    warmed = replace(recording, manifest=Manifest(ranks=(RankRecord(rank=0, steps=settled),)))
    assert "cold-start-step" not in {finding.rule for finding in find(warmed)}


def test_a_well_tuned_step_is_left_in_peace() -> None:
    assert recorded("well-tuned", "after") is not None
    assert {f.severity for f in findings("well-tuned", "after")} <= {"low", "info"}


@pytest.mark.parametrize("case", cases())
def test_findings_are_whole(case: str) -> None:
    for side in ("before", "after"):
        recording = recorded(case, side)
        if recording is None:
            continue
        all_found = findings(case, side)
        step_us = max(view.own_step_us for view in views(recording))
        assert sum(finding.remaining.saving_us for finding in all_found) <= 1.0001 * step_us
        for place, finding in enumerate(all_found):
            owner = finding.remaining.also
            assert not owner or owner in {above.rule for above in all_found[:place]}
            assert 0 <= finding.remaining.saving_us <= finding.remaining.saving_high_us
            assert finding.remaining.saving_low_us <= finding.remaining.saving_us
            assert finding.rule in rules()
            assert finding.title
            assert finding.advice
            assert finding.evidence
            assert finding.saving.us >= 0
            assert finding.saving.basis
            assert 0 <= finding.saving.share <= 1
            for seen in finding.evidence:
                assert seen.start_us <= seen.end_us
                assert len(seen.events) <= 12


def test_the_page_in_docs_is_what_the_rules_say() -> None:
    written = pages()
    assert {page: page.read_text() for page in written} == written, (
        "run: PYTHONPATH=src:tests python -m cases.document"
    )


@pytest.mark.parametrize("case", SHOWN)
def test_what_was_measured_lies_within_what_findings_say(case: str) -> None:
    measured = measured_us(case)
    if measured is None or predicted_us(case) <= 0:
        pytest.skip("predicts nothing, or was not measured")
    least, most = interval(case)
    assert least <= measured / predicted_us(case) <= most
