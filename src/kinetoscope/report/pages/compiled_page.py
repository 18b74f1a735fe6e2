"""The page's section on torch.compile: of the document's ``compilation``, what a reader looks for."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from kinetoscope import numbers
from kinetoscope.report.document.compilation import (
    Compilation,
    Failure,
    Frame,
    GraphBreak,
    Recompilation,
    SourceLine,
)
from kinetoscope.report.words import compiled as words

ROWS = 20


def compiled(compilation: Compilation | None) -> Compilation | None:
    """What the page shows of ``compilation``; None where nothing was compiled.

    The longest compilations in their order, the kernels that ran by device time, all else as it comes;
    at most ``ROWS`` each.
    """
    if compilation is None or not compilation.frames:
        return None
    longest = sorted(compilation.frames, key=lambda frame: -frame.compile_s)[:ROWS]
    ran = [kernel for kernel in compilation.kernels if kernel.launches]
    return msgspec.structs.replace(
        compilation,
        frames=tuple(sorted(longest, key=lambda frame: frame.index)),
        graph_breaks=compilation.graph_breaks[:ROWS],
        recompilations=compilation.recompilations[:ROWS],
        failures=compilation.failures[:ROWS],
        kernels=tuple(sorted(ran, key=lambda kernel: -(kernel.device_time_us or 0.0))[:ROWS]),
    )


def how(frame: Frame) -> str:
    """The backend, its mode and what became of CUDA graphs, in so far as they say something."""
    if frame.backend == "none":
        return ""
    mode = f" ({frame.mode})" if frame.mode not in ("none", "unknown") else ""
    graphs = f", CUDA graphs {frame.cudagraphs}" if frame.cudagraphs != "off" else ""
    return f"{frame.backend}{mode}{graphs}"


def extra_launches(row: GraphBreak) -> str:
    """Extra launches in the recording, per step where it has steps; empty where that is not known."""
    if row.extra_launches is None or row.eager_launches is None:
        return ""
    step = row.extra_launches_per_step
    return numbers.count(row.extra_launches) + (f", {step:.3g} a step" if step is not None else "")


def place(row: Frame | GraphBreak | Recompilation | Failure | SourceLine) -> str:
    """``model.py:12``; empty where that is not known."""
    return words.place(row.file, row.line) if row.file is not None else ""


FILTERS: dict[str, Callable[..., str]] = {"place": place, "how": how, "extra_launches": extra_launches}
