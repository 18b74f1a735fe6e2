"""Find the compile logs in what is named: a file, a folder, a recording, a TORCH_COMPILE_DEBUG folder."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from kinetoscope.compilation import build, fusion
from kinetoscope.compilation.build import RecordedBytecode, Sidecar
from kinetoscope.compilation.generated import launchers
from kinetoscope.compilation.log import read as log
from kinetoscope.compilation.log import recognise
from kinetoscope.compilation.log.debug_folder import debug_log, dedicated_logs, is_debug_folder
from kinetoscope.compilation.log.read import Log
from kinetoscope.compilation.log.recognise import candidates, is_scheduler_text, looks_like_compile_log
from kinetoscope.compilation.model import CompiledProgram
from kinetoscope.errors import InputError
from kinetoscope.recording import folder as folders
from kinetoscope.recording import manifest as manifests
from kinetoscope.recording import plain_file

Line = TypeVar("Line")
RANK = re.compile(r"rank[_-]?(\d+)")
BYTECODE = msgspec.json.Decoder(RecordedBytecode)
COUNTERS = msgspec.json.Decoder(dict[str, dict[str, int]])


def load(*inputs: str | Path) -> CompiledProgram:
    """The compile logs under ``inputs``, read: all ranks together. Raises InputError where an input does not
    exist, or nothing under any of them is a compile log."""
    found: list[tuple[Log, int | None, Sidecar]] = []
    texts: list[Path] = []
    for item in map(Path, inputs):
        if not item.exists():
            raise InputError("no such file or folder", where=str(item))
        logs, schedulers = _find(item)
        found += logs
        texts += schedulers
    if texts:
        # TORCH_LOGS text that stands alone belongs to the log next to it, or to nothing but itself.
        scheduler = fusion.parse(line for path in texts for line in _lines(path))
        if found:
            first = found[0]
            found[0] = (first[0], first[1], msgspec.structs.replace(first[2], scheduler=scheduler))
        else:
            found.append((Log(str(texts[0]), b"", ()), None, Sidecar(scheduler=scheduler)))
    if not found:
        raise InputError(
            "no compile log in it",
            where=", ".join(map(str, inputs)),
            hint="record one with `kinetoscope run`, or with TORCH_TRACE=folder set before torch is imported",
        )
    return build.build(found)


def _find(item: Path) -> tuple[list[tuple[Log, int | None, Sidecar]], list[Path]]:
    if item.is_file():
        if looks_like_compile_log(item):
            return [(log.read(item), _rank(item), _sidecar(item))], []
        return [], [item] if is_scheduler_text(item) else []
    if manifests.is_recording(item):
        paths = [(item / r.compile_log, r.rank) for r in folders.opened(item).ranks if r.compile_log]
        return [(log.read(path), rank, _sidecar(path)) for path, rank in paths if path.is_file()], []
    if is_debug_folder(item):
        logs = [log.read(path) for path in dedicated_logs(item)] or [debug_log(item)]
        sidecar = Sidecar(scheduler=fusion.of_debug_folder(item) if len(logs) == 1 else build.NO_SCHEDULER)
        return [(read, None, sidecar) for read in logs], []
    all = list(candidates(item))
    logs = [path for path in all if looks_like_compile_log(path)]
    own = {recognise.next_to(path, recognise.SCHEDULER) for path in logs}
    texts = [p for p in all if p not in logs and p not in own and is_scheduler_text(p)]
    return [(log.read(path), _rank(path), _sidecar(path)) for path in logs], texts


def _sidecar(path: Path) -> Sidecar:
    scheduler = recognise.next_to(path, recognise.SCHEDULER)
    return Sidecar(
        scheduler=fusion.parse(_lines(scheduler)) if scheduler.is_file() else build.NO_SCHEDULER,
        counters=next(_decoded(recognise.next_to(path, recognise.COUNTERS), COUNTERS, between=b"\0"), {}),
        bytecode=tuple(_decoded(recognise.next_to(path, recognise.BYTECODE), BYTECODE)),
        loaded=tuple(_decoded(recognise.next_to(path, recognise.KERNELS), launchers.decoder)),
    )


def _decoded(path: Path, decoder: msgspec.json.Decoder[Line], between: bytes = b"\n") -> Iterator[Line]:
    if path.is_file():
        for line in plain_file.content(path).split(between):
            with suppress(*manifests.UNREADABLE):  # the last line of a program that was killed
                yield decoder.decode(line)


def _rank(path: Path) -> int | None:
    match = RANK.search(path.name)
    return int(match[1]) if match else None


def _lines(path: Path) -> Iterator[str]:
    """As far as they can be read: a packed file may be cut, or damaged."""
    data = log.contents(path, Counter())
    lines = data.splitlines() if isinstance(data, bytes) else iter(data.readline, b"")
    for line in lines:
        yield line.decode(errors="replace")
