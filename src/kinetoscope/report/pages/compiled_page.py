"""What torch.compile did, as the page shows it: the rows of the document's ``compilation`` that a reader looks for."""

from __future__ import annotations

from typing import Any

import msgspec

from kinetoscope import numbers

ROWS = 20


class Line(msgspec.Struct, frozen=True):
    file: str
    line: int
    code: str = ""


class Frame(msgspec.Struct, frozen=True):
    compile_id: str = ""
    function: str | None = None
    file: str | None = None
    line: int | None = None
    status: str = "ok"
    backend: str = ""
    mode: str = ""
    cudagraphs: str = ""
    compile_s: float = 0.0
    device_time_us: float | None = None
    speed_of_light: float | None = None

    @property
    def how(self) -> str:
        """The backend, its mode and what became of CUDA graphs, in so far as they say something."""
        mode = f" ({self.mode})" if self.mode not in ("", "none", "unknown") else ""
        graphs = f", CUDA graphs {self.cudagraphs}" if self.cudagraphs not in ("", "off") else ""
        return f"{self.backend}{mode}{graphs}" if self.backend != "none" else ""


class Break(msgspec.Struct, frozen=True):
    file: str | None = None
    line: int | None = None
    function: str | None = None
    code: str | None = None
    reason: str = ""
    explanation: str = ""
    hints: list[str] = []
    count: int = 1
    cost_s: float = 0.0
    skipped_frame: bool = False
    crossings: int | None = None
    idle_us: float | None = None
    extra_launches: int | None = None
    extra_launches_per_step: float | None = None
    eager_launches: int | None = None

    @property
    def launches(self) -> str:
        """Extra launches in the recording, per step where it has steps; empty where that is not known."""
        if self.extra_launches is None or self.eager_launches is None:
            return ""
        step = self.extra_launches_per_step
        return numbers.count(self.extra_launches) + (f", {step:.3g} a step" if step is not None else "")


class Reason(msgspec.Struct, frozen=True):
    of: str = ""
    guard: str = ""


class Recompilation(msgspec.Struct, frozen=True):
    compile_id: str = ""
    function: str | None = None
    file: str | None = None
    line: int | None = None
    reasons: list[Reason] = []
    cost_s: float = 0.0
    advice: str = ""
    limit_hit: bool = False


class Failure(msgspec.Struct, frozen=True):
    compile_id: str = ""
    type: str = ""
    reason: str = ""
    file: str | None = None
    line: int | None = None
    effect: str = ""


class Kernel(msgspec.Struct, frozen=True):
    name: str = ""
    compile_id: str = ""
    direction: str = ""
    source: list[Line] = []
    device_time_us: float | None = None
    launches: int | None = None
    speed_of_light: float | None = None
    refused: bool = False
    bytes_per_s: float | None = None
    registers: int | None = None
    spills: int | None = None


class Compiled(msgspec.Struct, frozen=True):
    """The longest compilations in their order, the costliest breaks, all else as it comes; at most ``ROWS`` each."""

    frames: list[Frame] = []
    graph_breaks: list[Break] = []
    recompilations: list[Recompilation] = []
    failures: list[Failure] = []
    kernels: list[Kernel] = []


def compiled(facts: dict[str, Any] | None) -> Compiled | None:
    """What the page shows of the document's ``compilation``; None where nothing was compiled."""
    whole = msgspec.convert(facts or {}, Compiled)
    if not whole.frames:
        return None
    longest = sorted(whole.frames, key=lambda frame: -frame.compile_s)[:ROWS]
    ran = sorted(whole.kernels, key=lambda kernel: -(kernel.device_time_us or 0.0))
    return Compiled(
        [frame for frame in whole.frames if frame in longest][:ROWS],
        whole.graph_breaks[:ROWS],
        whole.recompilations[:ROWS],
        whole.failures[:ROWS],
        [kernel for kernel in ran if kernel.launches][:ROWS],
    )


def place(row: Frame | Break | Recompilation | Failure | Line) -> str:
    """``model.py:12``, of a file only its last part."""
    if row.file is None:
        return ""
    name = row.file.replace("\\", "/").rpartition("/")[2]
    return f"{name}:{row.line}" if row.line else name
