"""How fast compile logs are read, in CPU seconds of this process.

    python benchmarks/compile_log.py LOG [LOG …] [--megabytes 130] [--tlparse PATH]

The logs (plain or .gz) are put one behind the other, as often as it takes to reach the size; then headers
alone are read (payloads are found, not checked), payloads are checked against their md5, and everything goes
to the JSON document that ``kinetoscope graphs --json`` prints. ``--tlparse`` times that tool on the same file
in the same run: as it comes (a page an artifact, code coloured), and with its plain text. It does another
job: it writes every text out as a page, and ranks and joins nothing. What comes nearest to it here is the
document with all texts in it, so that is timed too.
"""

from __future__ import annotations

import argparse
import gzip
import resource
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from kinetoscope.compilation.log import read as log
from kinetoscope.compilation.sources import load
from kinetoscope.document.collect.compilation import as_document

Result = TypeVar("Result")


def timed(what: str, megabytes: float, work: Callable[[], Result]) -> tuple[Result, float]:
    """What the work gives, and its CPU seconds."""
    cpu, wall = time.process_time(), time.perf_counter()
    result = work()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    print(f"{what:<34} {cpu:6.2f} s CPU {wall:6.2f} s wall {megabytes / cpu:7.0f} MB/s")
    return result, cpu


def headers(path: Path) -> int:
    """Records found without looking at their payloads."""
    data = path.read_bytes()
    return sum(
        1
        for match in log.RECORD_START.finditer(data)
        if log.KIND.search(data, match.end(), match.end() + 4096)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("logs", nargs="+", type=Path)
    parser.add_argument("--megabytes", type=int, default=130)
    parser.add_argument("--tlparse", metavar="PATH", help="the tlparse to time beside")
    arguments = parser.parse_args()
    parts = [gzip.decompress(p.read_bytes()) if p.suffix == ".gz" else p.read_bytes() for p in arguments.logs]
    whole = b"".join(part if part.endswith(b"\n") else part + b"\n" for part in parts)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "whole.log"
        with path.open("wb") as file:
            while file.tell() < arguments.megabytes * 1e6:
                file.write(whole)
        size = path.stat().st_size / 1e6
        print(f"{size:.0f} MB, {len(arguments.logs)} logs over and over")
        timed("headers only", size, lambda: headers(path))
        timed("records, payloads checked", size, lambda: log.read(path))
        document, ours = timed("to the JSON document", size, lambda: encoded(path, texts=False))
        print(f"the document has {len(document) / 1e6:.1f} MB")
        whole_document, _ = timed("the same with every text in it", size, lambda: encoded(path, texts=True))
        print(f"the document has {len(whole_document) / 1e6:.1f} MB")
        if arguments.tlparse:
            compare(arguments.tlparse, path, Path(folder), size, ours)


def encoded(path: Path, *, texts: bool) -> bytes:
    return msgspec.json.encode(as_document(load(path), texts=texts))


def compare(tlparse: str, path: Path, folder: Path, size: float, ours: float) -> None:
    """Time tlparse on the log, in CPU seconds of its process, and say how many times ours that is."""
    for what, options in (("tlparse, its pages", []), ("tlparse --plain-text", ["--plain-text"])):
        pages = folder / what.replace(" ", "-")
        command = [tlparse, str(path), "-o", str(pages), "--no-browser", *options]
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        done = subprocess.run(command, capture_output=True)
        after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - began
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        files = [file.stat().st_size for file in pages.rglob("*") if file.is_file()]
        print(
            f"{what:<34} {cpu:6.2f} s CPU {wall:6.2f} s wall {size / cpu:7.0f} MB/s, "
            f"{cpu / ours:.0f} × ours, {len(files)} files of "
            f"{sum(files) / 1e6:.0f} MB, status {done.returncode}"
        )


if __name__ == "__main__":
    main()
