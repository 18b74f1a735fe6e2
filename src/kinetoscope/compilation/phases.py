"""Where compile time went: torch's own timed regions, each without the regions inside it."""

from __future__ import annotations

from collections.abc import Iterable

from kinetoscope.compilation.log.records import Event

PHASES: tuple[str, ...] = (
    "dynamo",
    "aot",
    "inductor",
    "codegen",
    "triton",
    "autotune",
    "cudagraphs",
    "backward",
)

# A region that is not named here belongs to the phase of the region around it.
PHASE_OF = {
    "dynamo": "dynamo",
    "entire_frame_compile": "dynamo",
    "backend_compile": "aot",
    "create_aot_dispatcher_function": "aot",
    "_recursive_pre_grad_passes": "inductor",
    "_recursive_joint_graph_passes": "inductor",
    "compile_fx.<locals>.fw_compiler_base": "inductor",
    "inductor_compile": "inductor",
    "fx_codegen_and_compile": "inductor",
    "code_gen": "codegen",
    "GraphLowering.codegen": "codegen",
    "PythonWrapperCodegen.generate": "codegen",
    "compile_file": "triton",
    "async_compile.wait": "triton",
    "async_compile.precompile": "triton",
    "reload_kernel_in_parent": "triton",
    "compile_fx.<locals>.bw_compiler": "backward",
    "compile_fx.<locals>.bw_compiler_base": "backward",
    "entire_backward_compile": "backward",
    "CUDAGraphNode.record": "cudagraphs",
    "cudagraphify.get_container": "cudagraphs",
}


def seconds(events: Iterable[Event]) -> dict[str, float]:
    """Exclusive seconds of each phase over one frame's events, in the order they were logged.

    The log gives every event thread 0. A region that ends while a later one is still open ran on another
    thread: it is closed where it stands and the time stays with its own phase.
    """
    total = dict.fromkeys(PHASES, 0.0)
    open_regions: list[tuple[str, float, str]] = []
    inner: list[float] = []
    for event in events:
        if event.ph == "B":
            around = open_regions[-1][2] if open_regions else "dynamo"
            open_regions.append((event.name, event.ts, _phase(event.name, around)))
            inner.append(0.0)
        elif event.ph == "E":
            row = next(
                (i for i in reversed(range(len(open_regions))) if open_regions[i][0] == event.name), None
            )
            if row is None:
                continue
            _, start, phase = open_regions.pop(row)
            duration = max(event.ts - start, 0.0)
            total[phase] += max(duration - inner.pop(row), 0.0) / 1e6
            if row:
                inner[row - 1] += duration
    return total


def _phase(name: str, around: str) -> str:
    if around == "backward":
        return "backward"
    if name.endswith(("_template_autotuning", "_template_precompiling")) or name.startswith(
        "CachingAutotuner."
    ):
        return "autotune"
    return PHASE_OF.get(name, around)
