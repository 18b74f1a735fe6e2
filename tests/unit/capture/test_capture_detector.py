"""Which source of ticks leads, and what its ticks mean."""

from __future__ import annotations

import pytest

from kinetoscope.capture.steps.call_sites import CallStack
from kinetoscope.capture.steps.detector import (
    IN_A_ROW,
    MANY_OTHERS,
    MOVED,
    SILENT,
    SOURCES_WATCHED,
    Boundary,
    Signal,
    StepDetector,
)


def ticked(detector: StepDetector, *signals: Signal, key: int = 1, thread: int = 7) -> list[str | None]:
    """What each tick was to the steps."""
    boundaries = [detector.tick(signal, key, thread) for signal in signals]
    return [boundary and boundary.role for boundary in boundaries]


@pytest.mark.parametrize(
    ("signal", "ticks"),
    [
        ("user", 1),
        ("optimizer", 1),
        ("module", 3),
        ("training module", 17),
        ("closure's module", 126),
        ("idle module", 17),
        ("compiled", 5),
        ("range", 6),
    ],
)
def test_the_surer_a_sign_the_sooner_it_leads(signal: Signal, ticks: int) -> None:
    detector = StepDetector()
    expected = [*["candidate"] * (ticks - 1), "leads", "step"]
    assert ticked(detector, *[signal] * (ticks + 1)) == expected
    assert detector.index == ticks


def test_a_surer_source_takes_over_unless_the_leader_is_fixed() -> None:
    detector = StepDetector()
    ticked(detector, *["compiled"] * 5)
    assert ticked(detector, "range", "module", "module") == [None, "candidate", "candidate"]
    detector.fixed = True
    assert ticked(detector, "module", "optimizer") == [None, None]
    detector.fixed = False
    assert ticked(detector, "optimizer", "module", "compiled") == ["leads", None, None]
    assert (detector.leader, detector.index) == (("optimizer", 1), 0)


def test_steps_are_those_of_one_thread() -> None:
    detector = StepDetector()
    ticked(detector, "optimizer", thread=7)
    assert ticked(detector, "optimizer", thread=8) == [None]
    assert ticked(detector, "optimizer", thread=7) == ["step"]


def test_a_model_that_was_warmed_up_in_one_thread_serves_in_another() -> None:
    detector = StepDetector()
    ticked(detector, *["module"] * 5, thread=7)
    assert ticked(detector, *["module"] * (MOVED - 1), thread=8) == [None] * (MOVED - 1)
    assert ticked(detector, "module", thread=7) == ["step"]  # both call it: steps stay where they were
    # Waits for the device in the thread that serves do not take the place of the calls there.
    for _ in range(MOVED - 1):
        assert set(ticked(detector, *["loop"] * 100, "module", thread=8)) == {None}
    assert ticked(detector, *["module"] * 2, thread=8) == ["leads", "step"]
    assert ticked(detector, "module", thread=7) == [None]


def test_threads_that_take_turns_have_steps_after_as_many_calls_as_one() -> None:
    detector = StepDetector()
    ticked(detector, *["module"] * 5, thread=7)
    roles = [ticked(detector, "module", thread=8 + call % 4)[0] for call in range(3 * MOVED)]
    assert roles.index("leads") == MOVED - 1
    assert roles[MOVED:].count("step") == MOVED // 2
    assert "leads" not in roles[MOVED:]


def test_threads_that_call_in_bursts_do_not_take_the_steps_from_each_other_for_ever() -> None:
    detector = StepDetector()
    ticked(detector, *["module"] * 5, thread=7)
    roles = [
        role for _ in range(20) for at in (8, 9) for role in ticked(detector, *["module"] * 40, thread=at)
    ]
    assert roles.count("leads") == 2


def test_nothing_takes_over_while_a_recording_runs_that_only_another_thread_can_end() -> None:
    detector = StepDetector()
    ticked(detector, *["module"] * 5, thread=7)
    detector.fixed = True
    assert set(ticked(detector, *["module"] * 2 * MOVED, thread=8)) == {None}
    assert set(ticked(detector, *["loop"] * 2 * SILENT["loop"], thread=8)) == {None}
    assert ticked(detector, "module", thread=7) == ["step"]


def test_a_range_ends_where_it_is_left_once_it_leads() -> None:
    detector = StepDetector()
    assert ticked(detector, *["range", "range end"] * 5)[-1] is None
    assert ticked(detector, "range", "range end", "range") == ["leads", "end", "step"]
    assert detector.leads_at_beginnings()


def test_where_nothing_is_to_lead_all_are_candidates() -> None:
    detector = StepDetector(may_lead=False)
    assert set(ticked(detector, *["user", "optimizer", "module"] * 9)) == {"candidate"}
    assert detector.leader is None


def test_ranges_named_after_a_number_are_not_remembered_for_ever() -> None:
    detector = StepDetector()
    boundaries = [detector.tick("range", key, 7) for key in range(SOURCES_WATCHED + 1)]
    assert boundaries[-2:] == [Boundary(("range", SOURCES_WATCHED - 1), "candidate", 1), None]


def test_the_best_is_the_surest_then_the_busiest() -> None:
    detector = StepDetector()
    ticked(detector, *["range"] * 5)
    ticked(detector, *["training module"] * 3, key=1)
    ticked(detector, *["training module"] * 4, key=2)
    assert detector.best(9) is None
    assert detector.best(5) == ("range", 1)
    assert detector.best(3) == ("module", 2)
    assert detector.count(("module", 2)) == 4
    ticked(detector, "optimizer", "optimizer")
    assert detector.best(3) == ("optimizer", 1)
    assert detector.count(("optimizer", 1)) == 2


def test_steps_that_nobody_needs_are_counted_all_the_same() -> None:
    detector = StepDetector()
    ticked(detector, "optimizer")
    detector.pass_over(2)
    assert [detector.passes("optimizer", 1) for _ in range(3)] == [True, True, False]
    assert ticked(detector, "optimizer") == ["step"]
    assert detector.index == 3


def test_a_request_leads_before_its_calls_do_and_yields_to_an_optimizer() -> None:
    detector = StepDetector()
    assert ticked(detector, "request", "module", "request") == ["leads", None, "step"]
    assert detector.leads_at_beginnings()
    assert detector.leads_in(7)
    assert not detector.leads_in(8)
    assert ticked(detector, "optimizer", "request") == ["leads", None]


class At(CallStack):
    """A stack whose innermost function stands here."""

    def __init__(self, place: int) -> None:
        self.place_ = place

    def position(self, depth: int) -> tuple[int, int]:
        return (0, self.place_)


def stepped(detector: StepDetector, key: int, steps: int, *, place: int = 3) -> list[str | None]:
    """What the steps of an optimizer that is called from there were."""
    boundaries = [detector.tick("optimizer", key, 7, stack=At(place)) for _ in range(steps)]
    return [boundary and boundary.role for boundary in boundaries]


def test_an_optimizer_made_anew_for_each_round_carries_on_the_steps() -> None:
    detector = StepDetector()
    assert stepped(detector, 1, 24) == ["leads", *["step"] * 23]
    # The first time it could be one that steps now and then, afterwards it is known.
    assert stepped(detector, 2, 24) == [*[None] * (IN_A_ROW - 1), *["step"] * (25 - IN_A_ROW)]
    assert stepped(detector, 3, 24) == ["step"] * 24
    assert stepped(detector, 2, 2) == ["step"] * 2  # the clients of a federation come again
    assert (detector.leader, detector.index) == (("optimizer", 1), 24 + 24 - IN_A_ROW + 24 + 2)


def test_optimizers_that_are_made_for_one_step_each_are_one_source() -> None:
    detector = StepDetector()
    roles = [stepped(detector, key, 1)[0] for key in range(200)]
    assert roles == ["leads", *[None] * (MANY_OTHERS - 1), *["step"] * (200 - MANY_OTHERS)]


def test_optimizers_made_anew_elsewhere_are_one_sign_of_steps_together() -> None:
    """A model is trained, then something is learnt for each of many samples, thirty steps each."""
    detector = StepDetector()
    stepped(detector, 1, 40)
    roles = [role for sample in range(20) for role in stepped(detector, 100 + sample, 30, place=9)]
    leads = roles.index("leads")
    assert leads < 7 * 30
    assert set(roles[:leads]) == {None}
    assert set(roles[leads + 1 :]) == {"step"}
    assert {detector.sign(("optimizer", 100 + sample)) for sample in range(7)} == {("optimizer", 100)}


def test_optimizers_that_step_in_turn_at_one_place_are_signs_of_their_own() -> None:
    detector = StepDetector()
    stepped(detector, 1, 40)
    for _ in range(50):
        for key in (2, 3, 4):
            assert stepped(detector, key, 1, place=9) != ["leads"]
    assert [detector.sign(("optimizer", key)) for key in (2, 3, 4)] == [
        ("optimizer", key) for key in (2, 3, 4)
    ]


def test_more_optimizers_than_are_remembered_are_of_the_same_sign() -> None:
    detector = StepDetector()
    stepped(detector, 1, 2000)
    for sample in range(SOURCES_WATCHED + 50):
        stepped(detector, 100 + sample, 3, place=9)
    assert detector.leader is not None
    assert stepped(detector, 9999, 3, place=9) == ["step"] * 3


def test_optimizers_that_step_in_turn_or_from_elsewhere_carry_nothing_on() -> None:
    critics = StepDetector()
    turns = [[stepped(critics, critic, 1)[0] for critic in (1, 2, 3)] for _ in range(10)]
    assert turns == [["leads", None, None], *[["step", None, None]] * 9]
    gan = StepDetector()  # both through one function of the author's
    assert [stepped(gan, key, 5 if key == 1 else 1)[-1] for key in (1, 2, 1, 2, 1)] == [
        *["step", None, "step", None, "step"]
    ]
    assert stepped(gan, 2, 1) == ["leads"]  # which ends a round
    value = StepDetector()  # a policy's updates, then a value function's, from another line
    stepped(value, 1, 80)
    assert "step" not in stepped(value, 2, 80, place=9)


def test_an_optimizer_that_never_steps_again_is_over_at_last() -> None:
    detector = StepDetector()
    stepped(detector, 1, 5)
    assert stepped(detector, 2, 300, place=9)[-1] == "step"
    assert detector.leader == ("optimizer", 2)


def test_a_leader_whose_steps_are_passed_over_is_not_silent() -> None:
    """As of two optimizers that step in turn: the other one does not take its place."""
    detector = StepDetector()
    ticked(detector, "optimizer")
    detector.pass_over(1000)
    for _ in range(500):
        ticked(detector, "optimizer", key=2)
        assert detector.passes("optimizer", 1)
    assert (detector.leader, detector.index) == (("optimizer", 1), 500)
