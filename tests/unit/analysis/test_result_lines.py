"""Lines that work on what the program read, by its source."""

from __future__ import annotations

import polars as pl
import pytest

from kinetoscope.analysis.origins.results import ResultLines
from kinetoscope.analysis.origins.source import FileLine, NotedLine, ProgramFiles

SOURCE = """\
def score(logits, labels):
    best = logits.argmax(1)
    return (best == labels).mean()

def answer(model, photo):
    \"""Of a photo.\"""
    masks = model(photo).cpu()
    words = {"masks": masks.tolist()}
    return json.dumps(words)

def serve(waiting):
    while (job := waiting.get()):
        reply = answer(model, job)
        send(reply)

def evaluate(batches):
    for pictures, labels in batches:
        logits = model(pictures).cpu().numpy()
        hits += score(logits, labels)
        pictures = prepare(labels)
        hits = 0
        total = hits + 1
        memory.add(logits)
        drawn = memory.draw()
        self.best = logits.max()
        shown = self.best
"""
FUNCTIONS = {1: "score", 5: "answer", 11: "serve", 16: "evaluate"}
EACH_US = 10


def rows(*numbers: int) -> list[NotedLine]:
    function = {n: max((at, name) for at, name in FUNCTIONS.items() if at <= n)[1] for n in numbers}
    return [
        NotedLine(0, place * EACH_US, (place + 1) * EACH_US, FileLine("serve.py", number), function[number])
        for place, number in enumerate(numbers)
    ]


def works(*numbers: int, read: int = 0) -> bool | None:
    """Whether the last of these lines works on what one of them read."""
    known = ResultLines(rows(*numbers), ProgramFiles({"/home/serve.py": SOURCE}))
    last = (len(numbers) - 1) * EACH_US
    at = (pl.Series([ns], dtype=pl.Int64) for ns in (read * EACH_US + 5, last, last + EACH_US))
    return known.work(*at)[0]


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ((18, 19), True),
        ((18, 19, 2), True),  # in a function that is called with it
        ((18, 19, 2, 3), True),
        ((18, 19, 2, 3, 20), False),  # the next input
        ((18, 19, 2, 3, 20, 17), False),
        ((18, 19, 2, 3, 21, 22), False),  # bound to something else
        ((18, 23, 24), False),  # what is drawn from a memory may be others' results
        ((18, 25, 26), True),
        ((13, 7, 8), True),
        ((13, 7, 8, 9), True),
        ((13, 7, 8, 9, 14), True),  # returned to who called
        ((13, 7, 8, 9, 14, 12), False),  # waits for the next request
    ],
)
def test_lines_work_on_what_was_read_and_on_what_was_made_of_it(lines: tuple[int, ...], found: bool) -> None:
    assert works(*lines, read=1 if lines[0] == 13 else 0) is found


def test_a_caller_that_the_step_did_not_come_by_is_not_known() -> None:
    """The lines end there, so that nothing after them works on it."""
    assert works(7, 8, 9, 12) is False


def test_what_lies_before_a_read_is_not_known() -> None:
    known = ResultLines(rows(18, 19), ProgramFiles({"/home/serve.py": SOURCE}))
    none, some = pl.Series([None], dtype=pl.Int64), pl.Series([5], dtype=pl.Int64)
    assert known.work(none, some, some + 1)[0] is None
    assert known.work(some, some + 9, some)[0] is None
    assert known.work(some - 100, some, some + 1)[0] is None


LOOPS = """\
def ranks(scores, others, labels):
    for i in range(len(scores)):
        scores[i, others[i]] = -1e9
    order = torch.sort(scores)
    order = order.cpu()
    parts = []
    for row in scores:
        parts.append(row.topk(5))
    best = torch.cat(parts).cpu()
    for label in labels:
        seen[label] = 1
    return best.cpu()

def others(scores):
    return scores.cpu()
"""


@pytest.mark.parametrize(
    ("loop", "read", "fills"),
    [
        (2, 5, True),
        (7, 9, True),
        (7, 12, True),  # what the read before it brought
        (2, 9, True),  # rows of it
        (7, 5, False),  # comes later
        (10, 12, False),  # something else
        (2, 15, False),  # another function's
    ],
)
def test_a_loop_fills_what_is_read_after_it(loop: int, read: int, fills: bool) -> None:
    known = ResultLines([], ProgramFiles({"/home/eval.py": LOOPS}))
    assert known.fills(f"eval.py:{loop}", f"home/eval.py:{read}") is fills
    assert not known.fills(f"other.py:{loop}", f"home/eval.py:{read}")
