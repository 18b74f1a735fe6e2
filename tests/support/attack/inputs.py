"""Inputs by chance: what commands are given to read."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import random
import sqlite3
import struct
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import faults
from attack.trial import SRC, Trial
from snapshots import MIB, Allocator, frames, snapshot

FIXTURES = Path(__file__).parents[2] / "fixtures"
TRACE = FIXTURES / "h200_breaks" / "breaks.json.gz"
LOG = FIXTURES / "h200_breaks" / "breaks.log.gz"
# Eager and compiled, graphs, steps and none, a loop of a host, a rank of several: what is cut differs.
REAL = (
    "h200_breaks/breaks", "h200_breaks/spills", "h200/mm_4096_warm_eager", "h200/forum_noreturn_first",
    "h200/densenet121_infer_bs1_compile", "h200/llama_train_compile", "h200_modes/train_break",
    "h200_modes/reduce-overhead", "h200_proved/narrow/trace/rank0", "h200-dist/fsdp_warm_none_rank0",
    "h200-dist/pipeline_none_rank1", "h100_everyday/host-bound/trace/rank0",
)  # fmt: skip
SCHEMA = "kinetoscope.recording/1"
ABSURD: tuple[Any, ...] = (
    None, True, -1, 0, 1, 1.5, -0.0, 10**30, 1 << 62, 1e308, 1e-308, float("inf"), float("nan"),
    "", "x", "\0", "\ud800", [], {}, [[]], (), "kinetoscope.baseline/2",
)  # fmt: skip
READING = (
    "report {IN}",
    "findings {IN}",
    "kernels {IN}",
    "diff {IN} {IN}",
    "whatif {IN} --host 0.5",
    "history {IN}",
)


def replaced(document: Any, chance: random.Random, times: int) -> Any:
    """A document with some of its values made absurd."""
    for _ in range(times):
        node = document
        while True:
            keys = list(node) if isinstance(node, dict) else list(range(len(node)))
            if not keys:
                break
            key = chance.choice(keys)
            if isinstance(node[key], (dict, list)) and node[key] and chance.random() < 0.85:
                node = node[key]
                continue
            node[key] = chance.choice(ABSURD)
            break
    return document


def _damaged(data: bytes, chance: random.Random) -> bytes:
    return chance.choice(faults.BYTES[:5])(data, chance)


@cache
def colliding(most: int) -> dict[int, int]:
    """Numbers that all have one hash: what reads them by a table takes the square of their count."""
    return {number * ((1 << 61) - 1) + 7: 0 for number in range(most)}


def cut_traces(chance: random.Random, folder: Path) -> Trial:
    """No gate passes on a trace that was cut, anywhere or in its device work, and nothing faults."""
    trace = FIXTURES / f"{chance.choice(REAL)}.json.gz"
    whole = gzip.decompress(trace.read_bytes())
    end = len(whole) - 2000
    begin = whole.find(b'"kernel"') if chance.random() < 0.5 else 200
    inputs = folder / "in"
    inputs.mkdir()
    part = inputs / "cut.json"
    part.write_bytes(whole[: chance.randrange(min(max(begin, 200), end - 1), end)])
    gates = f"--fail-on {chance.choice(['launches', 'ops', 'step_time'])}>0"
    checks = (f"diff {trace} {part} {gates}", f"diff {part} {trace} {gates}")
    if chance.random() < 0.5:
        return Trial(chance.choice(checks).split(), inputs, (1, 3))
    view = chance.choice(READING).replace("history {IN}", f"history {inputs}").replace("{IN}", str(part))
    return Trial(view.split(), inputs, (0, 3))


def damaged_traces(chance: random.Random, folder: Path) -> Trial:
    path = folder / "trace.json.gz"
    data = (FIXTURES / f"{chance.choice(REAL)}.json.gz").read_bytes()
    packed = chance.random() < 0.3
    path = path if packed else path.with_suffix("")
    path.write_bytes(_damaged(data, chance) if packed else _damaged(gzip.decompress(data), chance))
    return Trial(chance.choice(READING[:5]).split(), path, (0, 2, 3))


ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x FROM c"
HOSTILE = (
    f"CREATE VIEW NVTX_EVENTS AS SELECT x AS start, x + 1 AS [end], 'a' AS text FROM ({ENDLESS})",
    f"CREATE VIEW TARGET_INFO_GPU AS {ENDLESS}",
    "CREATE TRIGGER t AFTER INSERT ON StringIds BEGIN DELETE FROM StringIds; END",
    "CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET "
    "(start INT, [end] INT, bytes INT AS (length(zeroblob(999999999))) VIRTUAL)",
    "CREATE VIRTUAL TABLE TARGET_INFO_CUDA_DEVICE USING fts5(gpuId, cudaId, pid)",
    "CREATE INDEX i ON CUPTI_ACTIVITY_KIND_KERNEL (length(printf('%.*c', 9999, 'x')))",
    "CREATE TABLE [x'); DROP TABLE StringIds; --] (start INT)",
    "UPDATE StringIds SET value = CAST(zeroblob(200000) AS TEXT) WHERE id < 40",
    "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET globalPid = rowid << 24, gridX = 9223372036854775807",
    "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = -9223372036854775808, [end] = 9223372036854775807",
    "UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET correlationId = 7, nameId = -1",
)


def exports(chance: random.Random, folder: Path) -> Trial:
    """Databases whose tables are something else, claims of 10 GB, and packed ones that unpack to much."""
    path = folder / "run.sqlite"
    path.write_bytes(faults.export())
    with sqlite3.connect(path) as database:
        for statement in chance.sample(HOSTILE, chance.randint(1, 4)):
            if statement.startswith(("CREATE VIEW", "CREATE TABLE C", "CREATE VIRTUAL")):
                table = statement.split()[3 if "VIRTUAL TABLE" in statement else 2]
                database.execute(f"DROP TABLE IF EXISTS {table}")
            database.execute(statement)
    database.close()
    data = bytearray(path.read_bytes())
    if chance.random() < 0.3:  # the pages that the head says there are
        data[28:32] = chance.choice([b"\xff\xff\xff\xff", b"\0\0\0\1", struct.pack(">I", 10 * 2**30 // 4096)])
    if chance.random() < 0.2:
        path.unlink()
        path = folder / "run.sqlite.gz"
        data = bytearray(gzip.compress(bytes(data) + bytes(chance.choice([0, 1 << 20, 1 << 29])), 1))
    path.write_bytes(data)
    for suffix in ("-wal", "-journal"):
        (folder / f"{path.name}{suffix}").write_bytes(b"\x37\x7f\x06\x82" + b"\xff" * 4000)
    return Trial(chance.choice(READING[:5]).split(), path, (0, 3))


def _allocator(chance: random.Random) -> Allocator:
    made, alive = Allocator(), list[int]()
    for number in range(chance.choice([3, 40, 200])):
        if alive and chance.random() < 0.4:
            made.free(alive.pop(chance.randrange(len(alive))))
        else:
            at = frames(f"train.py:{number % 7 + 1}:step", f"model.py:{number % 3 + 1}:forward")
            alive.append(made.alloc(chance.choice([100, 70_000, 3 * MIB, 30 * MIB + 5]), at))
    if chance.random() < 0.2:
        made.fail(64 * MIB, frames("train.py:9:step"))
    return made


def snapshots(chance: random.Random, folder: Path) -> Trial:
    """Snapshots of a small allocator with absurd values, damaged bytes, and shapes that multiply."""
    found = snapshot(_allocator(chance))
    kind = chance.choice(["values", "values", "bytes", "whole", "references", "collisions", "many frames"])
    segments: list[Any] = list(found["segments"])  # type: ignore[call-overload]
    found["segments"] = segments
    if kind == "values":
        found = replaced(pickle.loads(pickle.dumps(found)), chance, chance.randint(1, 4))
    elif kind == "references":
        found["segments"] = segments[:1] * chance.choice([2, 20_000, 500_000])
    elif kind == "collisions":
        most = chance.choice([1000, 64_000])
        found["more"] = colliding(most)
    elif kind == "many frames":
        shared = frames(*(f"f{n}.py:{n + 1}:g" for n in range(chance.choice([10, 20_000]))))
        block = {
            "address": 1 << 40,
            "size": 512,
            "requested_size": 5,
            "state": "active_allocated",
            "frames": shared,
        }
        same = chance.random() < 0.5
        segments[0]["blocks"] = [block if same else {**block} for _ in range(20_000)]
        segments[0]["total_size"] = 512 * 20_000
    data = pickle.dumps(found, protocol=chance.choice([2, 4]))
    data = _damaged(data, chance) if kind == "bytes" else data
    packed = chance.random() < 0.3
    path = folder / ("snapshot.pickle.gz" if packed else "snapshot.pickle")
    path.write_bytes(gzip.compress(data) if packed else data)
    return Trial(chance.choice(["memory {IN}", "memory {IN} --json", "report {IN}"]).split(), path, (0, 3))


def dumps(chance: random.Random, folder: Path) -> Trial:
    """Dumps of the flight recorder."""
    entry = {
        "collective_seq_id": 3, "pg_id": 0, "process_group": ("0", "default_pg"),
        "profiling_name": "nccl:all_reduce",
        "input_sizes": ((3, 4),), "state": "scheduled", "is_p2p": False,
    }  # fmt: skip
    group = {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}
    made: dict[str, Any] = {
        "version": "2.10",
        "pg_config": {"0": group},
        "entries": [dict(entry) for _ in range(9)],
    }
    if chance.random() < 0.2:
        made["pg_status"] = colliding(30_000)
    else:
        made = replaced(made, chance, chance.randint(0, 3))
    data = pickle.dumps(made) if chance.random() < 0.7 else json.dumps(made, default=str).encode()
    inputs = folder / "dumps"
    inputs.mkdir()
    for rank in range(2):
        changed = _damaged(data, chance) if chance.random() < 0.4 else data
        (inputs / f"nccl_trace_rank_{rank}").write_bytes(changed)
    return Trial(["report", "{IN}"], inputs, (0, 3))


@cache
def baseline() -> dict[str, Any]:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "baseline.json"
        command = [
            sys.executable,
            "-m",
            "kinetoscope",
            "check",
            str(TRACE),
            "--against",
            str(path),
            "--update",
        ]
        subprocess.run(command, env={**os.environ, "PYTHONPATH": str(SRC)}, check=True, capture_output=True)
        return json.loads(path.read_text())


def baselines(chance: random.Random, folder: Path) -> Trial:
    """One that is not as it was written passes nothing: it is refused, or its gates fail."""
    path = folder / "baseline.json"
    if chance.random() < 0.15:
        if chance.random() < 0.5:
            os.mkfifo(path)
        else:
            path.symlink_to("/dev/zero")
        return Trial(["check", str(TRACE), "--against", str(path)], folder / "none", (3,))
    text = json.dumps(replaced(json.loads(json.dumps(baseline())), chance, chance.randint(1, 3)))
    data = text.encode("utf-8", "surrogatepass")
    path.write_bytes(_damaged(data, chance) if chance.random() < 0.3 else data)
    # A count that became larger is a baseline like any other: 0 is right for it.
    return Trial(
        ["check", str(TRACE), "--against", "{IN}", *chance.choice([[], ["--json"]])], path, (0, 1, 3)
    )


@cache
def _parts() -> dict[str, bytes]:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        traces, kept = Path(folder) / "traces", Path(folder) / "parts"
        traces.mkdir()
        for rank in range(3):
            (traces / f"rank{rank}.json.gz").write_bytes(TRACE.read_bytes())
        command = [
            sys.executable,
            "-m",
            "kinetoscope",
            "report",
            str(traces),
            "--engine",
            "local",
            "--parts",
            str(kept),
        ]
        subprocess.run(command, env={**os.environ, "PYTHONPATH": str(SRC)}, check=True, capture_output=True)
        return {path.name: path.read_bytes() for path in kept.iterdir()}


def parts(chance: random.Random, folder: Path) -> Trial:
    """Parts of ranks, some of them damaged: the others are compared."""
    inputs = folder / "parts"
    inputs.mkdir()
    names = sorted(_parts())
    damaged = chance.sample(names, chance.randint(1, len(names)))
    for name in names:
        data = bytearray(_parts()[name])
        for _ in range(chance.choice([1, 20]) if name in damaged else 0):
            data[chance.randrange(len(data))] ^= chance.randrange(1, 256)
        (inputs / name).write_bytes(
            data[: chance.randrange(len(data))] if name in damaged and chance.random() < 0.3 else data
        )
    allowed = (0,) if len(damaged) < len(names) else (0, 3)
    return Trial(["report", "{IN}"], inputs, allowed)


def folders(chance: random.Random, folder: Path) -> Trial:
    """Two ranks among files that are something else."""
    inputs = folder / "ranks"
    inputs.mkdir()
    for rank in range(2):
        (inputs / f"rank{rank}.json.gz").write_bytes(TRACE.read_bytes())
    beside: dict[str, Any] = {
        "model.pkl": lambda path: path.write_bytes(b"x"),
        "memory.pickle": lambda path: path.write_bytes(pickle.dumps(snapshot(_allocator(chance)))),
        "pipe.json": os.mkfifo,
        "zero.json.gz": lambda path: path.symlink_to("/dev/zero"),
        "nothing.json": lambda path: path.write_text("{}"),
        "gone.json": lambda path: path.symlink_to("nowhere"),
        "inner.json": Path.mkdir,
        "half.part": lambda path: path.write_bytes(os.urandom(99)),
        "nccl_trace_rank_0": lambda path: path.write_bytes(b"\x80\x04]."),
        "x-pid77.log": lambda path: path.write_bytes(b"{}\n" * 99),
    }
    for name in chance.sample(sorted(beside), chance.randint(1, 4)):
        beside[name](inputs / name)
    if chance.random() < 0.3:
        Path(os.fsdecode(os.fsencode(inputs) + b"/rank2\xff.json.gz")).write_bytes(TRACE.read_bytes())
    # Two traces of one rank in one file name are not two ranks: the numbers of the names tell them apart.
    return Trial(["report", "{IN}", *chance.choice([[], ["--engine", "local"]])], inputs, (0,))


def caches(chance: random.Random, folder: Path) -> Trial:
    """A recording whose kept tables were replaced by what never ends."""
    inputs = folder / "recording"
    (inputs / "trace").mkdir(parents=True)
    ranks = [{"rank": 0, "trace": "trace/rank0.json"}]
    (inputs / "manifest.json").write_text(
        json.dumps({"schema": SCHEMA, "exit": "ok", "status": 0, "ranks": ranks})
    )
    whole = json.loads(gzip.decompress(TRACE.read_bytes()))
    whole["traceEvents"] *= -(-50_001 // len(whole["traceEvents"]))
    (inputs / "trace" / "rank0.json").write_text(json.dumps(whole))
    command = [sys.executable, "-m", "kinetoscope", "kernels", str(inputs)]
    environment = {**os.environ, "PYTHONPATH": str(SRC), "KINETOSCOPE_CACHE": "1"}
    subprocess.run(command, env=environment, check=False, capture_output=True)
    for entry in (inputs / "tables").glob("*/*"):
        if chance.random() < 0.5:
            entry.unlink()
            chance.choice(
                [
                    os.mkfifo,
                    lambda path: path.symlink_to("/dev/zero"),
                    lambda path: path.write_bytes(b"PAR1" * 9),
                ]
            )(entry)
    return Trial(["kernels", "{IN}"], inputs, (0, 3), {"KINETOSCOPE_CACHE": "1"})


WORDS = (
    "SELECT", "*", "name", "duration_ns", "COUNT(*)", "FROM", "host_events", "device_events", "steps",
    "WHERE",
    "GROUP BY", "ORDER BY", "LIMIT 3", "1", "'x'", "NULL", "(", ")", ",", "+", "=", "LIKE '%'", "JOIN", "ON",
    "CROSS JOIN",
    "UNION ALL", "WITH a AS", "CASE WHEN", "THEN", "ELSE", "END", "CAST(start_ns AS TIMESTAMP)",
    "LPAD(name, 99999999)",
    "COLUMNS('[')", "REPEAT(name, 1000000)", "generate_series(1, 99999999999)", "::", "\"", "--", "/*",
)  # fmt: skip
STATEMENTS = (
    "SELECT COLUMNS('[') FROM host_events",
    "SELECT CAST(start_ns AS TIMESTAMP) FROM host_events",
    "SELECT CAST(start_ns * 1000 AS TIMESTAMP) FROM host_events",
    "SELECT LPAD(name, 2000000000) FROM host_events",
    "SELECT * FROM generate_series(1, 9000000000000)",
    "SELECT a.name FROM host_events a CROSS JOIN host_events b CROSS JOIN host_events c "
    "CROSS JOIN host_events d",
    "WITH RECURSIVE t AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM t) SELECT * FROM t",
    f"SELECT {'+'.join('1' * 5000)}",
    f"SELECT {'(' * 900}1{')' * 900}",
    "SELECT '::add-mask::x' AS a, name FROM host_events LIMIT 3",
    "SELECT * FROM read_csv('/etc/passwd')",
    "SELECT SUM(duration_ns) OVER (PARTITION BY name) FROM host_events",
)


def statements(chance: random.Random, folder: Path) -> Trial:
    sql = chance.choice(STATEMENTS)
    if chance.random() < 0.8:
        sql = " ".join(["SELECT", *(chance.choice(WORDS) for _ in range(chance.randint(1, 12)))])
    return Trial(["query", str(TRACE), sql, *chance.choice([[], ["--json"]])], folder / "none", (0, 2))


def gates(chance: random.Random, folder: Path) -> Trial:
    """Expressions that are nearly gates."""
    pieces = (
        "launches",
        "step_time",
        "ops",
        ">",
        ">=",
        "<",
        "0",
        "1.2.3",
        "...",
        "9" * 400,
        "%",
        "MB",
        "GiB",
        " ",
        "\0x",
        "é",
        "-1",
        "nan",
    )
    text = "".join(chance.choice(pieces) for _ in range(chance.randint(1, 5))).replace("\0", "")
    return Trial(["diff", str(TRACE), str(TRACE), f"--fail-on={text}"], folder / "none", (0, 1, 2))


def names(chance: random.Random, folder: Path) -> Trial:
    """Names that would lead somewhere from a comment on a pull request."""
    lures = (
        "https://evil.example/a",
        "www.evil.example",
        "octocat/hello#1",
        "@octocat",
        "GH-7",
        "mailto:a@b.c",
        "![x](y)",
        "<b>",
        "#1",
    )
    whole = json.loads(gzip.decompress(TRACE.read_bytes()))
    for event in chance.sample(whole["traceEvents"], 60):
        event["name"] = chance.choice(["", str(event.get("name", ""))[:20]]) + " ".join(
            chance.sample(lures, 2)
        )
    path = folder / "trace.json"
    path.write_text(json.dumps(whole))

    def look(out: Path, _: str) -> str:
        text = (out / "o.md").read_text()
        outside = "".join(piece for at, piece in enumerate(text.split("`")) if at % 2 == 0)
        live = [
            lure
            for lure in ("://evil", "www.evil", "hello#1", "@octocat", "GH-7", "mailto:a")
            if lure in outside
        ]
        return f"live in Markdown: {live}" if live else ""

    verb = chance.choice([["report", "{IN}"], ["diff", str(TRACE), "{IN}"]])
    return Trial([*verb, "-o", "{OUT}/o.md"], path, (0,), look=look)


def scale(chance: random.Random, folder: Path, n: int = 0) -> Trial:
    """Inputs of many small things; what they cost is to grow as they do."""
    n = n or chance.choice([500, 2000])
    kind = chance.choice(["streams", "threads", "steps", "names", "nested", "files", "segments", "counters"])
    if kind == "files":
        inputs = folder / "many"
        inputs.mkdir()
        for number in range(n):
            (inputs / f"{number}.json").write_text("{}")
        return Trial(["report", "{IN}"], inputs, (3,))
    if kind == "segments":
        path = folder / "s.pickle"
        block = {"address": 0, "size": 512, "requested_size": 5, "state": "active_allocated"}
        segments = [
            {"device": 0, "address": at << 20, "total_size": 512, "stream": at % 9, "blocks": [{**block}]}
            for at in range(n * 10)
        ]
        path.write_bytes(pickle.dumps({"segments": segments, "device_traces": [[]]}))
        return Trial(["memory", "{IN}"], path, (0,))
    path = folder / "trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": [*_events(kind, n)]}))
    return Trial([chance.choice(["report", "findings"]), "{IN}"], path, (0,))


def _events(kind: str, n: int) -> Any:
    for i in range(n):
        lane = {"streams": 7 + i, "threads": 7}.get(kind, 7)
        thread = i + 1 if kind == "threads" else 1
        name = f"op{i}" if kind == "names" else "aten::mm"
        yield {
            "ph": "X",
            "cat": "cpu_op",
            "name": name,
            "pid": 1,
            "tid": thread,
            "ts": 10 * i if kind != "nested" else i,
            "dur": 8 if kind != "nested" else 2 * (n - i),
        }
        launch = {
            "ph": "X",
            "cat": "cuda_runtime",
            "name": "cudaLaunchKernel",
            "pid": 1,
            "tid": thread,
            "ts": 10 * i + 1,
            "dur": 2,
        }
        kernel = {
            "ph": "X",
            "cat": "kernel",
            "name": f"k{i % 50}",
            "pid": 0,
            "tid": lane,
            "ts": 10 * n + 12 * i,
            "dur": 9,
        }
        yield {**launch, "args": {"correlation": i + 1}}
        yield {**kernel, "args": {"correlation": i + 1, "device": 0, "stream": lane}}
        if kind == "steps":
            yield {
                "ph": "X",
                "cat": "user_annotation",
                "name": f"ProfilerStep#{i}",
                "pid": 1,
                "tid": 1,
                "ts": 10 * i,
                "dur": 9,
            }
        if kind == "counters":
            yield {
                "ph": "i",
                "s": "t",
                "cat": "cpu_instant_event",
                "name": "[memory]",
                "pid": 1,
                "tid": 1,
                "ts": 10 * i,
                "args": {"Total Allocated": i, "Device Type": 1, "Device Id": 0, "Bytes": 1, "Addr": i},
            }


def logs(chance: random.Random, folder: Path) -> Trial:
    """Compile logs that were cut or damaged pass no gate of theirs unless they lost nothing."""
    data = gzip.decompress(LOG.read_bytes())
    path = folder / "rank0.log"
    path.write_bytes(
        data[: chance.randrange(100, len(data) - 3000)] if chance.random() < 0.5 else _damaged(data, chance)
    )
    return Trial(chance.choice(["graphs {IN}", "report {IN}", f"diff {LOG} {{IN}}"]).split(), path, (0, 3))
