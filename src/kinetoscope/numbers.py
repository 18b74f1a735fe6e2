"""How renderers write quantities: three significant digits, the unit after the number."""

from __future__ import annotations

import re

MINUS = "\N{MINUS SIGN}"
_TIME_UNITS = ((1e6, "s"), (1e3, "ms"), (1.0, "µs"), (1e-3, "ns"))
_SIZE_UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))


LEAST_US = 5e-7  # less is none: half of the last digit of a nanosecond


def time(us: float) -> str:
    """Microseconds in the unit that suits them: ``18.3 ms``."""
    return _scaled(us, _TIME_UNITS) if abs(us) >= LEAST_US else "0 µs"


def roughly(us: float, like: float | None = None) -> str:
    """Microseconds to one digit, where more are not known: ``20 ms``; where ``like`` is smaller, to the place
    of its digit: 15.1 ms like 5 ms are ``15 ms``."""
    place = int(f"{us if like is None else min(us, like):.0e}".partition("e")[2])
    return time(round(us, -place)).replace(".00 ", " ").replace(".0 ", " ")


def signed(us: float) -> str:
    """A difference of times with its sign: ``+18.3 ms``."""
    return f"{MINUS if us < 0 else '+'}{time(abs(us))}"


def size(count: float) -> str:
    """Bytes in decimal units: ``1.21 MB``."""
    return _scaled(count, _SIZE_UNITS) if count else "0 B"


FAR = 0.005  # of the upper end: in its unit the lower one has no digit left


def span(low_us: float, high_us: float) -> str:
    """A range of times in the unit of its upper end: ``1.2–18.3 ms``; far apart, in two: ``1.9 ms–1.2 s``."""
    if not high_us:
        return time(0)
    if 0 < low_us < FAR * high_us:
        return f"{time(low_us)}–{time(high_us)}"
    high, unit = time(high_us).split()
    factor = next(factor for factor, name in _TIME_UNITS if name == unit)
    low = _digits(low_us / factor)
    return f"{low} {unit}" if low == high else f"{low}–{high} {unit}"


def percent(fraction: float) -> str:
    """A fraction of one as ``41.2 %``; what rounds to nothing or everything without being it says so."""
    if 0 < fraction < 0.0005:
        return "<0.1 %"
    if 0.9995 <= fraction < 1:
        return ">99.9 %"
    return f"{100 * fraction:.1f} %" if fraction not in (0, 1) else f"{100 * fraction:.0f} %"


def change(fraction: float) -> str:
    """A relative difference with its sign: ``+1.2 %``; without one where it rounds to nothing: ``<0.1 %``."""
    if abs(fraction) < 0.0005:
        return "<0.1 %" if fraction else "0 %"
    return f"{100 * fraction:+.1f} %".replace("-", MINUS)


def count(number: int, noun: str = "") -> str:
    """``1,024`` or, with a noun, ``1 step``, ``1,024 steps``."""
    if not noun:
        return f"{number:,}"
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {_plural(noun)}"


def times(number: float) -> str:
    """``once``, ``3 times``, ``0.5 times``."""
    return "once" if number == 1 else f"{number:g} times"


def quantity(value: float, unit: str = "") -> str:
    """Bytes (``B``) as ``size`` writes them; a count whole where it is: ``1,024``, ``2.50``."""
    if unit == "B":
        return size(value)
    return f"{value:,.0f}" if value == int(value) else f"{value:,.2f}"


def rate(per_second: float) -> str:
    """So many a second, without a unit: ``12,345``, ``3.21``."""
    return _digits(per_second)


def together(sentence: str) -> str:
    """The sentence with no-break spaces between numbers and their units."""
    return re.sub(r"(?<=\d) (?=(?:s|ms|µs|ns)\b|%)", "\N{NO-BREAK SPACE}", sentence)


def _plural(noun: str) -> str:
    if noun.endswith("y"):
        return noun[:-1] + "ies"
    return noun + ("es" if noun.endswith(("ch", "sh", "s")) else "s")


def _scaled(value: float, units: tuple[tuple[float, str], ...]) -> str:
    # 999.7 µs rounds to 1000 µs: the unit is chosen after rounding.
    for factor, unit in units:
        if abs(value) / factor >= 0.9995:
            return f"{_digits(value / factor)} {unit}"
    factor, unit = units[-1]
    return f"{_digits(value / factor)} {unit}"


def _digits(value: float) -> str:
    magnitude = abs(value)
    if magnitude >= 99.95:
        return f"{value:,.0f}"
    if magnitude >= 9.995:
        return f"{value:.1f}"
    return f"{value:.2f}" if magnitude >= 0.0005 else "0"
