"""The files that were read, the machine that recorded them, and how far they can be trusted."""

from __future__ import annotations

import msgspec

from kinetoscope.document import EnvironmentRow, SourceRow
from kinetoscope.document.collect.rows import row
from kinetoscope.document.page import SourceFile
from kinetoscope.sources.run import LoadedRun

_VERSIONS = {"cuda_runtime": "cuda_runtime_version", "cuda_driver": "cuda_driver_version"}


def sources(run: LoadedRun) -> list[SourceRow]:
    return [
        row(SourceRow, trace.source, notes=[damage.text for damage in trace.source.damages])
        for trace in run.traces
    ]


def environment(run: LoadedRun) -> EnvironmentRow:
    """The machine: from the recording's manifest, else from the traces' metadata."""
    names = list(dict.fromkeys(device.name for trace in run.traces for device in trace.devices))
    if run.manifest is not None:
        recorded = msgspec.to_builtins(run.manifest.environment)
        return msgspec.convert({"device_names": names, **recorded}, EnvironmentRow)
    metadata = run.traces[0].metadata if run.traces else {}
    versions = {key: metadata.get(name) for key, name in _VERSIONS.items()}
    known = {key: value for key, value in versions.items() if type(value) in (int, float, str)}
    return msgspec.convert({"device_names": names, "torch": None, **known}, EnvironmentRow)


def program(run: LoadedRun) -> list[SourceFile]:
    """The program's own files as the recording keeps them; none of a bare trace."""
    return [SourceFile(path=path, text=text) for path, text in run.program.items()]
