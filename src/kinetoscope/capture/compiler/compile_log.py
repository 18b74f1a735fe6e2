"""The messages of torch.compile while it works, streamed to disk in the format of TORCH_TRACE.

Four streams: the structured log, to which the backend of each graph is added; the messages on fusion and
CUDA graphs that are not in it; bytecode before and after, where the structured log lacks it; what Triton
made of each kernel. In addition, at the end, Dynamo's counters and every generated file.
"""

from __future__ import annotations

import contextlib
import dis
import hashlib
import json
import logging
import os
import re
import shutil
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import CodeType
from typing import Any

from kinetoscope.capture import torch_private
from kinetoscope.capture.compiler.stream import Stream
from kinetoscope.capture.hooks.calls import hook
from kinetoscope.capture.hooks.imports import ImportWatch

Groups = dict[str, dict[str, int]]


class Launchers:
    """Streams the launchers of autotuners of the class ``autotuner`` to ``path``, a JSON line each.

    Registers, spills and shared memory are known only once a kernel is loaded, so that they are read off
    Inductor's autotuners: when one has made its launchers, and once more at the end, when only the chosen one
    is left. Nothing here may reach the program: what cannot be read is left out.
    """

    def __init__(self, autotuner: Any, path: Path) -> None:
        self.stream, self.pid = Stream(path), os.getpid()
        self.seen: weakref.WeakSet[Any] = weakref.WeakSet()
        self.remove = hook(autotuner, "_make_launchers", after=self._made)

    def _made(self, autotuner: Any) -> None:
        if os.getpid() != self.pid:
            return
        self.seen.add(autotuner)
        self._write(autotuner, final=False)

    def _write(self, autotuner: Any, *, final: bool) -> None:
        record = {
            "kernel": str(autotuner.inductor_meta.get("kernel_name") or autotuner.fn.__name__),
            "path": str(getattr(autotuner, "filename", None) or ""),
            "final": final,
            "launchers": list(map(_described, autotuner.launchers)),
        }
        self.stream.write(json.dumps(record) + "\n")

    def close(self) -> None:
        """Say what the kernels that are still alive ended up with."""
        self.remove()
        for autotuner in self.seen:
            with contextlib.suppress(Exception):
                self._write(autotuner, final=True)
        self.stream.close()


def _described(launcher: Any) -> dict[str, object]:
    return {
        "config": dict(_config(launcher.config)),
        "registers": getattr(launcher, "n_regs", None),
        "spills": getattr(launcher, "n_spills", None),
        "shared_memory_bytes": getattr(launcher, "shared", None),
    }


def _config(config: Any) -> Iterator[tuple[str, Any]]:
    for name, value in config.kwargs.items():
        yield str(name), value if isinstance(value, (int, float, str)) else str(value)
    yield "num_warps", config.num_warps
    yield "num_stages", config.num_stages


def _since(before: Mapping[str, Mapping[str, int]], now: Mapping[str, Mapping[str, int]]) -> Groups:
    """Counters by how much they grew; one that is smaller than before was cleared meanwhile."""
    found: Groups = {}
    for group, counts in now.items():
        known = before.get(group, {})
        for name, count in counts.items():
            grown = count - known.get(name, 0)
            if grown:
                found.setdefault(group, {})[name] = grown if grown > 0 else count
    return found


# The artifact, of our own, that names the backend of the frame it is logged in.
BACKEND = "kinetoscope_backend"
# What each file holds → the end of its name.
FILES = {
    "compile_log": "log",
    "scheduler_log": "scheduler.log",
    "bytecode": "bytecode.jsonl",
    "kernels": "kernels.jsonl",
    "counters": "counters.json",
}
KERNEL_PATH = re.compile(r"^# kernel path: (\S+\.py)\s*$", re.MULTILINE)


class StructuredHandler(logging.Handler):
    """Writes every structured record, and puts each generated module aside as it appears."""

    def __init__(self, path: Path, generated: Path) -> None:
        super().__init__(logging.DEBUG)
        self.stream, self.generated = Stream(path), generated
        self.pid = os.getpid()
        self.records = 0
        self.missing: str | None = None  # why a generated module is
        self.kernel_paths: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        # A failure here must not reach the compiler: logging's own convention is to swallow it.
        try:
            if os.getpid() != self.pid:
                return
            self.records += 1
            if self.formatter is None:
                self.setFormatter(torch_private.structured_formatter())
                torch_private.log_version()
            self.stream.write(self.format(record) + "\n")
            self._keep_generated(getattr(record, "metadata", {}), getattr(record, "payload", None))
        except Exception:
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:
        """Be silent: the program's stderr is its own."""

    def _keep_generated(self, metadata: Mapping[str, Mapping[str, object]], payload: str | None) -> None:
        if "inductor_output_code" not in metadata or payload is None:
            return
        name = Path(str(metadata["inductor_output_code"].get("filename") or "")).name
        name = name or hashlib.sha256(payload.encode()).hexdigest()[:16] + ".py"
        copy = Stream(self.generated / name)
        copy.write(payload)
        copy.close()
        if copy.failure is not None:
            self.missing = copy.failure
            copy.path.unlink(missing_ok=True)
        self.kernel_paths.update(KERNEL_PATH.findall(payload))


class Tap(logging.Filter):
    """Copies a logger's records to a file, and lets through only what would have been logged without it."""

    def __init__(self, stream: Stream, level: int) -> None:
        super().__init__()
        self.stream, self.level = stream, level
        self.formatter = logging.Formatter("%(levelname)s %(asctime)s %(name)s %(message)s")

    def filter(self, record: logging.LogRecord) -> bool:
        with suppress(Exception):  # what it cannot format is the program's to log all the same
            self.stream.write(self.formatter.format(record) + "\n")
        return record.levelno >= self.level


class CompileLog:
    def __init__(self, folder: Path, rank: int, imports: ImportWatch) -> None:
        self.rank = rank
        self.home = folder / "compile"
        self.handler = StructuredHandler(self._path("compile_log"), folder / "generated")
        self.taps: list[tuple[logging.Logger, Tap, int]] = []
        self.scheduler = Stream(self._path("scheduler_log"))
        # The structured log holds bytecode of resumed functions only (2.13 to 2.15), before that of none.
        self.bytecode = Stream(self._path("bytecode"))
        self.bytecode_hook: Any = None
        self.launchers: Launchers | None = None
        self.unhook: Callable[[], None] | None = None
        self.counted_before = torch_private.dynamo_counters()  # by what the process compiled earlier
        self.notes: list[str] = []  # what of it is missing, known once it is closed
        logging.getLogger(torch_private.STRUCTURED_LOGGER).addHandler(self.handler)
        imports.when_imported(torch_private.CONVERT_FRAME, self._compiler_loaded)
        imports.when_imported(torch_private.OUTPUT_GRAPH, self._graphs_loaded)
        imports.when_imported(torch_private.TRITON_HEURISTICS, self._triton_loaded)

    @property
    def records(self) -> int:
        """How many records have been written: it grows while something compiles."""
        return self.handler.records

    def _compiler_loaded(self) -> None:
        """Dynamo was imported, so something is going to be compiled."""
        for name in torch_private.TAPPED_LOGGERS:
            logger = logging.getLogger(name)
            tap = Tap(self.scheduler, logger.getEffectiveLevel())
            self.taps.append((logger, tap, logger.level))
            logger.addFilter(tap)
            logger.setLevel(logging.DEBUG)
        from torch._dynamo.convert_frame import register_bytecode_hook

        self.bytecode_hook = register_bytecode_hook(self._keep_bytecode)

    def _graphs_loaded(self) -> None:
        """Dynamo hands a graph over to its backend, whose name it logs nowhere."""
        graph = getattr(sys.modules[torch_private.OUTPUT_GRAPH], "OutputGraph", None)
        if hasattr(graph, "call_user_compiler"):
            self.unhook = hook(graph, "call_user_compiler", before=self._keep_backend)

    def _keep_backend(self, graph: Any, *_: object) -> None:
        text = json.dumps(torch_private.backend_of(graph.compiler_fn))
        self.handler.emit(torch_private.structured_artifact(BACKEND, text))

    def _triton_loaded(self) -> None:
        autotuner = getattr(sys.modules[torch_private.TRITON_HEURISTICS], "CachingAutotuner", None)
        if hasattr(autotuner, "_make_launchers"):
            self.launchers = Launchers(autotuner, self._path("kernels"))

    def _keep_bytecode(self, code: CodeType, new_code: CodeType) -> None:
        with suppress(Exception):  # Dynamo would take a failure of ours for one of its own
            record = {
                "function": code.co_name,
                "file": code.co_filename,
                "line": code.co_firstlineno,
                "original": dis.Bytecode(code).dis(),
                "modified": dis.Bytecode(new_code).dis(),
            }
            self.bytecode.write(json.dumps(record) + "\n")

    def close(self) -> dict[str, str]:
        """End the log, gather what lies outside it; what each file is → its path in the recording."""
        logging.getLogger(torch_private.STRUCTURED_LOGGER).removeHandler(self.handler)
        for logger, tap, level in self.taps:
            logger.removeFilter(tap)
            logger.setLevel(level)
        if self.bytecode_hook is not None:
            self.bytecode_hook.remove()
        if self.unhook is not None:
            self.unhook()
        if self.launchers is not None:
            self.launchers.close()
        counters = Stream(self._path("counters"))
        if self.handler.records:
            counted = _since(self.counted_before, torch_private.dynamo_counters())
            counters.write(json.dumps(counted, indent=1))
        self._copy_kernels()
        streams = [self.handler.stream, self.scheduler, self.bytecode, counters]
        streams += [self.launchers.stream] if self.launchers is not None else []
        for stream in streams:
            stream.close()
        missing = [self.handler.missing, *(stream.failure for stream in streams)]
        self.notes += [failure for failure in missing if failure is not None]
        paths = {what: self._path(what) for what in FILES}
        for path in paths.values():
            if path.is_file() and not path.stat().st_size:
                path.unlink()
        return {what: f"compile/{path.name}" for what, path in paths.items() if path.is_file()}

    def _path(self, what: str) -> Path:
        return self.home / f"rank{self.rank}.{FILES[what]}"

    def _copy_kernels(self) -> None:
        """Copy the files of single kernels, which generated modules name, out of Inductor's cache."""
        for path in sorted(self.handler.kernel_paths):
            source = Path(path)
            if source.is_file():
                try:
                    shutil.copyfile(source, self.handler.generated / source.name)
                except OSError as error:
                    (self.handler.generated / source.name).unlink(missing_ok=True)
                    self.notes.append(f"generated code is missing: {error.strerror or error}")
                    return
