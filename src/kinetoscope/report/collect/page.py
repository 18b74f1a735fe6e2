"""What only the page shows."""

from __future__ import annotations

import msgspec

from kinetoscope.analysis.idle.causes import CAUSES
from kinetoscope.analysis.run import Run
from kinetoscope.compilation.generated import module
from kinetoscope.findings.glossary import terms
from kinetoscope.hardware import find
from kinetoscope.report.collect.measurements import measured_alone
from kinetoscope.report.collect.timeline import timeline
from kinetoscope.report.document import Report
from kinetoscope.report.document.page import FrameText, GeneratedKernel, GeneratedModule, Page, Roof

NO_GRAPHS = ("guards", "error", "runnable")


def with_page(run: Run, report: Report) -> Report:
    """The report with all events, what was generated, and what the devices can do."""
    page = Page(
        timeline=timeline(run, report.findings),
        modules=_modules(run),
        frame_texts=_frame_texts(run),
        roofs=_roofs(run),
        benches=measured_alone(run.folder) if run.folder else [],
        meanings=_meanings(report),
    )
    return msgspec.structs.replace(report, page=page)


def _meanings(report: Report) -> dict[str, str]:
    met = [row.name for row in report.ops] + [row.category for row in report.categories]
    known = {name: terms.meaning(name) for name in dict.fromkeys([*met, *CAUSES])}
    return {name: found[1] for name, found in known.items() if found}


def _modules(run: Run) -> list[GeneratedModule]:
    if run.compilation is None:
        return []
    return [
        GeneratedModule(
            graph=graph,
            code=(code := text.read()),
            post_grad=post.read() if (post := run.compilation.post_grad.get(graph)) else None,
            kernels=_kernels(code),
        )
        for graph, text in run.compilation.modules.items()
    ]


def _kernels(code: str) -> list[GeneratedKernel]:
    return [
        GeneratedKernel(
            name=kernel.name,
            first_line=code.count("\n", 0, kernel.start) + 1,
            last_line=code.count("\n", 0, kernel.end) + 1,
        )
        for kernel in module.parse(code).kernels
    ]


def _frame_texts(run: Run) -> list[FrameText]:
    texts = run.compilation.texts if run.compilation else {}
    return [
        FrameText(frame=frame, name=name, text=text.read())
        for (frame, name), text in texts.items()
        if name not in NO_GRAPHS and not name.endswith("bytecode")
    ]


def _roofs(run: Run) -> list[Roof]:
    devices = {device.name: device for trace in run.traces for device in trace.devices}
    specs = {name: find(name, device.total_memory_bytes) for name, device in devices.items()}
    return [
        Roof(device=name, bandwidth=spec.bandwidth, peaks=dict(spec.peaks))
        for name, spec in specs.items()
        if spec is not None
    ]
