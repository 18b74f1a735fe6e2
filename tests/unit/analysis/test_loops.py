"""Loops whose passes could be one: programs that run under the recorder's own trace function."""

from __future__ import annotations

import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pytest

import traces
from kinetoscope.analysis.origins.loops import independent_loops
from kinetoscope.capture.recorder.lines import Lines
from kinetoscope.recording.manifest import Manifest, Program, RankRecord
from kinetoscope.sources.run import LoadedRun

DEFINED = """
class Net:
    def __init__(self):
        self.state, self.logged, self.grammar, self.lines = 0, {}, {}, []

    def keeps(self, x):
        self.state = op(self.state + x)
        return self.state

    def logs(self, name, x):
        self.logged[name] = op(x)

    def logs_and_reads(self, name, x):
        self.lines.append(op(x))
        return self.lines[-1]

    def forward(self, x):
        y = op(x)
        y = op(y)
        return y

    def deep(self, x):
        for _ in range(3):
            x = op(x)
        return x

    def backward(self):
        return op(1)

    def step(self, x):
        return op(x)

    def drawn(self, xs):
        for x in xs:
            yield op(x)

class Decoder:
    def forward(self, x, h, heard):
        y, h = gru(x, h)
        return op(y + heard), h

    def attends(self, x, h, heard):
        y, h = gru(op(x + heard + h), h)
        return op(y), h

def fills(into, x):
    into.append(op(x))

def over(net, xs):
    return [net.forward(x) for x in xs]

def main():
    xs, net, nets = list(range(10)), Net(), [Net() for _ in range(10)]
    env, data_iter, out, past, model = Net(), iter(range(100)), [0] * 10, [], library
    for step in range(3):
        mark()
        BODY

main()
"""


def loops(body: str, folder: Path) -> list[dict[str, Any]]:
    """The rows of the second step of a program, with the text of each line in place of its number."""
    if sys.gettrace() is not None:
        pytest.skip("the tests are traced")
    file, ran, nets = folder / "program.py", list[int](), set[int]()
    text = DEFINED.replace("BODY", textwrap.indent(textwrap.dedent(body).strip(), " " * 8).strip())
    file.write_text(text)
    lines, marks = Lines(lambda name: name == str(file)), iter(range(9))

    def mark() -> None:
        match next(marks):
            case 1:
                lines.start(sys._getframe(1))
            case 2:
                lines.stop()

    def op(x: int) -> int:
        ran.append(time.time_ns())
        while time.time_ns() == ran[-1]:
            pass
        return x

    def gru(x: int, h: Any) -> tuple[int, Any]:
        op(x)
        nets.add(ran[-1])
        return x, h

    known = {"mark": mark, "op": op, "reads": op, "gru": gru, "library": lambda *x: x[0]}
    exec(compile(text, str(file), "exec"), known)
    noted = lines.events()
    began_ns = noted[0].began_ns - 1000

    def at_us(ns: int) -> float:
        return (ns - began_ns) / 1e3

    events = [
        traces.event(
            "python_function", one.part or "", at_us(one.began_ns), at_us(one.ended_ns) - at_us(one.began_ns)
        )
        for one in noted
    ]
    events += [
        traces.host("aten::gru" if ns in nets else "aten::add", at_us(ns), 0.001)
        for ns in ran
        if began_ns < ns < noted[-1].ended_ns
    ]
    (folder / "kept.json").write_bytes(msgspec.json.encode(Program(files={str(file): text})))
    kept = Manifest(ranks=(RankRecord(rank=0, program="kept.json"),))
    run = LoadedRun((), kept, folder=folder, lines={0: traces.trace(*events)})

    def named(line: str | None) -> str | None:
        return None if line is None else text.splitlines()[int(line.rpartition(":")[2]) - 1].strip()

    table = independent_loops(run)[0].with_columns(
        pl.col("line", "inner").map_elements(named, pl.String, skip_nulls=True)
    )
    return table.rows(named=True)


@pytest.mark.parametrize(
    ("body", "passes"),
    [
        ("for x in xs:\n    y = op(x)\n    z = op(y)", 10),
        ("total = 0\nfor x in xs:\n    total = total + op(x) / 10", 10),
        ("total = 0\nfor x in xs:\n    total += op(x)", 10),
        ("found = []\nfor x in xs:\n    found.append(op(x))", 10),
        ("for i, x in enumerate(xs):\n    out[i] = op(x)", 10),
        ("for i in range(10):\n    if out[i] < 1:\n        out[i] = op(out[i])", 10),  # each its own part
        ("for x in xs:\n    if op(x) == 3:\n        continue\n    y = op(x)", 10),
        ("for x in xs:\n    y = net.forward(x)", 10),
        ("for x in xs:\n    y = net.deep(x)", 10),  # one after the other within a pass alone
        ("for x in xs:\n    net.logs(x, x)", 10),
        ("for one, x in zip(nets, xs):\n    y = one.forward(x)", 10),
        ("count = 0\nfor x in xs:\n    out[count] = op(x)\n    count += 1", 10),
        ("found = [op(x) for x in xs]", 10),
        ("found = {x: op(x) for x in xs}", 10),
        ("found = [\n    op(x)\n    for x in xs\n]", 10),
        ("found = sum(op(x) for x in xs)", 10),
        ("found = over(net, xs)", 10),
        ("for x in xs:\n    part = []\n    part.append(op(x))\n    part.pop()", 10),
        ("for x in xs:\n    for y in range(3):\n        z = op(y)", 30),
        ("z = [[op(y) for y in xs] for x in range(3)]", 30),
        ("z = [sum([net.forward(y) for y in xs]) for x in range(3)]", 30),
        ("for x in range(3):\n    for y in xs:\n        z = op(y)", 30),
    ],
)  # fmt: skip
def test_passes_that_need_nothing_of_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, passes: int
) -> None:
    monkeypatch.chdir(tmp_path)
    (row,) = loops(body, tmp_path)
    assert row["passes"] == passes
    assert row["share"] == pytest.approx(1 - 1 / passes, abs=0.02)


@pytest.mark.parametrize(
    "body",
    [
        "x = 1\nfor layer in nets:\n    x = layer.forward(x)",  # layer after layer
        "h = 0\nfor x in xs:\n    h = op(h + x)\n    out[x] = h",  # a recurrence
        "last = 0\nfor x in xs:\n    last = op(x) + 2 * last",
        "for i in range(1, 10):\n    out[i] = op(out[i - 1])",
        "found = [0]\nfor x in xs:\n    found.append(op(found[-1]))",
        "best = 0\nfor x in xs:\n    if op(x) > best:\n        best = op(x)",
        "z = [[net.keeps(y) for y in xs] for x in range(3)]",
        "for x in xs:\n    y = net.keeps(x)",
        "for x in xs:\n    y = net.logs_and_reads(x, x)",
        "for x in xs:\n    y = op(x)\n    if y > 8:\n        break",
        "for x in xs:\n    op(x)\n    env.forward(x)",
        "for x in xs:\n    y = op(x) + next(data_iter)",
        "for x in xs:\n    fills(out, x)",  # it may read the list, too
        "for x in xs:\n    library(net, op(x))\n    y = net.forward(x)",  # which may change the net
        "for x in data_iter:\n    y = op(x)\n    if x > 10:\n        break",
        "for x in xs:\n    y = op(x)\n    net.backward()",  # gradients of one batch after the other
        "x = 9\nfor t in xs:\n    x = x - op(x * t)",  # a sampler
        "words = [1]\nfor _ in xs:\n    words = [*words, op(words[-1])]",  # a writer
        "for x in xs:\n    y = model(op(x), past)",  # which may keep what it saw
        "for x in xs:\n    reward = net.step(x)",  # a world
        "found = [net.keeps(x) for x in xs]",
        "for x in xs[:5]:\n    y = op(x)",  # few
        "for x in xs:\n    y = x + 1",  # no ops
        "total = 0\nfor x in xs:\n    total += op(total)",
    ],
)
def test_passes_that_may_need_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    monkeypatch.chdir(tmp_path)
    assert loops(body, tmp_path) == []


def test_a_loop_in_a_loop_is_named_where_it_makes_the_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (row,) = loops("for x in xs:\n    z = op(x)\n    for y in range(3):\n        z = op(y)", tmp_path)
    assert (row["line"], row["inner"]) == ("for x in xs:", "for y in range(3):")
    assert row["share"] == pytest.approx(1 - (10 / 10 + 30 / 30) / 40)
    (row,) = loops("for x in range(3):\n    for y in xs:\n        z = op(y)", tmp_path)
    assert (row["line"], row["inner"]) == ("for y in xs:", None)


@pytest.mark.parametrize(
    ("body", "sort"),
    [
        ("for one, x in zip(nets, xs):\n    y = op(one.forward(x))", "items"),
        ("nets = [op] * 10\nfor one in nets:\n    y = one(1)", "modules"),
        ("nets = [op] * 10\nfor i in range(10):\n    y = nets[i](1)", "modules"),
        ("parameters = xs\nfor one in parameters:\n    y = op(one)", "parameters"),
        ("state_dict = xs\nfor one in state_dict:\n    y = op(one)", "parameters"),
    ],
)
def test_the_sort_of_what_a_loop_goes_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, sort: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (row,) = loops(body, tmp_path)
    assert row["sort"] == sort


WORDS = """
h, x, total, decoder = 1, 0, 0, Decoder()
for t in range(10):
    y, h = decoder.forward(x, h, 2)
    x = xs[t]
    total = total + op(y - xs[t])
"""
DIRECT = """
state = (1, 2)
for x in xs:
    y, state = gru(x, state)
    out[x] = op(y)
"""


@pytest.mark.parametrize("body", [WORDS, DIRECT, WORDS.replace("(x, h, 2)", "(x, heard=2, h=h)")])
def test_a_recurrent_net_takes_a_sequence_that_is_known_at_once(body: str, tmp_path: Path) -> None:
    (row,) = loops(body, tmp_path)
    assert (row["passes"], row["sort"]) == (10, "sequence")


def test_what_a_comprehension_goes_through_is_made_before_its_first_pass(tmp_path: Path) -> None:
    (row,) = loops("out = [op(x) for x in range(op(10))]", tmp_path)
    assert (row["passes"], row["sort"]) == (10, "items")


FEW_WORDS = """
h, total, decoder = 1, 0, Decoder()
for t in range(5):
    y, h = decoder.forward(xs[t], h, 2)
    for x in xs:
        total = total + op(y - x)
"""


def test_a_loop_in_one_through_a_few_words_is_no_sequence(tmp_path: Path) -> None:
    """Of five passes much remains when they are one: what is joined are the fifty of the loop in it."""
    (row,) = loops(FEW_WORDS, tmp_path)
    assert (row["passes"], row["sort"]) == (50, "items")
    (row,) = loops(FEW_WORDS.replace("range(5)", "range(10)"), tmp_path)
    assert (row["passes"], row["sort"]) == (100, "sequence")


@pytest.mark.parametrize(
    "body",
    [
        WORDS.replace("x = xs[t]", "x = op(y)"),  # the word that it chose
        WORDS.replace("forward", "attends"),  # its input is made with the state
        WORDS.replace("op(y - xs[t])", "op(h - xs[t])").replace("x = xs[t]", "x = xs[t] + h"),
        WORDS.replace("    x = xs[t]", "    x, h = xs[t], op(h)"),  # another net's state
        DIRECT.replace("gru(x, state)", "library((x, state))"),  # which is not known
        DIRECT.replace("out[x] = op(y)", "state = op(y), state[1]"),
    ],
)
def test_a_sequence_that_is_made_of_outputs_stays(body: str, tmp_path: Path) -> None:
    assert not loops(body, tmp_path)
