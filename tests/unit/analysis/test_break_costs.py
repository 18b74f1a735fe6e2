"""What a graph break costs in launches: counted while the trace is made, and in recordings of an H200."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import traces
from compile_records import artifact, record
from kinetoscope.analysis.compiled.break_costs import break_costs, crossing
from kinetoscope.analysis.compiled.join import join
from kinetoscope.analysis.compiled.regions import pieces
from kinetoscope.compilation import build
from kinetoscope.compilation.build import Sidecar
from kinetoscope.compilation.log import read as log
from kinetoscope.compilation.model import CompiledProgram, GraphBreak
from kinetoscope.sources.run import load

FIXTURES = Path(__file__).parents[2] / "fixtures" / "h200_breaks"
CASES = Path(__file__).parents[2] / "cases" / "graph-break"
BREAK = (
    "Graph break in user code at /home/user/model.py:12\nGraph Break Reason: a reason\n  Explanation: why\n\n"
    'User code traceback:\n  File "/home/user/model.py", line 12, in forward\n    print(x)\n'
)
# What a compiled piece can launch: a kernel of Inductor's, a library's, or a CUDA graph of one of each.
KINDS = ("generated", "library", "graph of library, generated", "graph of generated, library")


def compiled(frame: int, function: str, *, module: bool = True) -> bytes:
    at: dict[str, Any] = {"frame_id": frame, "frame_compile_id": 0, "attempt": 0}
    metrics = {
        "compile_id": f"{frame}/0",
        "co_name": function,
        "co_filename": "/home/user/model.py",
        "graph_op_count": 1,
    }
    return b"".join(
        [
            record({"dynamo_start": {"stack": []}, **at}),
            *([record({"inductor_output_code": {"filename": "/x/f.py"}, **at}, "code\n")] if module else []),
            record({"compilation_metrics": metrics, **at}),
        ]
    )


def broken(folder: Path, *, backend: bool = True) -> CompiledProgram:
    """A function that breaks at line 12, and its rest."""
    at: dict[str, Any] = {"frame_id": 0, "frame_compile_id": 0, "attempt": 0}
    path = folder / "a.log"
    path.write_bytes(
        artifact("dynamo_graph_break_reason", BREAK, **at)
        + compiled(0, "forward", module=backend)
        + compiled(1, "torch_dynamo_resume_in_forward_at_12", module=backend)
    )
    return build.build([(log.read(path), None, Sidecar())])


class Writer:
    """Writes a trace event by event: everything that the host does takes a microsecond."""

    def __init__(self) -> None:
        self.now, self.correlation = 0, 0
        self.free = 0  # when the device has nothing more to do
        self.events: list[traces.Event] = []

    def launch(self, kind: str) -> int:
        """Launch one piece of work; how long the device stood idle before it."""
        self.now += 1
        self.correlation += 1
        graph = kind.startswith("graph of ")
        call = "cudaGraphLaunch" if graph else "cudaLaunchKernel"
        self.events.append(traces.call(call, self.now, 1, self.correlation))
        start = max(self.now + 3, self.free)
        idle = start - self.free
        for name in kind.removeprefix("graph of ").split(", "):
            full = "triton_poi_fused_add_0" if name == "generated" else name
            self.events.append(traces.kernel(full, start, 2, self.correlation))
            start += 2
        self.free = start
        self.now += 1
        return idle

    def around(self, name: str, since: int) -> None:
        self.now += 1
        self.events.append(traces.host(name, since, self.now - since))
        self.now += 1

    def call(self, kinds: list[str]) -> int:
        since = self.now = self.now + 1
        idle = [self.launch(kind) for kind in kinds]
        self.around("## Call CompiledFxGraph f ##", since)
        return idle[0]


program = st.lists(
    st.tuples(
        st.lists(st.sampled_from(KINDS), min_size=1, max_size=3),  # before the break
        st.integers(0, 3),  # launches of Python's own
        st.lists(st.sampled_from(KINDS), min_size=1, max_size=3),  # the rest
        st.integers(0, 2),  # launches after it
    ),
    min_size=1,
    max_size=5,
)


@given(program)
@settings(max_examples=60, deadline=None)
def test_launches_are_those_counted_while_the_trace_was_written(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[list[str], int, list[str], int]]
) -> None:
    writer, idle, eager, fusable, graphs = Writer(), 0, 0, 0, 0
    writer.launch("library")
    for number, (before, between, rest, after) in enumerate(steps):
        began = region = writer.now = writer.now + 1
        writer.call(before)
        for _ in range(between):
            writer.launch("generated")  # a user's own Triton kernel is no part of the graph
        inner = writer.now = writer.now + 1
        idle += writer.call(rest)
        writer.around("Torch-Compiled Region: 1/0", inner)
        for _ in range(after):
            writer.launch("library")
        writer.around("Torch-Compiled Region: 0/0", region)
        writer.launch("library")
        writer.events.append(traces.step(number, began, writer.now - began))
        eager += between
        replays = [kind.startswith("graph") for kind in rest]
        if before[-1].startswith("graph") and any(replays):
            graphs += 1 + replays.index(True)
        else:
            first = rest[replays.index(True) if any(replays) else 0].removeprefix("graph of ")
            fusable += before[-1].endswith("generated") and first.startswith("generated")
    (row,) = break_costs([traces.trace(*writer.events)], broken(tmp_path_factory.mktemp("log")))
    assert (row.crossings, row.eager_launches) == (len(steps), eager)
    assert (row.graph_launches, row.fusable_launches) == (graphs, fusable)
    assert row.idle_us == pytest.approx(idle)
    assert row.extra_launches == eager + graphs + fusable
    assert row.extra_launches_per_step == pytest.approx((eager + graphs + fusable) / len(steps))


@given(program)
@settings(max_examples=60, deadline=None)
def test_the_way_into_a_piece_is_the_time_between_the_launches_around_it(
    steps: list[tuple[list[str], int, list[str], int]],
) -> None:
    writer, ways, in_a_row = Writer(), list[int](), False
    for before, between, rest, after in steps:
        region = writer.now = writer.now + 1
        writer.call(before)
        for _ in range(between):
            writer.launch("library")
        left = writer.now if between else writer.now - 2  # a graph's call ends after its last launch
        inner = writer.now = writer.now + 1
        writer.now += 3  # guards, prologue
        ways.append(writer.now + 2 - left)  # a call of a graph, and its first launch
        writer.call(rest)
        writer.around("Torch-Compiled Region: 1/0", inner)
        for _ in range(after):
            writer.launch("library")
        writer.around("Torch-Compiled Region: 0/0", region)
        writer.launch("library")
        in_a_row |= max(len(before), len(rest)) > 1
    trace = traces.trace(*writer.events)
    way = crossing(trace, pieces(trace))
    saved_us = (way.host["duration_ns"] * way.host["share"]).sum() / 1000
    # Between two launches of one graph a microsecond passes, which the whole function has there as well.
    assert saved_us == pytest.approx(sum(ways) - len(ways) * in_a_row)
    assert way.waits.is_empty()


def test_the_way_into_a_piece_takes_what_is_read_with_it_and_the_ends_of_its_backward() -> None:
    """The first piece of a function that has no graph of its own is what remains of it."""
    read = [
        traces.host("aten::item", 40, 12),
        traces.call("cudaMemcpyAsync", 41, 3, 3),
        traces.kernel("Memcpy DtoH (Device -> Pinned)", 45, 1, 3),
        traces.call("cudaStreamSynchronize", 44, 7, 4),
    ]
    forward = [
        traces.host("Torch-Compiled Region: 0/0", 0, 100),
        traces.host("Torch-Compiled Region: 1/0", 5, 90),
        traces.host("CompiledFunction", 8, 20, **{"Sequence number": 7}),
        traces.call("cudaLaunchKernel", 20, 5, 1),
        traces.kernel("triton_poi_fused_add_0", 26, 2, 1),
        *read,
        traces.host("Torch-Compiled Region: 2/0", 55, 35),
        traces.host("CompiledFunction", 60, 20, **{"Sequence number": 8}),
        traces.call("cudaLaunchKernel", 70, 5, 2),
        traces.kernel("triton_poi_fused_add_1", 76, 2, 2),
    ]
    backward = [
        event
        for sequence, began, length in ((8, 200, 40), (7, 250, 30))
        for event in (
            traces.host("CompiledFunctionBackward", began, length, tid=2, **{"Sequence number": sequence}),
            traces.call("cudaLaunchKernel", began + 10, 5, sequence + 10, tid=2),
            traces.kernel("triton_poi_fused_add_2", began + 16, 2, sequence + 10),
        )
    ]
    trace = traces.trace(*forward, *backward)
    entered = pieces(trace)
    assert entered["compile_id"].to_list() == ["1/0", "2/0"]
    way = crossing(trace, entered.filter(entered["compile_id"] == "2/0"))
    assert way.host.sort("start_ns").select("start_ns", "duration_ns", "share").rows() == [
        (25_000, 45_000, 1.0),
        (200_000, 10_000, 1.0),
        (215_000, 25_000, 1.0),
    ]
    assert trace.host_events["name"][way.waits].to_list() == ["cudaStreamSynchronize"]
    assert crossing(trace, entered.filter(entered["compile_id"] == "1/0")).host.is_empty()


def test_without_announced_calls_pythons_own_launches_are_not_known(tmp_path: Path) -> None:
    writer = Writer()
    region = writer.now = 1
    writer.launch("library")
    inner = writer.now = writer.now + 1
    writer.launch("library")
    writer.around("Torch-Compiled Region: 1/0", inner)
    writer.around("Torch-Compiled Region: 0/0", region)
    (row,) = break_costs([traces.trace(*writer.events)], broken(tmp_path, backend=False))
    assert (row.crossings, row.eager_launches, row.extra_launches) == (1, None, 0)
    assert row.extra_launches_per_step is None


def test_a_break_whose_rest_never_ran_keeps_its_nulls(tmp_path: Path) -> None:
    writer = Writer()
    writer.launch("library")
    (row,) = break_costs([traces.trace(*writer.events)], broken(tmp_path))
    assert (row.crossings, row.idle_us, row.extra_launches) == (None, None, None)


def breaks(*inputs: Path) -> tuple[GraphBreak, ...]:
    joined = join(load(*map(str, inputs)))
    assert joined is not None
    return joined.compilation.graph_breaks


def launches_a_step(path: Path) -> float:
    """Device work of the recorded steps, counted in the file."""
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    steps = [e for e in events if e["name"].startswith("ProfilerStep") and e["cat"] == "user_annotation"]
    # What a CUDA graph holds is launched with it.
    return len({e["args"]["correlation"] for e in events if e.get("cat") == "kernel"}) / len(steps)


@pytest.mark.parametrize(("name", "whole"), [("breaks", "whole"), ("breaks-graphs", "whole-graphs")])
def test_extra_launches_are_the_difference_to_the_program_without_breaks(name: str, whole: str) -> None:
    rows = breaks(FIXTURES / f"{name}.log.gz", FIXTURES / f"{name}.json.gz")
    assert [row.code for row in rows] == ['print("", end="")', "return torch.relu(aside(y)) - 3"]
    assert [row.eager_launches for row in rows] == [0, 10]
    extra = sum(row.extra_launches_per_step or 0 for row in rows)
    broken, unbroken = (launches_a_step(FIXTURES / f"{n}.json.gz") for n in (name, whole))
    assert extra == broken - unbroken == (4 if "graphs" in name else 3)


def test_a_print_costs_entries_and_no_launches() -> None:
    """Each block's break is crossed: 4 blocks, 3 steps; the same program without it launches as much."""
    (row,) = breaks(CASES / "before.compile.log.gz", CASES / "before.json.gz")
    assert (row.crossings, row.eager_launches, row.fusable_launches, row.extra_launches) == (12, 0, 0, 0)
    assert launches_a_step(CASES / "before.json.gz") == launches_a_step(CASES / "after.json.gz")


def test_a_module_out_of_the_cache_is_the_graph_of_its_file() -> None:
    """The rest of the block is the same code as its beginning: AOTAutograd's cache gives it without a key."""
    joined = join(load(str(CASES / "before.compile.log.gz"), str(CASES / "before.json.gz")))
    assert joined is not None
    assert [(g.compile_id, g.cache, g.calls) for g in joined.compilation.graphs] == [
        ("1/0", "miss", 12),
        ("2/0", "hit", 12),
    ]
