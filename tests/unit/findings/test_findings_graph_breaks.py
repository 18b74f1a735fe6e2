"""Functions that break: what their pieces cost, which break each is due to, and what a graph can replay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import traces
from compile_records import artifact, record
from kinetoscope.compilation import build
from kinetoscope.compilation.build import Sidecar
from kinetoscope.compilation.log import read as log
from kinetoscope.compilation.model import CompiledProgram
from kinetoscope.findings.in_force import fewer_launches, inside_graphs
from kinetoscope.findings.rank_view import RankView
from kinetoscope.findings.rules import graph_break, overhead_bound
from kinetoscope.sources.run import LoadedRun

MODEL, OURS = "/home/user/model.py", "/site-packages/kinetoscope/capture/hooks/calls.py"
STEPS, STEP = 4, 700.0
# Each layer enters compiled code: by compile id the function, and the pieces that it enters in turn.
FUNCTIONS = {
    "0/0": "forward",
    "1/0": "scatter_sum",
    "2/0": "torch_dynamo_resume_in_scatter_sum_at_28",
    "3/0": "torch_dynamo_resume_in_forward_at_42",
}
KERNELS = 3  # of each piece
APART, LATER = 20.0, 100.0  # from launch to launch: in a piece, and on the way into the next


def program(folder: Path, *lines: tuple[str, int]) -> CompiledProgram:
    """A log of these breaks, by file and line, and of what was compiled."""
    text = b""
    for frame, (compile_id, function) in enumerate(FUNCTIONS.items()):
        at: dict[str, Any] = {"frame_id": frame, "frame_compile_id": 0, "attempt": 0}
        if frame < len(lines):
            file, line = lines[frame]
            reason = f"Graph break in user code at {file}:{line}\nGraph Break Reason: reason {line}\n"
            traceback = f'User code traceback:\n  File "{file}", line {line}, in f\n    call(x)\n'
            text += artifact(
                "dynamo_graph_break_reason", f"{reason}  Explanation: why\n  Hint: do it\n\n{traceback}", **at
            )
        metrics = {"compile_id": compile_id, "co_name": function, "co_filename": MODEL, "graph_op_count": 1}
        text += record({"dynamo_start": {"stack": []}, **at})
        text += record({"inductor_output_code": {"filename": f"/x/{frame}.py"}, **at}, "code\n")
        text += record({"compilation_metrics": metrics, **at})
    path = folder / "a.log"
    path.write_bytes(text)
    return build.build([(log.read(path), None, Sidecar())])


def layers(
    compilation: CompiledProgram | None = None, *, pieces: bool = True, reads: bool = True
) -> RankView:
    """Steps of one layer each, of four pieces: the device has done each launch before the next is made."""
    events: list[traces.Event] = []
    now = 0.0

    def piece(number: int) -> None:
        nonlocal now
        now += LATER - APART - 2
        began = now
        for place in range(KERNELS):
            now += APART
            correlation = len(events) + 1
            events.append(traces.call("cudaLaunchKernel", now, 2, correlation))
            events.append(traces.kernel(f"triton_poi_fused_add_{place}", now + 4, 2, correlation))
        now += 2
        events.append(traces.host(f"## Call CompiledFxGraph f{number} ##", began, now - began))

    for step in range(STEPS):
        began = now = step * STEP
        piece(0)
        if pieces:
            scatter = now + 1
            piece(1)
            if reads:
                events.append(traces.host("aten::item", now + 10, 12))
                events.append(traces.call("cudaStreamSynchronize", now + 12, 8, 10_000 + step))
            rest = now + 30
            piece(2)
            events.append(traces.host("Torch-Compiled Region: 2/0", rest, now + 5 - rest))
            events.append(traces.host("Torch-Compiled Region: 1/0", scatter, now + 6 - scatter))
            after = now + 10
            piece(3)
            events.append(traces.host("Torch-Compiled Region: 3/0", after, now + 1 - after))
        events.append(traces.host("Torch-Compiled Region: 0/0", began + 1, now + 10 - began))
        events.append(traces.step(step, began, STEP))
    trace = traces.trace(*events)
    return RankView(LoadedRun((trace,), compilation=compilation), trace)


def test_all_pieces_are_due_to_the_break_that_the_callers_of_the_function_break_at(tmp_path: Path) -> None:
    """The log names the line in the function that breaks; the rest of its caller begins at the call."""
    (found,) = graph_break.find(layers(program(tmp_path, (MODEL, 28), (MODEL, 28))))
    assert found.evidence[0].text.split("; ")[1] == f"{3 * STEPS} entries of what follows"
    # On the way into each of three pieces, beyond what passes between the launches of one.
    each = LATER - APART
    assert found.saving.us == pytest.approx(3 * each, rel=0.1)
    assert "reads a value from the device" in found.advice
    assert "do it" not in found.advice


def test_a_piece_is_due_to_the_break_in_front_of_it(tmp_path: Path) -> None:
    seen = layers(program(tmp_path, (MODEL, 42), (MODEL, 28)), reads=False)
    found = {one.source: one for one in graph_break.find(seen)}
    counts = [found[f"{MODEL}:{line}"].evidence[0].text.split("; ")[1] for line in (28, 42)]
    assert counts == [f"{2 * STEPS} entries of what follows", f"{STEPS} entries of what follows"]
    assert all(one.advice == "Take the call out of the compiled function. do it" for one in found.values())


def test_a_break_in_what_a_recording_hooks_in_is_none_of_the_program(tmp_path: Path) -> None:
    found = list(graph_break.find(layers(program(tmp_path, (OURS, 28)))))
    assert not found


def test_what_a_graph_of_compiled_code_replays_is_all_but_the_first_launch_of_each_call() -> None:
    seen = layers()
    inside = inside_graphs(seen, seen.idle("launch-bound"))
    assert inside["next"].n_unique() == STEPS * 4 * (KERNELS - 1)
    (found,) = overhead_bound.find(seen)
    # From the end of a kernel of 2 µs to the next one's beginning, whose launch comes 20 µs later.
    assert found.saving.us == pytest.approx(4 * (KERNELS - 1) * (APART - 2), rel=0.1)
    assert found.saving.most_us > 2 * found.saving.us
    assert found.after == "graph-break"
    assert found.advice.startswith("Remove its graph breaks, then replay the compiled code as a CUDA graph")
    assert fewer_launches(layers(pieces=False)).advice.startswith("Replay the compiled code")
