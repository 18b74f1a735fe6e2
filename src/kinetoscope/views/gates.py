"""Gates: every one, and who failed it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from kinetoscope.comparison.gates import STEP_TIME, failed
from kinetoscope.document.difference import Judgement
from kinetoscope.render import names
from kinetoscope.render.blocks import Block, Commands, Labelled, Line, Text


def document(gates: Sequence[Judgement]) -> dict[str, object]:
    return {"gates": msgspec.to_builtins(gates), "failed": failed(gates)}


def listing(gates: Sequence[Judgement], update: str = "") -> Iterable[Block]:
    """The step, then failed gates, then others. ``update``: the command that accepts what failed."""
    first = [gate for gate in gates if gate.name == STEP_TIME]
    others = [gate for gate in gates if gate.name != STEP_TIME]
    yield from gate_lines([*first, *(gate for gate in others if gate.failed)])
    yield from gate_lines([gate for gate in others if not gate.failed])
    if update and any(gate.failed and gate.known for gate in gates):
        yield Commands(((update, "if the change was meant"),))


def gate_lines(gates: Iterable[Judgement], *, is_cut: bool = False) -> Iterable[Block]:
    """A line a gate, and one below it for who failed it, which is cut on a first screen that is narrow. Gates
    that cannot be judged for one reason share a line."""
    gates = [*gates]
    unknown: dict[str, list[Judgement]] = {}
    for gate in gates:
        if gate.failed and not gate.known:
            unknown.setdefault(gate.words, []).append(gate)
    for words, those in unknown.items():
        if len(those) > 1:
            together = "; ".join(gate.gate for gate in those)
            yield Labelled(((Text("FAILED", "bold red"), (Line((f"{words}: {together}",)),)),))
    for gate in gates:
        if gate.failed and not gate.known and len(unknown[gate.words]) > 1:
            continue
        lines = [Line((f"{gate.gate}: {gate.words}",))]
        if gate.culprit:
            where = f" ({names.from_here(gate.source)})" if gate.source else ""
            lines.append(Line((f"{gate.culprit}{where}",), overflow="cut" if is_cut else "fold"))
        yield Labelled(((mark(gate), tuple(lines)),))


def mark(gate: Judgement) -> Text:
    """Whether it passed; what was not judged did neither."""
    if gate.failed:
        return Text("FAILED", "bold red")
    return Text("passed", "green") if gate.known else Text("–", "dim")
