"""Which finding has which time of a step, and in which order they are told."""

from __future__ import annotations

from functools import cache

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import traces
from kinetoscope.analysis.replay import what_if
from kinetoscope.analysis.replay.change import ReplayChange, shorten, without_idle
from kinetoscope.analysis.time import intervals
from kinetoscope.findings import experience, savings
from kinetoscope.findings.ledger import settle
from kinetoscope.findings.model import Finding, Saving
from kinetoscope.findings.rank_view import views
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.model import Trace

KERNELS = 10


@cache
def late(rank: int = 0, kernel_us: float = 10) -> Trace:
    """Two steps of ten launches, 20 µs from one to the next, and of kernels that are shorter."""
    events = [traces.step(number + 1, number * 200, 200) for number in range(2)]
    for number in range(2 * KERNELS):
        at = number * 20 + 1
        events.append(traces.call("cudaLaunchKernel", at, 1, number + 1))
        events.append(traces.kernel(f"k{number % KERNELS}", at + 2, kernel_us, number + 1))
    return traces.trace(*events, rank=rank)


def finding(rule: str, saving: Saving, rank: int = 0, subject: str = "") -> Finding:
    return Finding(rule=rule, rank=rank, subject=subject, title="", saving=saving, evidence=[], advice="")


def test_what_two_findings_see_is_counted_once() -> None:
    run = LoadedRun((late(),))
    (view,) = views(run)
    all_gaps, some = savings.idle(view, view.gaps, ""), savings.idle(view, view.gaps[3:6], "")
    assert some.us < all_gaps.us
    first, second = settle(run, [finding("some", some), finding("all", all_gaps)])
    assert (first.rule, first.remaining.also) == ("all", None)
    assert first.remaining.saving_us == pytest.approx(all_gaps.us)
    assert (second.rule, second.remaining.saving_us) == ("some", pytest.approx(0, abs=0.1))
    assert second.remaining.also == "all"
    assert (first.severity, second.severity) == ("high", "info")  # worth a line, and nothing more
    assert second.saving.us == some.us


def test_a_cause_stands_before_its_symptom_where_it_explains_half_of_it() -> None:
    run = LoadedRun((late(),))
    (view,) = views(run)
    symptom = finding("symptom", savings.idle(view, view.gaps, ""))
    whole = intervals.union(view.gaps)
    for pieces, order in ((14, ["cause", "symptom"]), (5, ["symptom", "cause"])):
        cause = finding("cause", savings.idle(view, whole.head(pieces), ""))
        found = settle(run, [symptom, cause], {"symptom": "symptom"})
        assert [one.rule for one in found] == order
        assert sum(one.remaining.saving_us for one in found) == pytest.approx(symptom.saving.us, rel=0.02)


@pytest.mark.parametrize(
    ("kernel_us", "gone", "order"),
    [
        (12, 14, ["cause", "symptom"]),
        (8, 14, ["symptom", "cause"]),  # the host has most to do
        (12, 2, ["symptom", "cause"]),
    ],
)
def test_work_that_need_not_run_goes_before_launches_that_come_sooner(
    kernel_us: float, gone: int, order: list[str]
) -> None:
    run = LoadedRun((late(kernel_us=kernel_us),))
    (view,) = views(run)
    symptom = finding("symptom", savings.idle(view, view.gaps, ""))
    cause = finding("cause", savings.device(view, view.work.head(gone), "", "duration_ns"))
    assert cause.saving.us < 0.2 * symptom.saving.us
    assert [one.rule for one in settle(run, [symptom, cause], {"symptom": "symptom"})] == order


@pytest.mark.parametrize(("pieces", "order"), [(3, ["cause", "later"]), (0, ["later"])])
def test_what_comes_after_another_rule_stands_below_it_where_that_is_seen(
    pieces: int, order: list[str]
) -> None:
    run = LoadedRun((late(),))
    (view,) = views(run)
    later = replace(finding("later", savings.idle(view, view.gaps, "")), after="cause")
    cause = finding("cause", savings.idle(view, intervals.union(view.gaps).head(pieces), ""))
    found = settle(run, [later, cause])
    assert [one.rule for one in found if one.remaining.saving_us > 0] == order


def test_what_all_else_follows_from_stands_first_though_it_saves_nothing() -> None:
    run = LoadedRun((late(),))
    (view,) = views(run)
    root = replace(finding("root", savings.nothing("")), at_least="high")
    small = finding("small root", savings.idle(view, intervals.union(view.gaps)[3:6], ""))
    every = finding("all", savings.idle(view, view.gaps, ""))
    found = settle(run, [every, small, root], {"root": "root", "small root": "root"})
    assert [one.rule for one in found] == ["small root", "root", "all"]
    assert found[2].remaining.saving_us == pytest.approx(every.saving.us - small.saving.us, rel=0.02)


def test_what_may_cost_time_does_not_stand_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(experience.MEASURED, "risky", (-0.5, 1.2))
    monkeypatch.setitem(experience.MEASURED, "tried", (0.8, 1.1))
    run = LoadedRun((late(),))
    (view,) = views(run)
    risky = finding("risky", savings.idle(view, view.gaps, ""))
    tried = finding("tried", savings.idle(view, view.gaps.head(4), ""))
    first, second = settle(run, [risky, tried])
    assert (first.rule, second.rule) == ("tried", "risky")
    assert first.remaining.saving_low_us == pytest.approx(0.8 * first.remaining.saving_us)
    assert first.remaining.saving_high_us == pytest.approx(1.1 * first.remaining.saving_us)
    assert second.remaining.saving_low_us < 0


def test_measured_beside_the_recording_it_adds_up_to_no_more_than_the_step() -> None:
    run = LoadedRun((late(),))
    (view,) = views(run)
    most = savings.unreplayed(view, 0.9 * view.own_step_us, "")
    found = settle(run, [finding("measured", most), finding("idle", savings.idle(view, view.gaps, ""))])
    assert [one.rule for one in found] == ["measured", "idle"]
    # The device still has to do its work, half of the step.
    assert sum(one.remaining.saving_us for one in found) == pytest.approx(0.5 * view.own_step_us, rel=0.05)


def test_ranks_that_show_the_same_are_one_and_no_step_is_saved_twice() -> None:
    run = LoadedRun((late(0), late(1)))
    found = [
        finding(rule, savings.idle(view, view.gaps, ""), view.rank, subject)
        for view in views(run)
        for rule, subject in (("same", ""), ("own", f"{view.rank}"))
    ]
    found = settle(run, found)
    assert sorted((one.rule, one.ranks or (one.rank,)) for one in found) == [
        ("own", (0,)),
        ("own", (1,)),
        ("same", (0, 1)),
    ]
    # What the devices have to do remains, whatever else is saved.
    first = views(run)[0]
    assert sum(one.remaining.saving_us for one in found) == pytest.approx(
        first.own_step_us - first.busy_us, rel=0.1
    )


def test_device_time_that_the_host_hides_is_the_most_that_may_be_saved() -> None:
    run = LoadedRun((late(),))
    (view,) = views(run)
    half = savings.device(view, view.work, "", saved=pl.col("duration_ns") / 2)
    (hidden,) = settle(run, [finding("hidden", half)])
    assert hidden.remaining.saving_us < 0.1 * view.busy_us
    assert hidden.remaining.saving_high_us == pytest.approx(view.busy_us / 2)


def test_what_several_free_is_asked_of_all_at_once_and_changes_no_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = LoadedRun((late(kernel_us=19),))
    (view,) = views(run)
    quicker = savings.of(view, what_if.host(run, 0.4).changes[0], "")
    freed = [
        savings.device(view, view.work.slice(0, 4 + 4 * n), "", saved=pl.col("duration_ns") * 0.1 * (n + 1))
        for n in range(4)
    ]
    found = [
        finding("host", quicker),
        *(finding("device", one, subject=f"{n}") for n, one in enumerate(freed)),
    ]
    joint = settle(run, found)
    assert [(one.rule, one.subject) for one in joint[:2]] == [("host", ""), ("device", "3")]

    def unbounded(book: object, findings: object) -> float:
        return float("inf")

    monkeypatch.setattr("kinetoscope.findings.ledger._Book.joint_gain", unbounded)
    assert joint == settle(run, found)


def test_what_may_save_much_stands_above_what_surely_saves_little() -> None:
    run = LoadedRun((late(),))
    (view,) = views(run)
    unsure = savings.not_predicted(savings.idle(view, view.gaps, ""), "who knows")
    found = [
        replace(finding("likely", unsure), at_least="medium"),
        replace(finding("little", savings.idle(view, view.gaps[:1], "")), at_most="low"),
        finding("sure", savings.idle(view, view.gaps[4:], "")),
    ]
    assert [one.rule for one in settle(run, found)] == ["sure", "likely", "little"]
    found[1] = replace(found[1], at_least="medium", at_most="medium")  # as serious, and still much less
    assert [one.rule for one in settle(run, found)] == ["sure", "likely", "little"]


def test_what_is_not_predicted_says_what_it_is_at_most_and_promises_nothing() -> None:
    run = LoadedRun((late(),))
    (view,) = views(run)
    idle = savings.idle(view, view.gaps, "")
    unsure = replace(finding("unsure", savings.not_predicted(idle, "who knows")), at_least="low")
    first, second = settle(run, [unsure, finding("sure", idle)])
    assert (first.rule, first.remaining.saving_us) == ("sure", pytest.approx(idle.us))
    assert (second.remaining.saving_us, second.remaining.saving_low_us, second.severity) == (0, 0, "low")
    assert second.remaining.saving_high_us == pytest.approx(idle.us)
    assert second.saving.basis.startswith("not predicted: who knows; at most ")


def test_what_saves_under_a_condition_claims_nothing_and_counts_half() -> None:
    run = LoadedRun((late(),))
    (view,) = views(run)
    idle = savings.idle(view, view.gaps, "a basis")
    maybe = finding("maybe", savings.if_so(idle, "inputs come again"))
    found = [maybe, finding("much", savings.idle(view, view.gaps[4:], ""))]
    much, unsure = settle(run, found)
    assert (much.rule, much.remaining.saving_us) == ("much", pytest.approx(much.saving.us))
    assert (unsure.saving.us, unsure.remaining.saving_us) == (pytest.approx(idle.us), 0)
    assert (unsure.remaining.saving_low_us, unsure.remaining.saving_high_us) == (0, pytest.approx(idle.us))
    assert unsure.saving.basis == "a basis"
    little = finding("little", savings.idle(view, view.gaps[:7], ""))
    assert [one.rule for one in settle(run, [little, maybe])] == ["maybe", "little"]
    # What is promised may be half of what it may come to already: that is not halved again.
    part = savings.idle(view, view.gaps[:8], "")
    maybe = finding("maybe", replace(savings.if_so(part, "half of it is enough"), most_us=2 * part.us))
    assert [one.rule for one in settle(run, [little, maybe])] == ["maybe", "little"]
    most = replace(maybe, saving=replace(maybe.saving, most_us=0.0))
    assert [one.rule for one in settle(run, [little, most])] == ["little", "maybe"]


def test_work_that_need_not_run_stands_above_what_makes_it_faster() -> None:
    run = LoadedRun((late(kernel_us=100),))
    (view,) = views(run)
    most = savings.device(view, view.work, "", saved=pl.col("duration_ns") * 0.6)
    faster = finding("faster", savings.device(view, view.work, "", saved=pl.col("duration_ns") * 0.6))
    gone = finding("gone", savings.if_so(most, "inputs come again"))
    gone, faster = (replace(one, at_least="high") for one in (gone, faster))
    assert [one.rule for one in settle(run, [faster, gone])] == ["gone", "faster"]
    gone_after = replace(gone, after="faster")
    assert [one.rule for one in settle(run, [faster, gone_after])] == ["faster", "gone"]
    other = savings.device(view, view.work[: len(view.work) // 4], "", saved=pl.col("duration_ns") * 0.6)
    elsewhere = replace(gone, saving=savings.if_so(other, "inputs come again"))
    assert [one.rule for one in settle(run, [faster, elsewhere])] == ["faster", "gone"]


def test_half_of_what_saves_under_a_condition_is_its_severity() -> None:
    sure = Saving(9.0, "", True, share=1.5 * savings.MEDIUM)
    assert savings.severity(sure) == "medium"
    assert savings.severity(savings.if_so(sure, "it fits")) == "low"
    assert savings.severity(savings.if_so(replace(sure, share=2 * savings.HIGH), "it fits")) == "high"


CHANGES = st.lists(
    st.tuples(st.integers(0, KERNELS - 1), st.integers(1, KERNELS), st.floats(0.1, 1.0), st.booleans()),
    min_size=1,
    max_size=5,
)


@given(CHANGES, st.sampled_from([5.0, 15.0, 40.0]))
@settings(deadline=None, max_examples=20)
def test_findings_add_up_to_what_all_save_together(
    changes: list[tuple[int, int, float, bool]], kernel_us: float
) -> None:
    trace = late(kernel_us=kernel_us)
    run = LoadedRun((trace,))
    (view,) = views(run)
    together = ReplayChange()
    found: list[Finding] = []
    for number, (first, length, share, idle) in enumerate(changes):
        if idle and len(view.gaps):
            change = without_idle(trace, view.gaps.slice(first, length))
        else:
            events = view.work.slice(first, length)
            change = shorten(events["id"], events["duration_ns"] * share)
        together = together | change
        found.append(finding("rule", savings.of(view, change, ""), subject=f"{number}"))
    settled = settle(run, found)
    claimed = sum(one.remaining.saving_us for one in settled)
    assert claimed <= view.own_step_us + 1e-6
    assert claimed <= view.saves(together) + 1e-6
    # Those that are not worth a line are dropped with what they save.
    assert claimed >= view.saves(together) - len(changes) * savings.LOW * view.own_step_us - 1e-6
    assert all(one.remaining.saving_us >= 0 for one in settled)
