"""What of a run is missing from its recording: nothing that is counted in the rest can be relied on."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from kinetoscope.analysis.health.notes import INFO
from kinetoscope.analysis.health.verdict import health
from kinetoscope.sources.run import Run
from kinetoscope.trace.damage import is_loss

# Notes that say that device work was launched and is not in the recording.
OF_DEVICE_WORK = ("no-device-events", "launches-without-kernel")
# Damages of compile logs that take records away.
OF_LOGS = {
    "cut": "the compile log ends within a record",
    "bad-json": "records of the compile log are damaged",
}


def losses(run: Run) -> tuple[str, ...]:
    """Sentences on what was lost, the traces' own damage first; empty where nothing is known to be."""
    return tuple(dict.fromkeys([*_of_traces(run), *run.lost, *_of_logs(run)]))


def _of_traces(run: Run) -> Iterable[str]:
    for source in (trace.source for trace in run.traces):
        for damage in source.damages:
            if is_loss(damage.code):
                yield f"{Path(source.path).name}: {damage.text}"
    yield from (
        note.text for note in health(run).notes if note.code in OF_DEVICE_WORK and note.gravity != INFO
    )


def _of_logs(run: Run) -> Iterable[str]:
    for source in run.compilation.sources if run.compilation else ():
        yield from (
            f"{Path(source.path).name}: {words}" for code, words in OF_LOGS.items() if code in source.damages
        )
