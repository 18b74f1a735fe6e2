"""Where compile time went: torch's own timed regions, each without the regions inside it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from kinetoscope.compilation.log.records import RegionEvent

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
TOUCHING_US = 1000.0


class Region(NamedTuple):
    """One timed region, microseconds on the wall clock; ``inner``: those directly inside of it."""

    name: str
    phase: str
    start: float
    end: float
    inner: list[Region]

    @property
    def duration(self) -> float:
        return max(self.end - self.start, 0.0)


def regions(events: Iterable[RegionEvent]) -> list[Region]:
    """All regions of one frame's events, which are in the order they were logged, by their ends.

    The log gives every event thread 0. A region that ends while a later one is still open ran on another
    thread: it is closed where it stands and the time stays with its own phase.
    """
    found: list[Region] = []
    opened: list[Region] = []
    for event in events:
        if event.ph == "B":
            around = opened[-1].phase if opened else "dynamo"
            opened.append(Region(event.name, _phase(event.name, around), event.ts, event.ts, []))
        elif event.ph == "E":
            row = next((i for i in reversed(range(len(opened))) if opened[i].name == event.name), None)
            if row is None:
                continue
            found.append(opened.pop(row)._replace(end=event.ts))
            if row:
                opened[row - 1].inner.append(found[-1])
    return found


def seconds(found: Iterable[Region]) -> dict[str, float]:
    """Exclusive seconds of each phase."""
    total = dict.fromkeys(PHASES, 0.0)
    for region in found:
        inside = sum(inner.duration for inner in region.inner)
        total[region.phase] += max(region.duration - inside, 0.0) / 1e6
    return total


def spans(found: Iterable[Region]) -> list[tuple[str, float, float]]:
    """When each phase ran, without what ran inside of it: phase, start and end in microseconds, by start.

    Spans of one phase that follow each other within a millisecond are one.
    """
    pieces: list[tuple[str, float, float]] = sorted(
        ((region.phase, *piece) for region in found for piece in _own(region)), key=lambda piece: piece[1]
    )
    joined: list[tuple[str, float, float]] = []
    for phase, start, end in pieces:
        if joined and joined[-1][0] == phase and start - joined[-1][2] < TOUCHING_US:
            joined[-1] = phase, joined[-1][1], max(end, joined[-1][2])
        else:
            joined.append((phase, start, end))
    return joined


def _own(region: Region) -> Iterator[tuple[float, float]]:
    at = region.start
    for inner in sorted(region.inner, key=lambda inner: inner.start):
        if inner.start > at:
            yield at, inner.start
        at = max(at, inner.end)
    if region.end > at:
        yield at, region.end


def _phase(name: str, around: str) -> str:
    if around == "backward":
        return "backward"
    if name.endswith(("_template_autotuning", "_template_precompiling")) or name.startswith(
        "CachingAutotuner."
    ):
        return "autotune"
    return PHASE_OF.get(name, around)
