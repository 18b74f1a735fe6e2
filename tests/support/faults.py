"""Attacks on everything that is read: bytes of traces and logs, values of manifests. Run from the
repository:

    PYTHONPATH=src:tests/support python -m faults [--tries 100] [--seed 0] [--keep FOLDER]

prints a table of tries and failures by class, ends with 1 if any failed, and keeps the inputs of those that
did. An attack fails as a fault (an exception that is not a KinetoscopeError), as a hang (more than ten
seconds), or as a silent loss (a twentieth of the events is gone, and the verdict is good).
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from rich.console import Console

from kinetoscope.document.collect.report import build
from kinetoscope.errors import KinetoscopeError
from kinetoscope.recording import manifest as manifests
from kinetoscope.sources.run import LoadedRun, load
from kinetoscope.views import overview

FIXTURES = Path(__file__).parents[1] / "fixtures"
RECORDED = FIXTURES / "h200_breaks" / "breaks.json.gz"
TRACE = gzip.decompress(RECORDED.read_bytes())
LOG = gzip.decompress((FIXTURES / "h200_breaks" / "breaks.log.gz").read_bytes())
SECONDS = 10
LOSS = 0.05
OUTCOMES = ("read", "refused", "fault", "hang", "silent loss")
WRONG: tuple[Any, ...] = (
    *(None, True, -1, 0, 10**30, 1e308, -0.5),
    *("", "../../x", "/etc/hostname", "\0", "\x1b]52;c;aGk=\x07"),
    *([], {}, [[]]),
)


ROW_VALUES: tuple[Any, ...] = (
    *(None, -1, 0, (1 << 63) - 1, -(1 << 63), 1e308, float("inf"), -0.5),
    *("", "../../x", "\0", "\x1b]52;c;aGk=\x07", b"", b"\xff" * 70_000, "a" * 70_000),
)


class Attack(NamedTuple):
    """An input of a class, made of a seed in a folder; what it is to be opened as."""

    name: str
    make: Callable[[random.Random, Path], Path]


def flipped(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.randint(1, 8)):
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def zeroed(data: bytes, chance: random.Random) -> bytes:
    start, end = sorted(chance.randrange(len(data)) for _ in range(2))
    return data[:start] + b"\0" * (end - start) + data[end:]


def cut(data: bytes, chance: random.Random) -> bytes:
    return data[: chance.randrange(1, len(data))]


def beheaded(data: bytes, chance: random.Random) -> bytes:
    return data[chance.randrange(1, len(data)) :]


def spliced(data: bytes, chance: random.Random) -> bytes:
    """A part of the file once more, somewhere in it, as after a copy that was retried."""
    start, end = sorted(chance.randrange(len(data)) for _ in range(2))
    at = chance.randrange(len(data))
    return data[:at] + data[start:end] + data[at:]


def sprinkled(data: bytes, chance: random.Random) -> bytes:
    """One byte that does not belong there wherever one field stands, up to once an event."""
    field = chance.choice([b'"ph"', b'"cat"', b'"name"', b'"ts"', b'"dur"', b'"args"', b'": ', b"},"])
    byte = chance.choice([b"\0", b"\xff", b'"', b"{", b"}", b"[", b"]", b"\\", b","])
    return data.replace(field, byte + field, chance.choice([1, 10, -1]))


def with_junk(data: bytes, chance: random.Random) -> bytes:
    junk = chance.choice([b"}", b" ", b'"', b"},{", b'{"ph":', b"\n", b"[", b"\\", b'}],"'])
    return data[: chance.choice([len(data), len(data) * 2 // 3])] + junk * (1_000_000 // len(junk))


BYTES = (flipped, zeroed, cut, beheaded, spliced, sprinkled, with_junk)


def file_of(data: bytes, name: str, change: Callable[[bytes, random.Random], bytes], packed: bool) -> Attack:
    def make(chance: random.Random, folder: Path) -> Path:
        path = folder / (f"{name}.gz" if packed else name)
        path.write_bytes(change(gzip.compress(data, 1, mtime=0) if packed else data, chance))
        return path

    kind = "trace" if data is TRACE else "compile log"
    return Attack(f"{kind}{', gzip' if packed else ''}: {change.__name__.replace('_', ' ')}", make)


EXPORTED = """
import sys, nsys_exports
from pathlib import Path
from kinetoscope.sources.run import load
nsys_exports.of_trace(load(sys.argv[1]).traces[0], Path(sys.argv[2]))
"""


@cache
def export() -> bytes:
    """The same run as Nsight Systems would have exported it. Another process makes it: one that used Polars
    has threads, and what ``attack`` forks would wait for them."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.sqlite"
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        words = [sys.executable, "-c", EXPORTED, str(RECORDED), str(path)]
        subprocess.run(words, env=environment, check=True)
        return path.read_bytes()


def export_of(change: Callable[[bytes, random.Random], bytes], packed: bool) -> Attack:
    def make(chance: random.Random, folder: Path) -> Path:
        path = folder / ("run.sqlite.gz" if packed else "run.sqlite")
        path.write_bytes(change(gzip.compress(export(), 1, mtime=0) if packed else export(), chance))
        return path

    return Attack(f"export{', gzip' if packed else ''}: {change.__name__}", make)


def values_of_rows(chance: random.Random, folder: Path) -> Path:
    """Values of an export's tables become others of any kind: a column of SQLite takes them all."""
    path = folder / "run.sqlite"
    path.write_bytes(export())
    with sqlite3.connect(path) as database:
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for _ in range(chance.choice([1, 20, 200])):
            table = chance.choice(tables)
            column = chance.choice([row[1] for row in database.execute(f'PRAGMA table_info("{table}")')])
            rows = "rowid % 97 = ?" if chance.random() < 0.2 else "rowid = ?"
            update = f'UPDATE "{table}" SET "{column}" = ? WHERE {rows}'
            database.execute(update, (chance.choice(ROW_VALUES), chance.randrange(97)))
    database.close()
    return path


def values_of_events(chance: random.Random, folder: Path) -> Path:
    document = json.loads(TRACE)
    for event in chance.sample(document["traceEvents"], chance.choice([1, 20, 200])):
        _replace_one(event, chance)
    path = folder / "trace.json"
    path.write_text(json.dumps(document))
    return path


def manifest_values(chance: random.Random, folder: Path) -> Path:
    manifest: dict[str, Any] = {
        "schema": manifests.SCHEMA,
        "created": "2026-01-01T00:00:00+00:00",
        "command": ["python", "x.py"],
        "environment": {"torch": "2.13.0", "devices": [], "variables": {}},
        "ranks": [_record()],
        "exit": chance.choice(["ok", "running", "signal: SIGKILL"]),
        "status": 0,
    }
    for _ in range(chance.randint(1, 3)):
        _replace_one(manifest, chance)
    return _recording(folder, manifest)


def rank_reports(chance: random.Random, folder: Path) -> Path:
    """What is left of a run whose parent was killed, damaged as well."""
    path = _recording(folder, {"schema": manifests.SCHEMA, "exit": "running"})
    report: dict[str, Any] = {"record": _record(), "environment": {"torch": "2.13.0"}}
    _replace_one(report, chance)
    (path / "ranks").mkdir()
    (path / "ranks" / "rank0.claim").touch()
    content = json.dumps(report).encode()
    (path / "ranks" / "rank0.json").write_bytes(
        chance.choice([content, cut(content, chance), flipped(content, chance)])
    )
    trace = path / "trace" / "rank0.json"
    trace.write_bytes(chance.choice([b"", TRACE, cut(TRACE, chance)]))
    return path


def _record() -> dict[str, Any]:
    run = {"step_s": [0.1, 0.2]}
    steps = {
        "found_by": "optimizer",
        "profiled_s": [0.1, 0.2],
        "unprofiled_s": [0.1],
        "before": run,
        "after": run,
    }
    clock = {"device": 0, "time_ns": 2, "moment": "start", "sm_clock_mhz": 1000}
    files = {"trace": "trace/rank0.json", "compile_log": "compile/rank0.log"}
    facts = {"steps": steps, "clocks": [clock], "exit": "ok", "wall_s": 1.0, "notes": ["n"]}
    return {"rank": 0, "pid": 1, **files, **facts}


def _recording(folder: Path, manifest: Any) -> Path:
    path = folder / "recording"
    for name, content in (("trace/rank0.json", TRACE), ("compile/rank0.log", LOG)):
        (path / name).parent.mkdir(parents=True)
        (path / name).write_bytes(content)
    (path / manifests.FILE).write_text(json.dumps(manifest))
    return path


def _replace_one(node: Any, chance: random.Random) -> None:
    """One value somewhere in a document becomes one of another kind, or an absurd one of its own."""
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        key = chance.choice(keys)
        if isinstance(node[key], (dict, list)) and node[key] and chance.random() < 0.8:
            node = node[key]
            continue
        same = [value for value in WRONG if type(value) is type(node[key])]
        node[key] = chance.choice(same if same and chance.random() < 0.7 else WRONG)
        return


ATTACKS = (
    *(file_of(TRACE, "trace.json", change, packed) for change in BYTES for packed in (False, True)),
    *(file_of(LOG, "rank0.log", change, packed) for change in BYTES for packed in (False, True)),
    *(export_of(change, packed) for change in BYTES[:5] for packed in (False, True)),
    Attack("export: absurd values", values_of_rows),
    Attack("trace: absurd values", values_of_events),
    Attack("manifest: absurd values", manifest_values),
    Attack("recording of a run that was killed", rank_reports),
)


def outcome(path: Path, whole: int) -> str:
    """One of ``OUTCOMES``; a fault carries the exception behind it."""

    def hangs(_: int, __: FrameType | None) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, hangs)
    signal.alarm(SECONDS)
    try:
        run = load(path)
        report = build(run)
        overview.show(report, [str(path)], Console(file=io.StringIO(), width=100))
    except KinetoscopeError:
        return "refused"
    except TimeoutError:
        return "hang"
    except Exception as error:
        return f"fault: {type(error).__name__}: {error}"
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    lost = whole - _events(run)
    return "silent loss" if lost > LOSS * whole and report.health.verdict == "good" else "read"


def _events(run: LoadedRun) -> int:
    return sum(len(trace.host_events) + len(trace.device_events) for trace in run.traces)


def attempt(attack: Attack, seed: int, folder: Path) -> tuple[str, float, Path]:
    """What came of an attack, the seconds it took, and its input."""
    whole = 0 if "log" in attack.name else _whole("export" in attack.name)
    path = attack.make(random.Random(f"{attack.name} {seed}"), folder)
    began = time.perf_counter()
    return outcome(path, whole), time.perf_counter() - began, path


@cache
def _whole(exported: bool) -> int:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        path.write_bytes(export() if exported else TRACE)
        return _events(load(path))


os.environ["KINETOSCOPE_CACHE"] = "0"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tries", type=int, default=100, help="of each class")
    parser.add_argument("--seed", type=int, default=0, help="of the first; the others follow it")
    parser.add_argument("--only", default="", help="classes whose name holds this")
    parser.add_argument("--keep", type=Path, help="where inputs of failures are copied")
    arguments = parser.parse_args()
    print("| class | tries | read | refused | faults | hangs | silent losses | slowest |\n|" + "---|" * 8)
    failed = 0
    for attack in ATTACKS:
        if arguments.only not in attack.name:
            continue
        found: Counter[str] = Counter()
        slowest = 0.0
        for seed in range(arguments.seed, arguments.seed + arguments.tries):
            with tempfile.TemporaryDirectory() as folder:
                result, seconds, path = attempt(attack, seed, Path(folder))
                kind = result.partition(":")[0]
                found[kind] += 1
                slowest = max(slowest, seconds)
                if kind not in ("read", "refused"):
                    failed += 1
                    print(f"{attack.name}, seed {seed}: {result}", file=sys.stderr)
                    if arguments.keep is not None:
                        kept = arguments.keep / f"{attack.name.replace(':', '').replace(' ', '-')}-{seed}"
                        kept.mkdir(parents=True, exist_ok=True)
                        copy = shutil.copytree if path.is_dir() else shutil.copy
                        copy(path, kept / path.name)
        numbers = " | ".join(str(found[kind]) for kind in OUTCOMES)
        print(f"| {attack.name} | {arguments.tries} | {numbers} | {slowest:.1f} s |", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
