"""One statement of SQL in a process of its own, under a limit of time and memory, of which Polars has none.
The tables are handed over as files that the process maps, and the rows come back as one."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import polars as pl

from kinetoscope.recording import plain_file

SECONDS, SECONDS_VARIABLE = 20.0, "KINETOSCOPE_QUERY_SECONDS"
A_THREAD = 64 << 20  # bytes in addition to ten times the tables' own, and for each thread of the engine
MEMORY, MEMORY_VARIABLE = 1 << 30, "KINETOSCOPE_QUERY_MEMORY"
RESULT, REASON = "result.arrow", "reason.json"


class RefusedError(Exception):
    """Why there are no rows; ``hint`` is what may help, where the statement itself is not at fault."""

    def __init__(self, what: str, hint: str | None = None) -> None:
        super().__init__(what)
        self.hint = hint


def executed(tables: Mapping[str, pl.LazyFrame], sql: str) -> pl.DataFrame:
    """The rows that a statement takes from tables. ``tables``: those that the statement does not name are not
    handed over. Raises RefusedError where it cannot be run, or takes too much."""
    with tempfile.TemporaryDirectory(prefix="kinetoscope-query-") as folder:
        home, size = Path(folder), 0
        for name, frame in tables.items():
            named = name.lower() in sql.lower()
            table = frame.collect() if named else pl.DataFrame(schema=frame.collect_schema())
            table.write_ipc(home / f"{name}.arrow")
            size += (home / f"{name}.arrow").stat().st_size
        order = json.dumps(
            {"sql": sql, "tables": [*tables], "memory": _limit(MEMORY_VARIABLE, MEMORY) + 10 * size}
        )
        return _answer(home, order)


def _answer(home: Path, order: str) -> pl.DataFrame:
    seconds = _limit(SECONDS_VARIABLE, SECONDS)
    command = [
        sys.executable,
        "-c",
        _PROGRAM.format(source=str(Path(__file__).resolve().parents[2])),
        str(home),
    ]
    try:
        done = subprocess.run(
            command, input=order.encode(), capture_output=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired as error:
        hint = f"ask for less, or allow more seconds: {SECONDS_VARIABLE}=120"
        raise RefusedError(f"it takes more than {seconds:g} s", hint) from error
    if (home / REASON).is_file():
        raise RefusedError(*json.loads(plain_file.content(home / REASON)))
    if done.returncode or not (home / RESULT).is_file():
        hint = f"ask for less, or allow more bytes of memory: {MEMORY_VARIABLE}={8 << 30}"
        raise RefusedError("it takes more memory than it is given, or the engine gave up on it", hint)
    return pl.read_ipc(io.BytesIO((home / RESULT).read_bytes()))


_PROGRAM = (
    "import sys; sys.path.insert(0, {source!r}); from kinetoscope.analysis.bounded import serve; serve()"
)


def _limit(variable: str, usual: float) -> int:
    text = os.environ.get(variable, "")
    return int(text[:15]) if text.isdecimal() and int(text[:15]) else int(usual)


def serve() -> None:
    """Run the order on standard input; the rows, or what is wrong, go into the folder that is named."""
    home, order = Path(sys.argv[1]), json.loads(sys.stdin.buffer.read())
    frames = {name: pl.scan_ipc(home / f"{name}.arrow") for name in order["tables"]}
    _confine(order["memory"])
    try:
        pl.SQLContext(frames=frames).execute(order["sql"], eager=True).write_ipc(home / RESULT)
    except (pl.exceptions.PolarsError, OSError, ValueError, OverflowError) as error:
        reason: tuple[str, str | None] = str(error), None
    except (pl.exceptions.PanicException, MemoryError, RecursionError) as error:
        reason = f"the engine gave up on it ({error})", "write it in another way"
    else:
        return
    (home / REASON).write_text(json.dumps(reason))


def _confine(memory: int) -> None:
    """Have the system refuse more memory than that beyond what the process has, and larger files."""
    try:
        import resource
    except ImportError:  # Windows has no such limits: the time alone is kept
        return
    try:
        pl.select(
            pl.lit(1)
        ).lazy().collect()  # starts the engine's threads: what they map is not the statement's
        mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except (OSError, ValueError):
        return
    for limit, most in (
        (resource.RLIMIT_AS, mapped + memory + A_THREAD * pl.thread_pool_size()),
        (resource.RLIMIT_FSIZE, memory),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(limit)
        if hard == resource.RLIM_INFINITY or most < hard:
            resource.setrlimit(limit, (most, hard))
