"""What it costs a live server to wait to be recorded, to be recorded, and to have been recorded.

    PYTHONPATH=src python tests/gpu/prove_live.py OUT [NAME ...] [--rounds 5] [--steps 200]

The names are those of ``PROGRAMS``. Servers of one kind run next to each other on one device: one plain, one
under `kinetoscope run --on-request` that is never recorded (waiting), one that is. A client asks them in
turn, round by round, so that what the machine does meanwhile falls on all; then the third is recorded while
it is asked, twice, and all are asked again. Times per token are the client's own, in ms: medians of rounds,
and of each round's difference from the plain one, with its 95 % interval by bootstrap. A fourth server has
TEARDOWN_CUPTI=1 in its environment, by which Kineto itself detaches CUPTI after a recording. Recordings and
`live.json` go to OUT.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import proving

SERVE = proving.ROOT / "examples" / "serve.py"
ASK = proving.ROOT / "examples" / "ask.py"
SERVERS = proving.ROOT / "tests" / "gpu" / "servers"
# The words of each server but its port, the client's, and requests of a round: several lie within what is
# recorded of a server, 60 to 200 steps.
PROGRAMS: dict[str, tuple[list[str], list[str], int]] = {
    "serve": (
        [str(SERVE), "--layers", "16", "--width", "1024", "--serve"],
        ["--at-once", "8", "--prompt", "32", "--tokens", "64"],
        64,
    ),
    "generate": (
        [str(SERVERS / "generate_static.py")],
        ["--at-once", "2", "--prompt", "32", "--tokens", "64"],
        12,
    ),
    "continuous": (
        [str(SERVERS / "continuous_batching.py")],
        ["--at-once", "8", "--prompt", "32", "--tokens", "16"],
        64,
    ),
    "continuous-graphs": (
        [str(SERVERS / "continuous_batching.py"), "--graphs"],
        ["--at-once", "8", "--prompt", "32", "--tokens", "16"],
        64,
    ),
}


@dataclass
class Server:
    name: str
    process: subprocess.Popen[str]
    port: str
    folder: Path


def main() -> None:
    parser = proving.arguments(__doc__)
    parser.add_argument("names", nargs="*", default=list(PROGRAMS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--small", action="store_true", help="for a machine without a GPU")
    arguments = parser.parse_intermixed_args()
    found = {}
    for name in arguments.names or list(PROGRAMS):
        found[name] = proved(name, arguments.out, arguments.rounds, arguments.steps, small=arguments.small)
        (arguments.out / "live.json").write_text(json.dumps(found, indent=1))


def proved(name: str, out: Path, rounds: int, steps: int, *, small: bool) -> dict[str, object]:
    words, asking, requests = PROGRAMS[name]
    if small:
        words = [*words[:1], *(["--layers", "2", "--width", "64", "--serve"] if name == "serve" else [])]
        requests = max(2, requests // 8)
    with contextlib.ExitStack() as stack:
        kinds = {
            kind: stack.enter_context(running(kind, words, out / f"{name}-{kind}", plain=kind == "plain"))
            for kind in ("plain", "waiting", "recorded", "torn down")
        }
        for server in kinds.values():
            asked(server, asking, requests)
        times = in_turn(kinds, asking, requests, rounds)
        print(f"{name}: ms a token by the client, {rounds} rounds")
        compared(times, "before any recording")
        result: dict[str, object] = {"before": times}
        recordings = result["recordings"] = []
        for kind in ("recorded", "torn down"):
            for _ in range(2):
                recording = while_asked(kinds[kind], asking, steps)
                del recording["client"]
                print(f"  {kind}: {recording['said']}")
                print(
                    f"    by the client {recording['tpot_ms']:.3f} ms meanwhile, its longest request "
                    f"{recording['longest_ms']:.0f} ms; `record` took {recording['seconds']:.1f} s"
                )
                recordings.append(recording)
        times = in_turn(kinds, asking, requests, rounds)
        compared(times, "after two recordings of the last two")
        result["after"] = times
        result["memory_mb"] = {kind: resident_mb(server) for kind, server in kinds.items()}
        print(f"  resident memory in MB: {result['memory_mb']}")
    return result


@contextlib.contextmanager
def running(kind: str, words: Sequence[str], folder: Path, *, plain: bool) -> Generator[Server]:
    run = ["-m", "kinetoscope", "run", "--on-request", "--graphs", "-o", str(folder), "--"]
    command = [sys.executable, *([] if plain else run), *([] if plain else [sys.executable]), *words, "0"]
    paths = [str(proving.ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    variables = {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    if kind == "torn down":
        variables["TEARDOWN_CUPTI"] = "1"
    errors = folder.with_suffix(".stderr").open("w")
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=errors, text=True, env=os.environ | variables
    )
    try:
        assert process.stdout is not None
        while not (port := process.stdout.readline().strip()).isdigit():
            if process.poll() is not None:
                raise SystemExit(f"{kind} ended: {folder.with_suffix('.stderr').read_text()[-2000:]}")
        yield Server(kind, process, port, folder)
    finally:
        process.terminate()
        process.wait(60)
        errors.close()


def asked(server: Server, asking: Sequence[str], requests: int) -> float:
    """Milliseconds a token, the median of requests."""
    return answered(server, asking, requests)["median_tpot_ms"]


def answered(server: Server, asking: Sequence[str], requests: int) -> dict[str, Any]:
    """What the client says."""
    done = proving.python(ASK, "--port", server.port, "--requests", str(requests), *asking, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def in_turn(
    kinds: dict[str, Server], asking: Sequence[str], requests: int, rounds: int
) -> dict[str, list[float]]:
    """The same of every server, round by round, in an order that changes."""
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    order = list(kinds)
    for number in range(rounds):
        random.Random(number).shuffle(order)
        for kind in order:
            times[kind].append(asked(kinds[kind], asking, requests))
    return times


def compared(times: dict[str, list[float]], when: str) -> None:
    print(f"  {when}:")
    for kind, own in times.items():
        shares = [100 * (mine / plain - 1) for mine, plain in zip(own, times["plain"], strict=True)]
        low, high = interval(shares)
        print(f"    {kind:<10} {median(own):8.3f}   {median(shares):+6.2f} %  [{low:+.2f}, {high:+.2f}]")


def interval(values: Sequence[float], draws: int = 2000) -> tuple[float, float]:
    """The 95 % interval of a median, by bootstrap."""
    chance = random.Random(0)
    medians = sorted(median(chance.choices(values, k=len(values))) for _ in range(draws))
    return medians[int(0.025 * draws)], medians[int(0.975 * draws)]


def while_asked(server: Server, asking: Sequence[str], steps: int) -> dict[str, Any]:
    """Record a server that is asked all the while."""
    words = ["--port", server.port, "--requests", "1000000", "--until-stdin-ends", *asking]
    client = subprocess.Popen(
        [sys.executable, str(ASK), *words],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    time.sleep(1.0)
    began = time.perf_counter()
    done = proving.kinetoscope("record", server.folder, "--steps", str(steps), timeout=300)
    seconds = time.perf_counter() - began
    printed = json.loads(client.communicate(timeout=300)[0])
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if " steps, " in line or "after the last" in line]
    written = re.search(r"written ([\d.]+) s after", done.stderr)
    return {
        "client": printed,
        "said": said[-1].removeprefix("kinetoscope: ") if said else done.stderr,
        "stop_s": float(written[1]) if written else None,
        "seconds": seconds,
        "tpot_ms": printed["median_tpot_ms"],
        "longest_ms": printed["max_e2el_ms"],
    }


def resident_mb(server: Server) -> float:
    """The memory of the process that serves, and of those that it started."""
    total = 0.0
    for path in Path("/proc").glob("[0-9]*/statm"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            stat = (path.parent / "stat").read_text().rpartition(")")[2].split()
            if str(server.process.pid) in (path.parent.name, stat[1]):
                total = max(total, int(path.read_text().split()[1]) * 4096 / 1e6)
    return round(total)


if __name__ == "__main__":
    main()
