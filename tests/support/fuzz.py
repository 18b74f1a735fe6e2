"""Attacks by chance on everything that is read, each looked at by one verb. Run from the repository:

    PYTHONPATH=src:tests/support python -m fuzz [--minutes 60] [--seed 0] [--keep FOLDER]

prints what failed as lines for ``fixtures/corpus.jsonl``, which the suite tries each time, and counts at the
end. The attacks are those of ``faults`` and some on what stands beside a trace: sidecars of a compile log,
results of `bench` and `tune`, a fusion log, and names. A verb fails with an exception that is none of ours,
with more than ten seconds of CPU, or with an exit status that has no meaning.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import io
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import faults
from faults import ATTACKS, BYTES, FIXTURES, SECONDS, TRACE, Attack
from kinetoscope import cli

CORPUS = FIXTURES / "corpus.jsonl"
SCHEDULER = gzip.decompress((FIXTURES / "h200_modes" / "scheduler.txt.gz").read_bytes())
KERNELS = (FIXTURES / "h200_breaks" / "spills.kernels.jsonl").read_bytes()
BYTECODE = json.dumps({"name": "f", "file": "f.py", "line": 1, "before": "a", "after": "b"}).encode()
NAMES = (
    *("_Z", "9", "<", "(", "{lambda(", "at::native::", "elementwise_kernel<", "triton_poi_fused_", "f16_"),
    *("ncclDevKernel_", "ProfilerStep#", "nn.Module: ", "## Call CompiledFxGraph ", ".py(1): ", "%", "{}"),
    *(
        "Torch-Compiled Region: 0/",
        "\x1b]52;c;\x07",
        "\u202e",
        "\ud800",
        "</script>",
        "|",
        "`",
        "\n",
        "a" * 70,
    ),
)
VIEWS = (
    *("report IN", "report IN --verbose", "report IN -o OUT.html", "report IN -o OUT.json"),
    *("report IN -o OUT.md", "report IN -o OUT.txt", "kernels IN --by op", "kernels IN --chain *"),
    *("findings IN", "kernels IN --by step", "findings IN --json", "graphs IN", "graphs IN --fusion"),
    *("graphs IN --json --texts", "whatif IN --host 0.5 --no-sync", "whatif IN --fuse", "query IN --tables"),
    *("export IN --to perfetto -o OUT.pftrace", "export IN --to speedscope -o OUT.json"),
)


class Try(NamedTuple):
    attack: str
    seed: int
    view: str


def sidecars(chance: random.Random, folder: Path) -> Path:
    """A recording with everything that stands beside a compile log, one file of it damaged."""
    path = faults._recording(folder, {"schema": faults.manifests.SCHEMA, "exit": "ok", "ranks": [_rank()]})
    files = {
        "compile/rank0.scheduler.log": SCHEDULER,
        "compile/rank0.kernels.jsonl": KERNELS,
        "compile/rank0.bytecode.jsonl": BYTECODE,
        "compile/rank0.counters.json": b'{"frames": {"total": 1, "ok": 1}, "graph_break": {"x": 2}}',
        "trace/rank0.device.json": TRACE,
    }
    damaged = chance.choice(list(files))
    for name, content in files.items():
        (path / name).write_bytes(_changed(content, chance) if name == damaged else content)
    return path


def _rank() -> dict[str, Any]:
    names = ("scheduler_log", "scheduler.log"), ("bytecode", "bytecode.jsonl"), ("kernels", "kernels.jsonl")
    beside = {field: f"compile/rank0.{name}" for field, name in (*names, ("counters", "counters.json"))}
    return {**faults._record(), **beside, "device_trace": "trace/rank0.device.json"}


def results(chance: random.Random, folder: Path) -> Path:
    """A recording that was measured and tuned, one file of it damaged."""
    given = FIXTURES / "h200_proved" / chance.choice(["narrow", "columns"])
    path = Path(shutil.copytree(given, folder / "recording"))
    file = chance.choice(sorted(file for file in path.rglob("*") if file.is_file()))
    file.write_bytes(_changed(file.read_bytes(), chance))
    return path


def fusion_log(chance: random.Random, folder: Path) -> Path:
    packed = chance.random() < 0.5
    path = folder / ("scheduler.txt.gz" if packed else "scheduler.txt")
    path.write_bytes(_changed(gzip.compress(SCHEDULER, 1, mtime=0) if packed else SCHEDULER, chance))
    return path


def names(chance: random.Random, folder: Path) -> Path:
    """Names that mean something to a reader, repeated and put together."""
    document = json.loads(TRACE)
    for event in chance.sample(document["traceEvents"], chance.choice([1, 20, 200])):
        words = [chance.choice(NAMES) * chance.choice([1, 2, 1000]) for _ in range(chance.randint(1, 4))]
        event["name"] = "".join([chance.choice(["", str(event.get("name", ""))]), *words])
    path = folder / "trace.json"
    path.write_text(json.dumps(document))
    return path


def _changed(content: bytes, chance: random.Random) -> bytes:
    """Other values where it is JSON, else or as well other bytes."""
    if chance.random() < 0.5:
        with contextlib.suppress(ValueError, IndexError):
            document = json.loads(content)
            faults._replace_one(document, chance)
            return json.dumps(document).encode()
    return chance.choice(BYTES)(content, chance) if content else b"\0"


EVERY = {
    attack.name: attack
    for attack in (
        *ATTACKS,
        Attack("recording: its sidecars", sidecars),
        Attack("recording: its results", results),
        Attack("fusion log", fusion_log),
        Attack("trace: names", names),
    )
}


def drawn(seed: int) -> Try:
    chance = random.Random(seed)
    return Try(chance.choice(list(EVERY)), seed, chance.choice(VIEWS))


def attempt(one: Try, folder: Path) -> str:
    """What failed; empty if nothing did."""
    path = EVERY[one.attack].make(random.Random(f"{one.attack} {one.seed}"), folder)
    places = {"IN": str(path), "OUT": str(folder / "out")}
    words = [places.get(word, word.replace("OUT.", f"{places['OUT']}.")) for word in one.view.split()]
    began = time.process_time()  # a busy machine hangs nothing
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as said:
            status = cli.main(words)
    except (Exception, SystemExit) as error:
        return f"fault: {type(error).__name__}: {error}"
    if time.process_time() - began > SECONDS:
        return "hang"
    return "" if status in (0, 2, 3) and "\x1b" not in said.getvalue() else f"status {status}"


def corpus() -> list[Try]:
    lines = CORPUS.read_text().splitlines()
    return [Try(one["attack"], one["seed"], one["view"]) for one in map(json.loads, lines)]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0, help="of the first try; the others follow it")
    parser.add_argument("--keep", type=Path, help="where inputs of failures are copied")
    arguments = parser.parse_args()
    os.environ[cli.DEBUG] = "1"
    until, seed, found = time.monotonic() + 60 * arguments.minutes, arguments.seed, Counter[str]()
    while time.monotonic() < until:
        one = drawn(seed)
        with tempfile.TemporaryDirectory() as folder:
            failure = attempt(one, Path(folder))
            found[failure.partition(":")[0] or "held"] += 1
            if failure:
                print(json.dumps({**one._asdict(), "was": failure[:200]}), flush=True)
                if arguments.keep is not None:
                    shutil.copytree(folder, arguments.keep / str(seed), dirs_exist_ok=True)
        seed += 1
    print(f"seeds {arguments.seed} to {seed - 1}: {dict(found)}", file=sys.stderr)
    return 1 if set(found) - {"held"} else 0


if __name__ == "__main__":
    raise SystemExit(main())
