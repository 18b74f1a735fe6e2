"""The rows of the page alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from kinetoscope.analysis.idle.causes import CAUSES
from kinetoscope.analysis.origins.lines import op_lines
from kinetoscope.bench.request import BenchResult
from kinetoscope.comparison.comparability import has_stacks
from kinetoscope.compilation.generated import module
from kinetoscope.document import Report
from kinetoscope.document import page as document
from kinetoscope.document.collect.memory import allocator_histories
from kinetoscope.document.collect.rows import row
from kinetoscope.document.collect.sources import program
from kinetoscope.document.collect.timeline import timeline
from kinetoscope.findings.glossary import explanation as terms
from kinetoscope.hardware import find
from kinetoscope.recording import plain_file
from kinetoscope.sources.run import LoadedRun

NO_GRAPHS = ("guards", "error", "runnable")


def with_page(run: LoadedRun, report: Report) -> Report:
    """The report with all events, what was generated, and what the devices can do."""
    page = document.Page(
        timeline=timeline(run, _pointed_at(report)),
        program=program(run),
        clocks=_clocks(run),
        modules=_modules(run),
        frame_texts=_frame_texts(run),
        roofs=_roofs(run),
        benches=_benches(run.folder) if run.folder else [],
        meanings=_meanings(report),
        command=list(run.manifest.command) if run.manifest else [],
        peak_memory_bytes=max((rank.peak_memory_bytes or 0 for rank in run.records), default=0) or None,
        allocator=allocator_histories(run),
        unrecorded=_unrecorded(run, report),
    )
    return msgspec.structs.replace(report, page=page)


def _unrecorded(run: LoadedRun, report: Report) -> list[str]:
    events = [trace for trace in run.traces if len(trace.host_events)]
    has_lines = (
        any(map(has_stacks, events)) or bool(op_lines(run)) or any(row.source for row in report.kernels)
    )
    has_shapes = any(trace.host_arguments["input_dims"].count() for trace in events)
    has_memory = bool(report.memory or report.memory_peaks)
    known = {"stacks": has_lines, "shapes": has_shapes, "memory": has_memory}
    return [option for option, is_there in known.items() if events and not is_there]


def _pointed_at(report: Report) -> Iterator[int]:
    for finding in report.findings:
        for item in finding.evidence:
            yield from item.events
    for part in report.replay.critical_path if report.replay else ():
        yield from part.events


def _meanings(report: Report) -> dict[str, str]:
    met = [row.name for row in report.ops] + [row.category for row in report.categories]
    known = {name: terms.meaning(name) for name in dict.fromkeys([*met, *CAUSES])}
    return {name: found[1] for name, found in known.items() if found}


def _benches(folder: Path) -> list[document.BenchedKernel]:
    """Each kernel by its newest measurement; files that hold none are passed."""
    found: dict[str, document.BenchedKernel] = {}
    for path in sorted((folder / "bench").glob("kernels-*.json")):
        try:
            result = msgspec.json.decode(plain_file.content(path), type=BenchResult)
        except (OSError, msgspec.MsgspecError):
            continue
        worth = {(one.module, one.name): one.could_win_ns for one in result.worth if not one.spreads}
        found |= {
            kernel.name: row(
                document.BenchedKernel,
                kernel,
                cold_ns=(cold.p10_ns, cold.median_ns, cold.p90_ns) if (cold := kernel.cold) else None,
                samples=cold.n if cold else 0,
                hot_ns=hot.median_ns if (hot := kernel.hot) else None,
                reference=f"{kernel.reference.status}: {kernel.reference.text}" if kernel.reference else None,
                could_win_ns=worth.get((kernel.module, kernel.name)),
            )
            for kernel in result.kernels
        }
    return list(found.values())


def _clocks(run: LoadedRun) -> list[document.DeviceClock]:
    return [
        row(document.DeviceClock, sample, rank=rank.rank) for rank in run.records for sample in rank.clocks
    ]


def _modules(run: LoadedRun) -> list[document.GeneratedModule]:
    if run.compilation is None:
        return []
    return [
        document.GeneratedModule(
            graph=graph,
            code=(code := text.read()),
            post_grad=post.read() if (post := run.compilation.post_grad.get(graph)) else None,
            kernels=_kernels(code),
        )
        for graph, text in run.compilation.modules.items()
    ]


def _kernels(code: str) -> list[document.KernelPlace]:
    return [
        document.KernelPlace(
            name=kernel.name,
            first_line=code.count("\n", 0, kernel.start) + 1,
            last_line=code.count("\n", 0, kernel.end) + 1,
        )
        for kernel in module.parse(code).kernels
    ]


def _frame_texts(run: LoadedRun) -> list[document.FrameText]:
    texts = run.compilation.texts if run.compilation else {}
    return [
        document.FrameText(frame=frame, name=name, text=text.read())
        for (frame, name), text in texts.items()
        if name not in NO_GRAPHS and not name.endswith("bytecode")
    ]


def _roofs(run: LoadedRun) -> list[document.Roof]:
    devices = {device.name: device for trace in run.traces for device in trace.devices}
    specs = {name: find(name, device.total_memory_bytes) for name, device in devices.items()}
    return [
        document.Roof(device=name, bandwidth=spec.bandwidth, peaks=dict(spec.peaks))
        for name, spec in specs.items()
        if spec is not None
    ]
