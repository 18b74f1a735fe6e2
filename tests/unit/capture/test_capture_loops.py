"""The loops around a call, by bytecode, and which of them has the steps."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest

from kinetoscope.capture.steps.call_sites import CallStack, ProgramStack
from kinetoscope.capture.steps.detector import SILENT, SILENT_OTHERS, Signal, StepDetector
from kinetoscope.capture.steps.loops import UNSHOWN, Loop, OuterLoop, Position, Site

STACK = ProgramStack()


def lines(found: Sequence[Loop]) -> list[int]:
    first = test_the_loops_around_a_call_are_read_from_its_functions.__code__.co_firstlineno
    return [
        int(loop.where.rpartition(":")[2]) - first for loop in found if "test_capture_loops" in loop.where
    ]


def test_the_loops_around_a_call_are_read_from_its_functions() -> None:
    def called() -> list[Loop]:
        seen = STACK.loops()
        while True:
            return [*seen, *STACK.loops()[len(seen) :]]

    for _ in range(1):
        pass
    before = STACK.loops()
    for _ in range(1):
        number = 0
        while number < 1:
            number += 1
            inside = called()
    listed = next([STACK.loops() for _ in range(1)] for _ in range(1))[0]
    assert lines(before) == []
    assert lines(inside) == [9, 11]
    assert inside[-1].calls.endswith("called")
    assert [loop.holds(STACK.site()) for loop in inside[-2:]] == [False, False]
    assert set(lines(listed)) == {14}


def test_a_thread_pool_s_loop_is_named_by_the_program_s_function() -> None:
    def answered() -> list[Loop]:
        return STACK.loops()

    with ThreadPoolExecutor(1) as pool:
        loop = pool.submit(answered).result()[0]
    assert loop.where.startswith("concurrent/futures/thread.py:")
    assert loop.calls.endswith("answered")
    assert loop.pythons


def test_what_follows_a_with_or_a_try_is_no_loop() -> None:
    """CPython 3.12 compiles both to a handler at the function's end, which jumps back to what follows."""

    def served() -> list[Loop]:
        with nullcontext():
            pass
        try:
            int("1")
        except ValueError:
            return []
        return STACK.loops()

    assert lines(served()) == []
    found: list[list[Loop]] = []
    for _ in range(1):
        with nullcontext():
            pass
        try:
            found.append(STACK.loops())
        except ValueError:
            continue
        found.append(STACK.loops())
    found.append(STACK.loops())
    assert [len(lines(loops)) for loops in found] == [1, 1, 0]


MAIN, PIPE = 1, 2
OUTER = Loop((), MAIN, 10, 50, "main.py:4", "pipe")
INNER = Loop(((MAIN, 20),), PIPE, 5, 15, "pipe.py:9", "")
NET: Site = ((MAIN, 20), (PIPE, 8))
DECODER: Site = ((MAIN, 20), (PIPE, 30))
IN_THE_LOOP: Site = ((MAIN, 20), (PIPE, 12))
BEFORE: Site = ((MAIN, 2),)


def passes(outer: OuterLoop, lengths: Sequence[int], elsewhere: Site = DECODER) -> list[int]:
    """The calls, by their number, at which passes begin that are steps."""
    first, number = list[int](), 0
    for length in lengths:
        for _ in range(length):
            begins = outer.called()
            if begins and outer.found:
                first.append(number)
            number += 1
        outer.called_elsewhere("module", lambda: elsewhere)
    return first


def test_a_pass_of_the_loop_around_begins_with_the_first_call_after_another_in_its_body() -> None:
    outer = OuterLoop([OUTER, INNER])
    assert passes(outer, [20] * 6) == [60, 80, 100]
    assert outer.calls == 20
    assert outer.shown_by == {"module"}


def test_passes_that_are_not_similar_are_no_steps() -> None:
    assert passes(OuterLoop([OUTER, INNER]), [5, 20, 3, 20, 3, 90]) == []


def test_calls_in_the_inner_loop_or_outside_both_end_no_pass() -> None:
    for elsewhere in (IN_THE_LOOP, BEFORE):
        outer = OuterLoop([OUTER, INNER])
        assert passes(outer, [6] * 9, elsewhere) == []
        assert outer.passes == 0
        assert not outer.undecided
        assert outer.seen > UNSHOWN


def test_what_comes_between_ends_a_pass_and_is_no_step() -> None:
    """A batch that is taken, or a value of the host's that is read: no source's tick."""
    outer = OuterLoop([OUTER, INNER])
    detector = StepDetector()
    net, taken, read = At(NET), At(((MAIN, 12),)), At(IN_THE_LOOP)
    roles = [detector.tick("module", 1, 7, stack=net) for _ in range(3)]
    detector.outer = outer
    for _ in range(6):
        assert detector.tick("between", "batch", 7, stack=taken) is None
        assert detector.tick("between", "batch", 8, stack=taken) is None
        for _ in range(5):
            roles.append(detector.tick("module", 1, 7, stack=net))
            assert detector.tick("between", "loop", 7, stack=read) is None
    assert detector.passes_lead
    assert outer.shown_by == {"batch"}
    assert (outer.calls, roles[-5:].count(None)) == (5, 4)


def test_loops_of_one_function_and_calls_that_a_loader_feeds_are_steps_themselves() -> None:
    batches = Loop((), MAIN, 15, 40, "main.py:5", "")
    assert not OuterLoop([OUTER, batches]).looking
    assert not OuterLoop([]).looking
    server = Loop(((MAIN, 20),), PIPE, 5, 15, "socketserver.py:290", "do_POST", pythons=True)
    assert not OuterLoop([OUTER, server]).looking
    loads = iter(range(1000))
    assert passes(OuterLoop([OUTER, INNER], lambda: next(loads)), [6] * 9) == []


class At(CallStack):
    """A stack that is where it is said to be."""

    def __init__(self, site: Site) -> None:
        self.found = site

    def site(self) -> Site:
        return self.found

    def position(self, depth: int) -> Position | None:
        return self.found[-1 - depth] if depth < len(self.found) else None


def ticks(detector: StepDetector, signal: Signal, times: int, *, key: int = 1) -> list[str]:
    """What each of these ticks was to the steps."""
    found = (detector.tick(signal, key, 7) for _ in range(times))
    return [boundary.role for boundary in found if boundary is not None]


def test_a_leader_that_ticks_no_more_is_replaced_and_does_not_come_back() -> None:
    detector = StepDetector()
    ticks(detector, "module", 8)
    assert ticks(detector, "graph", SILENT["graph"] + 1, key=0) == ["leads"]
    assert ticks(detector, "module", 9) == []
    assert ticks(detector, "graph", 2, key=0) == ["step", "step"]


def test_a_leader_that_ticks_now_and_then_stays() -> None:
    detector = StepDetector()
    ticks(detector, "module", 8)
    for _ in range(9):
        assert ticks(detector, "graph", SILENT["graph"] - 1, key=0) == []
        assert ticks(detector, "module", 1) == ["step"]
    assert ticks(detector, "graph", 3 * (SILENT["graph"] - 1), key=0) == []


def test_an_optimizer_is_replaced_by_replays_alone() -> None:
    detector = StepDetector()
    ticks(detector, "optimizer", 4)
    assert "leads" not in ticks(detector, "module", 10 * SILENT_OTHERS, key=3)
    assert ticks(detector, "graph", 3 * SILENT["graph"] + 1, key=0) == ["leads"]


def test_where_one_source_is_wanted_no_other_takes_its_place() -> None:
    detector = StepDetector(wanted="module")
    ticks(detector, "module", 8)
    assert "leads" not in ticks(detector, "graph", 1000, key=0)


def test_calls_that_wait_lead_once_they_repeat() -> None:
    detector = StepDetector()
    sites = [((MAIN, 20), (PIPE, 8)), ((MAIN, 20), (PIPE, 30)), ((MAIN, 40),)]
    setup = [((MAIN, 1),), ((MAIN, 3),), ((MAIN, 2),)]
    roles = [detector.tick("loop", 0, 7, stack=At(site)) for site in [*setup, *sites * 12]]
    begun = [at for at, boundary in enumerate(roles) if boundary is not None]
    assert all((at - len(setup)) % 3 == begun[0] % 3 for at in begun)
    assert [roles[at].role for at in begun].count("leads") == 1  # pyright: ignore[reportOptionalMemberAccess]
    assert detector.leader == ("loop", 0)
    assert detector.provisional


def test_calls_that_wait_early_or_without_order_do_not_lead() -> None:
    detector = StepDetector()
    for _ in range(200):
        detector.tick("early loop", 0, 7, stack=At(NET))
    assert detector.leader is None
    places = [((MAIN, 10 * (n * n % 97 % 5)),) for n in range(200)]
    other = StepDetector()
    for site in places:
        other.tick("loop", 0, 7, stack=At(site))
    assert other.leader is None


def test_a_surer_source_takes_over_from_calls_that_wait() -> None:
    detector = StepDetector()
    for _ in range(20):
        detector.tick("loop", 0, 7, stack=At(NET))
    assert detector.leader == ("loop", 0)
    assert ticks(detector, "module", 3)[-1] == "leads"
    assert detector.leader == ("module", 1)


def test_the_instructions_of_a_function_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(called_in_a_loop()) == 1
    monkeypatch.setattr("dis.get_instructions", lambda code: pytest.fail("read once more"))
    assert len(called_in_a_loop()) == 1


def called_in_a_loop() -> list[Loop]:
    found: list[Loop] = []
    for _ in range(1):
        found = STACK.loops()
    return found[-1:]


def test_what_waits_outside_of_the_loop_ends_its_pass_and_is_none() -> None:
    detector = StepDetector()

    def wait() -> str | None:
        boundary = detector.tick("loop", 0, 7, stack=STACK)
        return boundary and boundary.role

    def choose(patches: int) -> list[str | None]:
        roles: list[str | None] = []
        for _ in range(patches):
            roles.append(wait())
        return roles

    assert choose(200)[-150:] == ["step"] * 150
    assert [wait(), wait(), wait()] == ["left", None, None]
    assert choose(3) == ["again", "step", "step"]


def test_another_loop_that_goes_on_for_long_has_the_steps() -> None:
    detector = StepDetector()

    def wait() -> str | None:
        boundary = detector.tick("loop", 0, 7, stack=STACK)
        return boundary and boundary.role

    for _ in range(200):
        wait()
    detector.fixed, roles = True, list[str | None]()
    while len(roles) < SILENT["loop"] + 400:
        roles.append(wait())
        detector.fixed = len(roles) < SILENT["loop"] + 200
    assert roles[0] == "left"
    assert set(roles[1 : SILENT["loop"] + 200]) == {None}
    assert roles.count("leads") == 1
    assert roles[-100:] == ["step"] * 100
