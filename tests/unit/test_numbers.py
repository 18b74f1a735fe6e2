import re

from hypothesis import given
from hypothesis import strategies as st

from kinetoscope import numbers

MICROSECONDS = {"s": 1e6, "ms": 1e3, "µs": 1.0, "ns": 1e-3}


@given(st.floats(min_value=0.001, max_value=1e12))
def test_a_time_reads_back_to_three_digits(us):
    number, unit = numbers.time(us).split()
    value = float(number.replace(",", ""))
    assert abs(value * MICROSECONDS[unit] - us) <= 0.0051 * us
    assert value >= 1 or unit == "ns"
    assert value < 1000 or unit == "s"


@given(st.floats(min_value=0, max_value=1e9), st.floats(min_value=0, max_value=1e9))
def test_a_span_keeps_the_unit_of_its_upper_end(one, other):
    low, high = sorted((one, other))
    text = numbers.span(low, high)
    assert text.endswith(numbers.time(high).split()[1])
    assert len(text) <= 20
    assert not text.startswith(("0.00–", "0–")) or not low


@given(st.floats(min_value=0, max_value=1))
def test_percent_claims_nothing_and_everything_only_when_exact(fraction):
    text = numbers.percent(fraction)
    assert (text == "0 %") == (fraction == 0)
    assert (text == "100 %") == (fraction == 1)
    assert text not in ("0.0 %", "100.0 %")
    number = float(re.sub(r"[<>% ]", "", text))
    assert abs(number - 100 * fraction) <= 0.1


def test_numbers_are_written_with_three_digits_and_a_unit():
    assert numbers.time(0) == "0 µs"
    assert numbers.time(1e-9) == numbers.time(-1e-9) == "0 µs"
    assert numbers.time(999.7) == "1.00 ms"
    assert numbers.time(18_312) == "18.3 ms"
    assert numbers.time(0.85) == "850 ns"
    assert numbers.span(1_200, 18_300) == "1.20–18.3 ms"
    assert numbers.span(1_900, 1_170_000) == "1.90 ms–1.17 s"
    assert numbers.span(5, 5) == "5.00 µs"
    assert numbers.size(121_393) == "121 kB"
    assert numbers.count(1, "launch") == "1 launch"
    assert numbers.count(1024, "launch") == "1,024 launches"
    assert numbers.count(2, "category") == "2 categories"


def test_how_often() -> None:
    assert [numbers.times(n) for n in (1, 1.0, 3.0, 0.5)] == ["once", "once", "3 times", "0.5 times"]


def test_a_number_stays_with_its_unit():
    kept = numbers.together("busy 41.2 % of 3 steps (18.3 ms each)")
    assert kept.split(" ") == ["busy", "41.2\xa0%", "of", "3", "steps", "(18.3\xa0ms", "each)"]
