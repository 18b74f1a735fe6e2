"""A comparison as one HTML page without a script: both timelines one above the other, and all tables."""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from kinetoscope import numbers
from kinetoscope.document.difference import Change, Difference, DrawnWork
from kinetoscope.render import names, palette
from kinetoscope.views import difference as words

WIDTH, ROW, GAP, THIN = 1000.0, 18, 3, 4  # of a timeline, in its own units
ROWS = 60  # of a table
SHOWN, SMALL = 8, 0.002  # changes that are shown at once: so many, and all above this part of the step


@dataclass(frozen=True)
class Box:
    """A piece of work as it is drawn."""

    x: float
    y: int
    width: float
    height: int
    colour: str
    words: str


@dataclass(frozen=True)
class Drawn:
    """A timeline: both are drawn to one scale, from one begin."""

    title: str
    height: int
    boxes: list[Box]


@dataclass(frozen=True)
class Alignment:
    """Both timelines, so that what is alike begins at one place: the steps, or calls of compiled graphs."""

    by: str
    about: str
    drawn: list[Drawn]


def render(found: Difference) -> str:
    """The page."""
    environment = Environment(
        loader=PackageLoader("kinetoscope.render"), autoescape=True, undefined=StrictUndefined
    )
    style = environment.get_template("difference.css").render()
    changes, smaller = _parted(found)
    return environment.get_template("difference.html").render(
        found=found,
        changes=changes,
        smaller=smaller,
        legend=_legend(found),
        title=names.plain(words.title(found)),
        headline=numbers.together(words.headline(found)),
        remark=words.REMARKS[found.comparability],
        reason=words.reason(found),
        next_step=words.next_step(found),
        verdict=found.step.verdict.replace(" ", "-") if found.step else "",
        counts=list(words.counts(found)),
        tables=[(name, rows[:ROWS]) for name, rows in words.sums(found).values() if rows],
        alignments=_alignments(found),
        width=WIDTH,
        plain=names.plain,
        printable=names.printable,
        signed=words.signed,
        time=numbers.time,
        count=numbers.count,
        did=words.did,
        where=words.where,
        style=Markup(style),
        style_hash="sha256-" + base64.b64encode(hashlib.sha256(style.encode()).digest()).decode(),
    )


def _parted(found: Difference) -> tuple[list[Change], list[Change]]:
    """What matters, and the many that hardly do."""
    least_us = SMALL * found.step.base_us if found.step else 0.0
    places = range(len(found.changes))
    shown = [place for place in places if place < SHOWN or abs(found.changes[place].delta_us) >= least_us]
    return [found.changes[i] for i in shown], [found.changes[i] for i in places if i not in shown]


def _legend(found: Difference) -> list[tuple[str, str]]:
    """Colours of what is drawn, most time first."""
    sums: Counter[str] = Counter()
    for piece in (piece for side in found.timelines or () for piece in side):
        sums[piece.category] += round(1000 * piece.duration_us)
    return [(category, palette.category(category)) for category, _ in sums.most_common()]


def _alignments(found: Difference) -> list[Alignment]:
    if found.timelines is None or not any(found.timelines):
        return []
    about = "from the step's begin, on one scale"
    made = [
        Alignment("step", about, _drawn(found.timelines, [[p.start_us for p in t] for t in found.timelines]))
    ]
    starts = [[p.aligned_us for p in side if p.aligned_us is not None] for side in found.timelines]
    if all(starts):
        about = (
            "each call of a compiled graph that both make (a line below) begins at one place, and its end too"
        )
        made.append(Alignment("compiled graph", about, _drawn(found.timelines, starts)))
    return made


def _drawn(sides: Sequence[Sequence[DrawnWork]], starts: Sequence[Sequence[float]]) -> list[Drawn]:
    end = max(
        start + piece.duration_us
        for side, own in zip(sides, starts, strict=True)
        for piece, start in zip(side, own, strict=True)
    )
    scale = WIDTH / max(end, 1e-9)
    return [
        _timeline(name, side, own, scale)
        for name, side, own in zip(("base", "new"), sides, starts, strict=True)
    ]


def _timeline(name: str, pieces: Sequence[DrawnWork], starts: Sequence[float], scale: float) -> Drawn:
    lanes = max((piece.lane for piece in pieces), default=-1) + 1
    end = max((piece.start_us + piece.duration_us for piece in pieces), default=0.0)
    below = lanes * (ROW + GAP)
    boxes = [
        Box(
            round(start * scale, 2),
            piece.lane * (ROW + GAP),
            max(0.3, round(piece.duration_us * scale, 2)),
            ROW,
            palette.category(piece.category),
            _said(piece),
        )
        for piece, start in zip(pieces, starts, strict=True)
    ]
    calls = [
        Box(
            round(low * scale, 2),
            below,
            max(0.3, round((high - low) * scale, 2)),
            THIN,
            palette.OTHER,
            f"graph {call}",
        )
        for call, (low, high) in _calls(pieces, starts).items()
    ]
    return Drawn(f"{name}: {numbers.time(end)}", below + (THIN if calls else 0), boxes + calls)


def _calls(pieces: Sequence[DrawnWork], starts: Sequence[float]) -> dict[str, tuple[float, float]]:
    """From when to when each call of a compiled graph has work on the device."""
    found: dict[str, tuple[float, float]] = {}
    for piece, start in zip(pieces, starts, strict=True):
        if piece.call is not None:
            low, high = found.get(piece.call, (start, start))
            found[piece.call] = low, max(high, start + piece.duration_us)
    return found


def _said(piece: DrawnWork) -> str:
    times = f"{numbers.time(piece.duration_us)} at {numbers.time(max(piece.start_us, 0.0))}"
    return f"{names.plain(piece.name)} · {piece.category} · {times}"
