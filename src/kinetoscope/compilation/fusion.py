"""Fusion by Inductor, and why nodes were not fused: from its scheduler's lines, or its nodes before and
after.

Read from any text that ``TORCH_LOGS=fusion,cudagraphs`` printed, ``V1121 01:48:44.7 PID file:line] [0/0_1]
[__fusion] message``, or from a recording's ``scheduler.log``, ``DEBUG 2026-11-21 01:48:44,700
torch._inductor.scheduler.__fusion message``, which names no compilation: its graphs come in the order in
which they were compiled.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct, field

from kinetoscope.compilation.log.debug_folder import models
from kinetoscope.compilation.model import Fusion, FusionRound, NotFused, Partitions

LINE = re.compile(
    r"\] (?:\[(?P<compile>[!\d/]+)(?:_(?P<attempt>\d+))?\] )?\[__(?P<logger>\w+)\] (?P<message>.*)"
)
RECORDED = re.compile(r"^[A-Z]+ \d{4}-\d\d-\d\d [\d:,]+ torch\.[\w.]*?\.__(?P<logger>\w+) (?P<message>.*)")
ATTEMPT = re.compile(r"attempting fusion \((\d+)/\d+\): (\d+) nodes")
COMPLETED = re.compile(r"completed fusion round \((\d+)/\d+\): fused (\d+) nodes into (\d+) nodes")
CANNOT = re.compile(r"^cannot fuse (.+?) with (.+?): (.+)$")
FUSING = re.compile(r"^fusing (\S+) with (\S+)$")
SKIPPED = re.compile(r"skipping cudagraphs (?:due to|because)[: ]*(.+)", re.I)
CUT = re.compile(r"Created \d+ graph partitions: (\d+) cudagraphable, (\d+) non-cudagraphable")
UNCAPTURED = re.compile(r"^(op\S*): reason=(?P<why>.+?), ir=\w+(?:, fx=(?P<node>.+))?$")
# One of Inductor's nodes, before or after fusion: op3, or op3_op4 that it was fused into.
NODE = re.compile(r"^(?P<name>op\w+): (?P<kind>\w+)\(", re.M)
NOT_ASKED = "cudagraphs is disabled"  # not a reason of the graph's: CUDA graphs were not requested
EXAMPLES = 5


class Compiled(Struct):
    """The scheduler's lines about one graph."""

    compile_id: str
    rounds: list[FusionRound] = field(default_factory=list[FusionRound])
    fused: dict[str, None] = field(default_factory=dict[str, None])
    not_fused: dict[str, dict[str, None]] = field(default_factory=dict[str, dict[str, None]])
    cut: tuple[int, int] | None = None
    uncaptured: dict[str, None] = field(default_factory=dict[str, None])

    def fusion(self) -> Fusion:
        return Fusion(
            rounds=tuple(self.rounds),
            fused=tuple(self.fused),
            not_fused=tuple(
                NotFused(why=why, count=len(pairs), examples=tuple(pairs)[:EXAMPLES])
                for why, pairs in sorted(self.not_fused.items(), key=lambda item: -len(item[1]))
            ),
            partitions=Partitions(
                cudagraphable=self.cut[0], others=self.cut[1], reasons=tuple(self.uncaptured)
            )
            if self.cut
            else None,
        )


class SchedulerLog(Struct, frozen=True):
    """Fusion of every graph in the order they were compiled, and why CUDA graphs were skipped.

    The compile id is "" (None for a skip) where the text does not name it.
    """

    graphs: tuple[tuple[str, Fusion], ...]
    cudagraph_skips: tuple[tuple[str | None, str], ...]


def parse(lines: Iterable[str]) -> SchedulerLog:
    """Read the scheduler's lines. A graph starts at its first fusion round."""
    graphs: list[Compiled] = []
    skips: dict[tuple[str | None, str], None] = {}
    for line in lines:
        if "__fusion" not in line and "udagraph" not in line:
            continue
        match = LINE.search(line) or RECORDED.match(line)
        message = match["message"].strip() if match else line
        compile_id = match.groupdict().get("compile") if match else None
        if skip := SKIPPED.search(message):
            skips[(compile_id, skip[1].strip())] = None
        elif match and match["logger"] == "fusion":
            _fusion_line(message, compile_id or "", graphs)
        elif match and graphs:
            _partition_line(message, graphs[-1])
    return SchedulerLog(tuple((g.compile_id, g.fusion()) for g in graphs), tuple(skips))


def of_debug_folder(folder: Path) -> SchedulerLog:
    """The fusion of each graph of a TORCH_COMPILE_DEBUG folder, in the order of compilation."""
    fusions = map(_of_nodes, models(folder))
    return SchedulerLog(tuple(("", fusion) for fusion in fusions if fusion), ())


def _of_nodes(model: Path) -> Fusion | None:
    before, after = (model / f"ir_{when}_fusion.txt" for when in ("pre", "post"))
    if not before.is_file() or not after.is_file():
        return None
    nodes = NODE.findall(after.read_text(errors="replace"))
    fused = [re.findall(r"op\d+", name) for name, kind in nodes if "Fused" in kind]
    inside = {name for names in fused for name in names}
    left = sum(name not in inside for name, _ in nodes)
    start = len(NODE.findall(before.read_text(errors="replace")))
    return Fusion(
        rounds=(FusionRound(before=start, after=left),),
        fused=tuple(f"{first} with {', '.join(others)}" for first, *others in fused),
    )


def _fusion_line(message: str, compile_id: str, graphs: list[Compiled]) -> None:
    if attempt := ATTEMPT.search(message):
        if attempt[1] == "1" or not graphs:
            graphs.append(Compiled(compile_id))
        return
    if not graphs:
        return
    graph = graphs[-1]
    if done := COMPLETED.search(message):
        graph.rounds.append(FusionRound(before=int(done[2]), after=int(done[3])))
    elif cannot := CANNOT.match(message):
        # The same pair is tried again in every round; it is one fact.
        graph.not_fused.setdefault(cannot[3].strip(), {})[f"{cannot[1]} with {cannot[2]}"] = None
    elif fusing := FUSING.match(message):
        graph.fused[f"{fusing[1]} with {fusing[2]}"] = None


def _partition_line(message: str, graph: Compiled) -> None:
    """The graph is cut right after its fusion."""
    if cut := CUT.search(message):
        graph.cut = int(cut[1]), int(cut[2])
    elif (why := UNCAPTURED.match(message)) and NOT_ASKED not in why["why"]:
        graph.uncaptured[f"{why['why']}: {why['node']}" if why["node"] else why["why"]] = None
