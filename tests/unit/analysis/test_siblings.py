"""Calls of one module that need nothing of each other, by the program's source."""

from __future__ import annotations

import ast
import textwrap
from pathlib import Path

import msgspec
import pytest

import traces
from kinetoscope.analysis.origins.siblings import independent_calls
from kinetoscope.recording.manifest import Manifest, Program, RankRecord
from kinetoscope.sources.run import LoadedRun

DEFINED = """
class Net:
    def forward(self, x):
        INSIDE

def embed(net, x):
    EMBEDS

def step(self, net, twin, other, a, b, c, optimizer, found, low):
    BODY
"""
NETS = {"net": "Net", "twin": "Net", "self.net": "Net", "other": "Other"}
EACH_US = 20.0


def calls(
    folder: Path, body: str, inside: str = "return x + 1", embeds: str = "return net(x)"
) -> list[tuple[str, float]]:
    """The line, as text, and the share of each call that is found; each net runs its one line, and ``embed``
    its own, of which the last calls a net."""
    embeds_lines = embeds.splitlines()
    text = DEFINED.replace("INSIDE", textwrap.indent(inside, " " * 8).strip())
    text = text.replace("EMBEDS", "\n    ".join(embeds_lines))
    text = text.replace("BODY", textwrap.indent(textwrap.dedent(body).strip(), " " * 4).strip())
    within, at, events = text.splitlines().index(" " * 8 + inside.splitlines()[0]) + 1, 100.0, []

    def line(number: int, function: str, us: float) -> None:
        events.append(traces.event("python_function", f"train.py({number}): {function}", at, us))

    *_, step = (one for one in ast.parse(text).body if isinstance(one, ast.FunctionDef))
    embed = text.splitlines().index("def embed(net, x):") + 2
    for statement in (one for one in ast.walk(step) if isinstance(one, ast.stmt) and one is not step):
        at += 2
        line(statement.lineno, "step", 1)
        if hasattr(statement, "body"):
            continue
        for node in ast.walk(statement):
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            if called == "embed":
                for number in range(len(embeds_lines)):
                    at += 2
                    line(embed + number, "embed", 1)
            if called == "embed" or called in NETS:
                at += 2
                calling = (
                    (embed + len(embeds_lines) - 1, "embed")
                    if called == "embed"
                    else (statement.lineno, "step")
                )
                line(*calling, 1)
                module = NETS.get(called, "Net")
                events.append(traces.event("python_function", f"nn.Module: {module}", at, EACH_US))
                at += 1
                line(within, "Net.forward", EACH_US - 2)
                at += EACH_US - 1
                line(*calling, 1)
                at += 1
                line(statement.lineno, "step", 1)
    (folder / "kept.json").write_bytes(msgspec.json.encode(Program(files={"/home/train.py": text})))
    kept = Manifest(ranks=(RankRecord(rank=0, program="kept.json"),))
    run = LoadedRun((), kept, folder=folder, lines={0: traces.trace(traces.step(9, 99, 500), *events)})
    return [
        (text.splitlines()[int(row["line"].partition(":")[2]) - 1].strip(), row["share"])
        for row in independent_calls(run)[0].rows(named=True)
    ]


@pytest.mark.parametrize(
    ("body", "number"),
    [
        ("x, y, z = net(a), net(b), net(c)", 3),
        ("x = net(a)\ny = net(b)", 2),
        ("x = self.net(a)\nloss = x.mean()\ny = self.net(b)\nloss = loss + y.mean()", 2),
        ("x = net(a).relu()\nfound.append(x)\ny = net(b)", 2),
        ("real = net(a)\nfake = net(other(b).detach())", 2),  # what another net makes is not its own result
        ("with low:\n    x = net(a)\n    y = net(b)", 2),
        ("x = net(a)\ny = net(a)", 2),  # views by its own dropout
    ],
)
def test_calls_that_need_nothing_of_each_other(tmp_path: Path, body: str, number: int) -> None:
    found = calls(tmp_path, body)
    assert [share for _, share in found] == [0.0] + [1.0] * (number - 1)
    (line,) = {line for line, _ in found}
    assert "net(a)" in line


@pytest.mark.parametrize(
    "body",
    [
        "x = net(a)",
        "x = net(net(a))",
        "x = net(a)\ny = net(x)",
        "x = net(a)\ny = x + b\nz = net(y)",
        "x = net(a)\nfound.append(x)\ny = net(found[0])",
        "found[0] = net(a)\ny = net(found[1])",
        "self.last = net(a)\ny = net(self.last)",
        "x = net(a)\nx.mean().backward()\ny = net(b)",
        "x = net(a)\noptimizer.step()\ny = net(b)",
        "x = net(a)\nnet.eval()\ny = net(b)",
        "x = net(a)\ny = other(b)",
        "x = net(a)\ny = twin(b)",
        "x = net(a)\nwith low:\n    y = net(b)",
        "x = net(a, past=c)\ny = net(b, past=c)",
    ],
)
def test_calls_that_need_each_other_or_another_state(tmp_path: Path, body: str) -> None:
    assert calls(tmp_path, body) == []


@pytest.mark.parametrize("inside", ["self.state = self.state + x", "self.seen.append(x)"])
def test_modules_that_keep_something_of_a_call(tmp_path: Path, inside: str) -> None:
    assert calls(tmp_path, "x = net(a)\ny = net(b)", inside) == []


@pytest.mark.parametrize("embeds", ["return net(x)", "y = x.float()\nreturn net(y)"])
@pytest.mark.parametrize(
    "body", ["x, y = embed(net, a), embed(net, b)", "x = embed(net, a)\ny = embed(net, b)"]
)
def test_calls_by_a_function_that_is_called_twice(tmp_path: Path, body: str, embeds: str) -> None:
    found = calls(tmp_path, body, embeds=embeds)
    assert [share for _, share in found] == [0.0, 1.0]
    assert "embed(net, a)" in found[0][0]


@pytest.mark.parametrize(
    ("body", "embeds"),
    [
        ("x = embed(net, a)\ny = embed(net, x)", "return net(x)"),
        ("x = embed(net, a)\ny = embed(net, b)", "net.last = x\nreturn net(x)"),
        ("x = embed(net, a)\noptimizer.step()\ny = embed(net, b)", "return net(x)"),
    ],
)
def test_calls_by_a_function_that_need_each_other(tmp_path: Path, body: str, embeds: str) -> None:
    assert calls(tmp_path, body, embeds=embeds) == []
