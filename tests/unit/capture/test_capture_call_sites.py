"""How many calls make one round of a loop, and which of them comes first."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from kinetoscope.capture.steps.call_sites import (
    LONGEST_ROUND,
    LOST,
    ROUNDS,
    CallLoop,
    CallStack,
    ProgramStack,
    Site,
    first_call,
    period,
)

CALLS = st.lists(st.sampled_from("ab"), max_size=60)
ROUND = st.lists(st.sampled_from("abc"), min_size=1, max_size=LONGEST_ROUND)


def repeats(calls: Sequence[str], length: int) -> int:
    """How many of the latest calls are repetitions of a round of that length, by trying all."""
    long = [
        n
        for n in range(length, len(calls) + 1)
        if all(a == b for a, b in zip(calls[-n:-length], calls[-n:][length:], strict=True))
    ]
    return max(long, default=0)


@given(CALLS)
def test_the_period_explains_most_of_the_latest_calls_and_is_the_shortest_that_does(calls: list[str]) -> None:
    reach = {
        length: repeats(calls, length)
        for length in range(1, LONGEST_ROUND + 1)
        if repeats(calls, length) >= ROUNDS * length
    }
    best = max(reach.values(), default=0)
    assert period(calls) == min((length for length in reach if reach[length] == best), default=None)


@given(ROUND, st.lists(st.sampled_from("de"), max_size=9))
def test_a_loop_is_found_whatever_came_before_it(loop: list[str], before: list[str]) -> None:
    shortest = next(n for n in range(1, len(loop) + 1) if loop == loop[:n] * (len(loop) // n))
    assert period([*before, *loop * (ROUNDS + 1)]) == shortest


class At(CallStack):
    """A stack that is where it is said to be."""

    def __init__(self, site: Site) -> None:
        self.found = site

    def site(self) -> Site:
        return self.found

    def position(self, depth: int):
        return self.found[-1 - depth] if depth < len(self.found) else None


MAIN, HELPER = 1, 2
A, B, C = ((MAIN, 10),), ((MAIN, 20),), ((MAIN, 30),)


def begins(loop: CallLoop, sites: Sequence[Site]) -> list[bool]:
    """At which of these calls a round begins; they are looked at as long as may be."""
    found = list[bool]()
    for site in sites:
        if loop.looking:
            loop.called(site)
        found.append(loop.at_first(At(site)))
        loop.pass_by(first=found[-1])
    return found


def test_a_round_begins_at_the_call_that_comes_first_in_the_loop_s_body() -> None:
    found = begins(CallLoop(), [C, A, B] * 20)
    assert found[9:] == [False, True, False] * 17


def test_calls_from_one_place_are_a_round_each() -> None:
    loop = CallLoop()
    assert all(begins(loop, [A] * 60))
    assert loop.regular
    assert not loop.undecided


def test_a_call_in_an_inner_loop_begins_a_round_once() -> None:
    found = begins(CallLoop(), [A, A, B] * 30)
    assert found[12:] == [True, False, False] * 26


def test_calls_from_several_places_are_undecided_until_they_repeat() -> None:
    loop = CallLoop()
    for site in (A, B, A, B, A):
        loop.called(site)
        assert loop.undecided == (site is B or loop.calls > 2)
    assert loop.called(B)
    assert not loop.undecided
    assert loop.round is not None
    assert loop.round.calls == 2


def test_calls_without_order_are_a_round_each() -> None:
    places = [A, B, C, ((MAIN, 40),), ((MAIN, 50),)]
    found = begins(CallLoop(), [places[n * n % 97 % 5] for n in range(60)])
    assert all(found)


def lengths(sites: Sequence[Site]) -> list[int | None]:
    """What is known of the round after each call, calls from one place in a row counting as one."""
    loop, found = CallLoop(together=True), list[int | None]()
    for site in sites:
        loop.called(site)
        found.append(loop.length)
    return found


def test_a_call_or_two_before_the_loop_is_timed_do_not_hide_it() -> None:
    found = lengths([A, A, B, *[A] * 30])
    assert found[:3] == [1, 1, None]
    assert found[3:12] == [None] * 8 + [1]  # nine in a row: thrice as many as came before
    assert set(found[12:]) == {1}


@given(st.integers(2, 40))
def test_calls_of_an_inner_loop_wait_for_the_call_that_ends_its_passes(inner: int) -> None:
    found = lengths([*[A] * inner, B] * 8)
    second = found[inner : 2 * inner + 1]
    assert set(second) == {None}
    assert found[-1] == 2


def test_rounds_go_on_where_the_first_call_is_seen_no_more() -> None:
    loop = CallLoop()
    begins(loop, [A, B] * 30)
    assert begins(loop, [C] * 3 * LOST * 2).count(True) == 3


def test_the_function_of_the_loop_s_body_is_where_the_stacks_part() -> None:
    once = [((MAIN, 5), (HELPER, 30)), ((MAIN, 5), (HELPER, 10))]
    assert first_call(once) == 1
    twice = [((MAIN, 8), (HELPER, 10)), ((MAIN, 5), (HELPER, 30))]
    assert first_call(twice) == 1
    different_functions = [((MAIN, 5), (HELPER, 30)), ((MAIN, 5), (3, 10))]
    assert first_call(different_functions) == 0


def test_the_stack_has_the_program_s_functions_alone_and_keeps_no_frame() -> None:
    stack = ProgramStack()

    def called() -> tuple[Site, str, object]:
        return stack.site(), stack.place(), stack.position(1)

    site, place, above = called()
    frame = sys._getframe()
    assert site[-1][0] == id(called.__code__)
    assert site[-2][0] == id(frame.f_code)
    assert above == site[-2]
    assert place.startswith("under ")
    assert "test_capture_call_sites.py:" in place
    assert called()[0] != site  # from another place
    assert stack.position(10_000) is None
