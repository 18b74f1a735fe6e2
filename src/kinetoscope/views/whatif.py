"""The critical path of a step, and the step's time if something changed."""

from __future__ import annotations

from collections.abc import Iterable

from kinetoscope import numbers
from kinetoscope.document import PathRow, ReplayRow, WhatIfRow
from kinetoscope.render.blocks import Block, Heading, Text, field, line, table

NOTHING = 0.001  # a saving below this share of the step is none


def listing(found: WhatIfRow | None, limit: int) -> Iterable[Block]:
    """The step before and after, how well the replay knows it, each change alone, and the critical path."""
    if found is None:
        yield line(Text("Nothing was recorded that could be replayed.", "yellow"))
        return
    replay, unit = found.replay, found.unit
    after: list[Text] = []
    if found.changes:
        share = found.saving_us / replay.step_us if replay.step_us else 0.0
        saves = f"  saves {numbers.time(found.saving_us)}, {numbers.percent(share)}"
        after = [Text(f" → {numbers.time(found.after_us)}", "bold green"), Text(saves, "bold")]
    words = Text(f"{unit}  ", "bold"), Text(numbers.time(replay.step_us), "bold"), *after
    yield line(*words, Text(f"  ({_trust(replay)})", "bold dim"))
    if found.changes:
        yield table(
            found.changes,
            field("", "name", "text"),
            field("", "count", "events", noun="event"),
            field("", "time", "saving_us", noun="alone"),
            heads=False,
        )
        if found.saving_us < NOTHING * replay.step_us:
            yield line(f"Hardly any of it is on the critical path: what the {unit} waits for stands below.")
    path = found.after if found.changes else replay.critical_path
    yield Heading("Critical after the change" if found.changes else "Critical path", f"sums to the {unit}")
    yield _path(path, limit)


def _trust(replay: ReplayRow) -> str:
    words = f"{numbers.time(replay.recorded_us)} as recorded, replayed {_off(replay.error)}"
    if replay.pace != 1:
        words += f"; as it runs, host time around events is {numbers.percent(replay.pace)} of the recorded"
    if replay.unexplained >= 0.005:
        words += f"; {numbers.percent(replay.unexplained)} are delays without a known cause"
    return words


def _off(error: float) -> str:
    if abs(error) < 0.0005:
        return "to the letter"
    return f"{numbers.percent(abs(error))} too {'long' if error > 0 else 'short'}"


def _path(path: list[PathRow], limit: int) -> Block:
    whole = sum(part.us for part in path)
    return table(
        path,
        field("", "time", "us"),
        field("", "share", lambda part: part.us / whole if whole else 0.0),
        field("", "name", "text"),
        field("", "number", lambda part: f"{part.count:,}" if part.count else "", "dim"),
        field("", "words", where),
        most=limit,
        noun="part",
    )


def where(part: PathRow) -> str:
    """In which lines of the program most of the time between ops passed, or what to record to see them."""
    if part.lines is None:
        return ""
    most = ", ".join(f"{one.line} {numbers.time(one.us)}" for one in part.lines)
    return most or "in Python: `kinetoscope run` would note the lines"
