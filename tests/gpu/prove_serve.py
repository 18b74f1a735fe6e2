"""On a CUDA device: what a recording of a live server says is inside its graphs, and what that costs it.

    PYTHONPATH=src python tests/gpu/prove_serve.py OUT [NAME ...] [--seconds 40] [--steps 200]

The names are those of ``prove_live.PROGRAMS``. Three servers of each kind run on one device: two plain ones
and one under `kinetoscope run --on-request`. They are asked in turn, a few requests at a time, so that what
the machine does meanwhile falls on all; then the third is recorded while it is asked, and all are asked in
turn again. The table, printed last and written to OUT/table.txt, has for each kind

- captures: CUDA graphs that were recorded while they were captured, and those that the recorded steps replay;
- op, line: the share of the replayed device time whose op, and line of code, are known;
- plain, waiting, after: the client's time per token with the second plain server, with the waiting one, and
  with that after its recording, against the first plain one in the same seconds: the median of rounds'
  differences, with its 95 % interval by bootstrap. What the plain one differs is what the others may;
- woke: how often the thread that waits to be asked to record woke meanwhile;
- client, report: ms per token within the recorded steps, by the client's clock, and by the table of these
  steps in the report: what requests wait for their next token, at the mean;
- stop: seconds from the last step until the recording was written.

Recordings go to OUT/recordings, packed; what was measured to OUT/serve.json.
"""

from __future__ import annotations

import contextlib
import json
import random
import re
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean, median
from typing import Any

import prove_live
import proving
from kinetoscope.capture.live import channel

sys.path.insert(0, str(prove_live.ASK.parent))
from ask import ask

ACCEPT = ("43", "288")  # the numbers of accept and accept4 on x86-64
WALL_NS = re.compile(rb'"baseTimeNanoseconds"\s*:\s*(\d+)')


def main() -> None:
    parser = proving.arguments(__doc__)
    parser.add_argument("names", nargs="*", default=[])
    parser.add_argument("--seconds", type=float, default=40, help="in which the servers are asked in turn")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--small", action="store_true", help="for a machine without a GPU")
    arguments = parser.parse_intermixed_args()
    out: Path = arguments.out
    names = arguments.names or list(prove_live.PROGRAMS)
    found: dict[str, dict[str, Any]] = {}
    with contextlib.ExitStack() as stack:
        servers = started(stack, names, out, small=arguments.small)
        for name in names:
            began = time.monotonic()
            try:
                one = found[name] = measured(name, servers, arguments.seconds, arguments.steps)
                folder = servers[name, "waiting"].folder / "001"
                one |= said(folder, one["client"], name)
                print(f"{HEAD}\n{row(name, one)}", flush=True)
                proving.pack(folder, out / "recordings" / f"{name}.tar.gz")
            except Exception as error:  # one kind's failure must not cost the others their time
                print(f"{name}: FAILED {type(error).__name__}: {error}", flush=True)
            print(f"-- {name}: {time.monotonic() - began:.0f} s", flush=True)
            (out / "serve.json").write_text(json.dumps(found, indent=1))
    proving.show(out, [HEAD, *(row(name, one) for name, one in found.items())])


def started(
    stack: contextlib.ExitStack, names: Sequence[str], out: Path, *, small: bool
) -> dict[tuple[str, str], prove_live.Server]:
    """The servers of each kind, started at once."""
    began, starting = time.monotonic(), {}
    for name in names:
        words = prove_live.PROGRAMS[name][0]
        if small and name == "serve":
            words = [*words[:1], "--layers", "2", "--width", "64", "--serve"]
        for kind in KINDS:
            folder = out / f"{name}-{kind}"
            starting[name, kind] = prove_live.running(kind, words, folder, plain=kind != "waiting")
    servers = {}
    with ThreadPoolExecutor(len(starting)) as pool:
        entered = {key: pool.submit(server.__enter__) for key, server in starting.items()}
        for key, future in entered.items():
            try:
                servers[key] = future.result()
                stack.push(starting[key].__exit__)
            except SystemExit as error:  # noqa: PERF203
                print(f"{key}: {error}", flush=True)
    print(f"servers are up after {time.monotonic() - began:.0f} s", flush=True)
    return servers


def measured(name: str, servers: dict[Any, Any], seconds: float, steps: int) -> dict[str, Any]:
    """The client's times with all servers, before and after the recording of one, and during that."""
    _, asking, _ = prove_live.PROGRAMS[name]
    if name == "generate":  # which answers one request at a time
        asking = ["--at-once", "1", *asking[2:]]
    kinds = {kind: servers[name, kind] for kind in KINDS}
    in_turn(kinds, asking, 0, least=2)
    woke = wakes(kinds["waiting"])
    times = in_turn(kinds, asking, seconds)
    woke = wakes(kinds["waiting"]) - woke
    recording = prove_live.while_asked(kinds["waiting"], asking, steps)
    print(recording["said"], flush=True)
    again = in_turn(kinds, asking, seconds / 3)
    return {
        "captured": len(list(servers[name, "waiting"].folder.glob("captures/*.json"))),
        "rounds": len(times["plain"]),
        "woke": woke,
        "times": {kind: median(own) for kind, own in times.items()},
        "times_after": {kind: median(own) for kind, own in again.items()},
        "plain": against(times, PLAIN),
        "waiting": against(times, "waiting"),
        "plain_after": against(again, PLAIN),
        "after": against(again, "waiting"),
        "client": recording.pop("client"),
        "recording": recording,
    }


PLAIN = "plain again"
KINDS = ("plain", PLAIN, "waiting")


def in_turn(
    kinds: dict[str, prove_live.Server], asking: Sequence[str], seconds: float, least: int = 3
) -> dict[str, list[float]]:
    """Ms a token of every server, two requests of each client at a time, in an order that changes."""
    at_once, prompt, tokens = (int(number) for number in asking[1::2])
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    until, order, chance = time.monotonic() + seconds, list(kinds), random.Random(0)
    with ThreadPoolExecutor(at_once) as clients:
        while time.monotonic() < until or len(times["plain"]) < least:
            chance.shuffle(order)
            for kind in order:
                port = int(kinds[kind].port)
                answers = clients.map(lambda n, port=port: ask(port, n, prompt, tokens), range(2 * at_once))
                times[kind].append(
                    mean(1e3 * (last - first) / (made - 1) for _, first, last, made in answers)
                )
    return times


def wakes(server: prove_live.Server) -> int:
    """How often the threads of a server that wait in ``accept`` have slept so far."""
    found = 0
    for process in channel.listening():
        if process.mark == channel.mark(server.folder):
            for task in Path(f"/proc/{process.pid}/task").iterdir():
                if (task / "syscall").read_text().split()[0] in ACCEPT:
                    slept = re.search(
                        r"^voluntary_ctxt_switches:\s*(\d+)", (task / "status").read_text(), re.M
                    )
                    found += int(slept[1]) if slept else 0
    return found


def against(times: dict[str, list[float]], kind: str) -> list[float]:
    """What a server's tokens took longer than the first plain one's, in per cent, with the interval."""
    shares = [100 * (mine / plain - 1) for mine, plain in zip(times[kind], times["plain"], strict=True)]
    return [median(shares), *prove_live.interval(shares)]


def said(folder: Path, client: dict[str, Any], name: str) -> dict[str, Any]:
    """What the recording says of the replayed work and of the time per token."""
    import polars as pl

    from kinetoscope.analysis.events.rows import matching
    from kinetoscope.analysis.events.torch_names import GRAPH_LAUNCH
    from kinetoscope.analysis.origins.attribution import lines_of_work
    from kinetoscope.analysis.origins.lines import op_lines
    from kinetoscope.analysis.serving.client import tokens
    from kinetoscope.analysis.serving.table import serving
    from kinetoscope.sources.run import load

    run = load(folder)
    trace = run.traces[0]
    host, device = trace.host_events, trace.device_events
    line = lines_of_work(trace, op_lines(run).get(trace.rank))["line"].cast(pl.String)
    inside = (
        device.with_columns(
            inside=matching(host, "name", GRAPH_LAUNCH).gather(device["launch"]).fill_null(False),
            op_known=matching(host, "category", "^captured_").gather(device["op"]).fill_null(False),
            line=line,
        )
        .filter("inside")
        .with_columns(of_device=pl.col("duration_ns"))
    )
    whole = inside["duration_ns"].sum()
    unknown = inside.filter(~pl.col("op_known")).group_by("launch").agg(pl.len(), pl.sum("duration_ns"))
    share = {
        "op": inside.filter("op_known")["duration_ns"].sum() / whole if whole else None,
        "line": inside.drop_nulls("line")["duration_ns"].sum() / whole if whole else None,
    }
    table = serving(run)
    record = json.loads((folder / "manifest.json").read_text())["ranks"][0]
    base_s, *window = recorded_window(folder / record["trace"])
    window = settled(client, *window)
    ended_s = pl.col("end_ns") / 1e9 + base_s
    each = tokens(trace).filter(ended_s.is_between(*window))
    waits = len(each) and each["waited_ns"].null_count() == 0
    report_us = float(each["waited_ns"].sum()) / each["waiting"].sum() / 1000 if waits else None
    if name == "generate":
        report_us = 1e6 * mean(record["steps"]["profiled_s"])
    return {
        "kept": len(record.get("captures", ())),
        "notes": record.get("notes"),
        "replayed_events": len(inside),
        "replayed_us": whole / 1000,
        "share": share,
        "lines": inside.group_by("line").agg(pl.sum("duration_ns")).sort("duration_ns").tail(8).rows(),
        "phases": [[r.phase, r.batch, r.graph_mode, r.n] for r in table.steps] if table else None,
        "found_by": [table.found_by if table else None, record["steps"].get("found_by")],
        "report_ms": report_us and report_us / 1000,
        "client_ms": within(client, window, name),
        "window_s": window[1] - window[0],
        "unknown": unknown.head(20).rows(),
    }


def recorded_window(path: Path) -> tuple[float, float, float]:
    """When the trace's own time begins, and from the first recorded step's begin to the last one's end, in
    Unix time; of a recording without steps from its first to its last event."""
    content = path.read_bytes()
    base = WALL_NS.search(content)
    events = json.loads(content)["traceEvents"]
    marked = [e for e in events if str(e.get("name", "")).startswith("ProfilerStep#") and e.get("ph") == "X"]
    marked = marked or [e for e in events if e.get("cat") in ("cpu_op", "kernel", "cuda_runtime")]
    base_s = int(base[1]) / 1e9 if base else 0.0
    began, ended = min(e["ts"] for e in marked), max(e["ts"] + e["dur"] for e in marked)
    return base_s, base_s + began / 1e6, base_s + ended / 1e6


def settled(client: dict[str, Any], began: float, ended: float) -> tuple[float, float]:
    """A window without the time until requests are over that were asked before it: their tokens are late,
    since the threads that send them stood still while the profiler started."""
    over = [at + last for at, last in zip(client["start_times"], client["e2els"], strict=True) if at < began]
    return max([began, *(at for at in over if at < ended)]), ended


def within(client: dict[str, Any], window: tuple[float, float], name: str) -> float | None:
    """Milliseconds a token within a window: the time in it that requests waited from their first token on
    (but for ``generate``, which says nothing before the last), by as many tokens as fall on that time."""
    waited = tokens = 0.0
    rows = zip(*(client[key] for key in ("start_times", "ttfts", "e2els", "output_lens")), strict=True)
    for asked, first, last, made in rows:
        began, steps = (asked, made) if name == "generate" else (asked + first, made - 1)
        inside = min(asked + last, window[1]) - max(began, window[0])
        if inside > 0 and steps:
            waited += inside
            tokens += steps * inside / (asked + last - began)
    return 1e3 * waited / tokens if tokens else None


HEAD = (
    "server         captures kept      op     line   plain %             waiting %           after %        "
    "      woke  client   report  differ  stop s"
)


def row(name: str, one: dict[str, Any]) -> str:
    share = one.get("share", {})
    client, report = one.get("client_ms"), one.get("report_ms")
    differ = f"{100 * (report / client - 1):+.1f} %" if client and report else "-"
    costs = "".join(f"   {_interval(one[kind])}" for kind in ("plain", "waiting", "after"))
    return (
        f"{name:<18}{one.get('captured', 0):>4}{one.get('kept', 0):>5}{_percent(share.get('op')):>9}"
        f"{_percent(share.get('line')):>9}{costs}{one.get('woke', 0):>5}"
        f"{client or 0:>9.3f}{report or 0:>9.3f}{differ:>8}{one['recording']['stop_s'] or 0:>8.1f}"
    )


def _interval(found: Sequence[float]) -> str:
    return f"{found[0]:+5.2f} [{found[1]:+.2f}, {found[2]:+.2f}]"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.2f}%"


if __name__ == "__main__":
    main()
