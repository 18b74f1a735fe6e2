"""How fast compile logs are read, in CPU seconds of this process.

    python benchmarks/compile_log.py LOG [LOG …] [--megabytes 130]

The logs (plain or .gz) are put one behind the other, as often as it takes to reach the size; then headers alone are
read (payloads are found, not checked), payloads are checked against their md5, and everything goes to the JSON document
that ``kinetoscope graphs --json`` prints. tlparse, which writes a page an artifact, is timed on the same file if it is
installed; it does another job: it renders every text, and ranks and joins nothing.
"""

from __future__ import annotations

import argparse
import gzip
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from kinetoscope.compilation import as_contract, load, log

Result = TypeVar("Result")


def timed(what: str, megabytes: float, work: Callable[[], Result]) -> Result:
    cpu, wall = time.process_time(), time.perf_counter()
    result = work()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    print(f"{what:<34} {cpu:6.2f} s CPU {wall:6.2f} s wall {megabytes / cpu:7.0f} MB/s")
    return result


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
        document = timed("to the JSON document", size, lambda: msgspec.json.encode(as_contract(load(path))))
        print(f"the document has {len(document) / 1e6:.1f} MB")
        if tlparse := shutil.which("tlparse"):
            command = [tlparse, str(path), "-o", str(Path(folder) / "pages"), "--no-browser"]
            timed(
                "tlparse (its pages; wall time)", size, lambda: subprocess.run(command, capture_output=True)
            )


if __name__ == "__main__":
    main()
