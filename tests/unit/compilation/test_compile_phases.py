"""When the phases of a compilation ran, against sums over every millisecond of random regions."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from kinetoscope.compilation.log.records import RegionEvent
from kinetoscope.compilation.phases import PHASE_OF, regions, seconds, spans

NAMES = sorted(name for name, phase in PHASE_OF.items() if phase != "backward")


@st.composite
def nested(draw: st.DrawFn) -> list[RegionEvent]:
    """Regions inside regions, their ends 2 ms apart at least: nothing of one phase is joined over a gap."""
    events: list[RegionEvent] = []
    opened: list[str] = []
    at = 1e15
    for _ in range(draw(st.integers(0, 30))):
        at += 2000 * draw(st.integers(1, 5))
        if opened and draw(st.booleans()):
            events.append(RegionEvent(opened.pop(), at, "E"))
        else:
            opened.append(draw(st.sampled_from(NAMES)))
            events.append(RegionEvent(opened[-1], at, "B"))
    while opened:
        at += 2000
        events.append(RegionEvent(opened.pop(), at, "E"))
    return events


@given(nested())
@settings(deadline=None, max_examples=50)
def test_stretches_follow_each_other_and_add_up_to_the_phases(events: list[RegionEvent]) -> None:
    expected: Counter[str] = Counter()
    opened: list[str] = []
    for event, after in pairwise(events):
        opened = [*opened, event.name] if event.ph == "B" else opened[:-1]
        if opened:
            expected[PHASE_OF[opened[-1]]] += round((after.ts - event.ts) / 1000)
    found = regions(events)
    ran = spans(found)
    summed: Counter[str] = Counter()
    for phase, start, end in ran:
        summed[phase] += round((end - start) / 1000)
    assert summed == expected
    assert {phase: round(1000 * time) for phase, time in seconds(found).items() if time} == expected
    assert all(before[2] <= after[1] for before, after in pairwise(ran))
