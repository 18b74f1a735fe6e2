"""Whether there are compile logs in what is named, judged without what reads them."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator
from pathlib import Path

from kinetoscope.compilation.log.debug_folder import dedicated_logs, is_debug_folder
from kinetoscope.recording import folder as folders
from kinetoscope.recording import manifest as manifests

SIDECARS = SCHEDULER, COUNTERS, BYTECODE, KERNELS = (
    "scheduler.log", "counters.json", "bytecode.jsonl", "kernels.jsonl",
)  # fmt: skip
RECORD = re.compile(rb"^[VDIWEC]\d{4} [^\n]*?\] \{\"", re.M)
SCHEDULER_TEXT = re.compile(rb"(?:\[|\.)__(?:fusion|cudagraphs|ir_pre_fusion|ir_post_fusion)(?:\]| )")


def has_compile_log(item: Path) -> bool:
    """Whether there is a compile log to read in it, judged by names and the head of each file."""
    if item.is_file():
        return looks_like_compile_log(item) or is_scheduler_text(item)
    if manifests.is_recording(item):
        logs = (record.compile_log for record in folders.opened(item).ranks)
        return any((item / log).is_file() for log in logs if log)
    return is_debug_folder(item) or any(map(looks_like_compile_log, candidates(item)))


def companions(item: Path) -> list[Path]:
    """Files that are read with a log or a folder of logs, and may lie outside of it, or not exist."""
    return dedicated_logs(item) if item.is_dir() else [next_to(item, name) for name in SIDECARS]


def next_to(log: Path, name: str) -> Path:
    """``rank0.NAME`` in the folder of ``rank0.log``."""
    stem = re.sub(r"\.log(?:\.gz)?$", "", log.name)
    return log.with_name(f"{stem}.{name}")


def candidates(folder: Path) -> Iterator[Path]:
    """The files of a folder that may be logs, by their names."""
    for path in sorted(folder.iterdir()):
        if path.is_file() and re.search(r"\.(?:log|txt)(?:\.gz)?$", path.name):
            yield path


def looks_like_compile_log(path: Path) -> bool:
    """Whether the file's first 64 KiB hold a record's header."""
    return _begins_with(path, RECORD, 1 << 16)


def is_scheduler_text(path: Path) -> bool:
    """Whether it is the text that ``TORCH_LOGS`` writes of Inductor's scheduler."""
    return _begins_with(path, SCHEDULER_TEXT, 1 << 20)


def _begins_with(path: Path, pattern: re.Pattern[bytes], most: int) -> bool:
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
            return pattern.search(file.read(most)) is not None
    except (OSError, EOFError, zlib.error):
        return False
