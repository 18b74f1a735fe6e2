"""Where the list of events ends, by what stands in a file behind it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kinetoscope.trace.decoding.frame import closing

PLAIN = {"ph": "X", "name": "a", "ts": 1, "dur": 2}
LISTS = PLAIN | {"args": {"shapes": [{"of": 1}], "more": [[{"of": 2}], {"of": [3]}]}}
TEXT = PLAIN | {"name": 'like an end: }], "traceName": "x"}', "args": {"text": "}]"}}


@pytest.mark.parametrize("events", [[PLAIN], [LISTS, PLAIN], [PLAIN, TEXT], [TEXT, LISTS] * 40])
@pytest.mark.parametrize("rest", [{}, {"traceName": "t.json"}, {"marks": [{"a": 1}], "b": {"c": [{}]}}])
@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("lost", [False, True])
def test_the_list_ends_before_all_that_is_no_event(
    events: list[Any], rest: dict[str, Any], indent: int | None, lost: bool
) -> None:
    text = json.dumps({"traceEvents": events, **rest}, indent=indent).encode()
    if lost:  # an event that cannot be read: each one after it is looked at
        text = text.replace(b'"ph"', b"ph", 1)
    tail = text[text.index(b"[") + 1 :].lstrip()
    found = closing(tail)
    assert found.trailer is not None
    assert json.loads(b'{"": 0' + found.trailer) == {"": 0, **rest}
    assert tail[: found.end].count(b'"dur"') == len(events)
    assert lost or json.loads(b"[" + tail[: found.end] + b"]") == events
