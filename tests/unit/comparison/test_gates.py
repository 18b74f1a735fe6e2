"""Gates: counts are exact, time fails only beyond its interval, what cannot be judged has failed."""

from __future__ import annotations

import math

import pytest

from kinetoscope.cli.diff import EPILOG
from kinetoscope.comparison.counts import COUNTED
from kinetoscope.comparison.gates import TIMES, judge, nothing_counted, parse
from kinetoscope.comparison.limits import amount
from kinetoscope.errors import UsageError
from kinetoscope.statistics.intervals import Ratio


def counted(name: str, before: float | None, after: float | None):
    empty = dict.fromkeys(COUNTED)
    return {**empty, name: before}, {**empty, name: after}


@pytest.mark.parametrize(
    ("text", "before", "after", "failed"),
    [
        ("launches > 0", 10, 10, False),
        ("launches > 0", 10, 9, False),
        ("launches > 0", 10, 11, True),
        ("launches > 1", 10, 11, False),
        ("launches >= 1", 10, 11, True),
        ("launches > 5%", 100, 105, False),
        ("launches > 5%", 100, 106, True),
        ("copied_bytes > 1kB", 0, 1000, False),
        ("copied_bytes > 1kB", 0, 1001, True),
        ("peak_memory>2%", 100, 103, True),
        ("graph_breaks > 0", None, 1, True),
        ("graph_breaks > 0", 0, None, True),
    ],
)
def test_a_count_fails_when_it_grew_beyond(
    text: str, before: float | None, after: float | None, failed: bool
) -> None:
    gate = parse(text)
    judgement = judge(gate, counted(gate.name, before, after), {})
    assert judgement.failed is failed
    assert judgement.known is (None not in (before, after))


@pytest.mark.parametrize(
    ("text", "low", "failed"),
    [
        ("step_time > 3%", 1.031, True),
        ("step_time > 3%", 1.029, False),
        ("step_time > 50us", 1.051, True),
        ("step_time > 50us", 1.049, False),
        ("step_time > 0.05 ms", 1.051, True),
        ("step_time > 3%", 0.0, False),
    ],
)
def test_time_fails_only_with_its_whole_interval(text: str, low: float, failed: bool) -> None:
    ratio = Ratio(1.2, low, 1.5 if low else math.inf)
    assert judge(parse(text), nothing_counted(), {"step_time": (1000.0, ratio)}).failed is failed


def test_no_step_is_no_pass() -> None:
    judgement = judge(parse("step_time > 3%"), nothing_counted(), {})
    assert (judgement.failed, judgement.known) == (True, False)


@pytest.mark.parametrize(
    "text", ["launches", "launches < 3", "lunches > 0", "launches > 3 ms", "step_time > 3 MB", "launches > x"]
)
def test_what_is_no_gate_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse(text)


@pytest.mark.parametrize(
    ("given", "expected"), [(40, 40), ("2GB", 2e9), ("3 ms", 3000), ("7", 7), ("1.5 µs", 1.5), (0, 0)]
)
def test_amounts_are_bytes_or_microseconds(given: object, expected: float) -> None:
    assert amount("max_anything", given) == expected


@pytest.mark.parametrize("given", [True, "2 parsecs", "", None])
def test_limits_that_are_no_numbers_are_refused(given: object) -> None:
    with pytest.raises(UsageError):
        amount("max_anything", given)


def test_the_help_names_everything_that_may_be_gated() -> None:
    names = EPILOG[EPILOG.index("what --fail-on takes") :].split()
    assert all(name in names for name in (*TIMES, *COUNTED))


@pytest.mark.parametrize("text", ["graph breaks > 0", "graph-breaks > 0", "graph_breaks > 0"])
def test_a_name_may_be_written_as_words(text: str) -> None:
    assert parse(text).name == "graph_breaks"
