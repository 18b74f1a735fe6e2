"""On a CUDA device: what a recording of a live server says is inside its graphs, and what that costs it.

    PYTHONPATH=src python tests/gpu/prove_serve.py OUT [NAME ...] [--rounds 8] [--steps 200]

The names are those of ``prove_live.PROGRAMS``. Two servers of each kind run on one device, one plain and one
under `kinetoscope run --on-request`. A client asks the two in turn, so that what the machine does meanwhile
falls on both; then the second is recorded while it is asked. The table, printed last and written to
OUT/table.txt, has for each kind

- captures: CUDA graphs that were recorded while they were captured, and those that the recorded steps replay;
- op, line: the share of the replayed device time whose op, and line of code, are known;
- waiting: the client's time per token with the waiting server, against the plain one: the median of rounds'
  differences, with its 95 % interval by bootstrap;
- client, report: ms per token of requests that lie within the recorded steps, by the client's clock, and of
  those steps in the report;
- stop: seconds from the last step until the recording was written.

Recordings go to OUT/recordings, packed; what was measured to OUT/serve.json.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean, median
from typing import Any

import prove_live
import proving

WALL_NS = re.compile(rb'"baseTimeNanoseconds"\s*:\s*(\d+)')


def main() -> None:
    parser = proving.arguments(__doc__)
    parser.add_argument("names", nargs="*", default=[])
    parser.add_argument("--rounds", type=int, default=8)
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
                part = 8 if arguments.small else 1  # of the requests
                one = found[name] = measured(name, servers, arguments.rounds, arguments.steps, part)
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
    """Both servers of each kind, started at once."""
    began, starting = time.monotonic(), {}
    for name in names:
        words = prove_live.PROGRAMS[name][0]
        if small and name == "serve":
            words = [*words[:1], "--layers", "2", "--width", "64", "--serve"]
        for kind in ("plain", "waiting"):
            folder = out / f"{name}-{kind}"
            starting[name, kind] = prove_live.running(kind, words, folder, plain=kind == "plain")
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


def measured(name: str, servers: dict[Any, Any], rounds: int, steps: int, part: int = 1) -> dict[str, Any]:
    """The client's times with both servers, and of a recording; ``part``: of the requests one of so many."""
    _, asking, requests = prove_live.PROGRAMS[name]
    if name == "generate":  # which answers one request at a time
        asking, requests = ["--at-once", "1", *asking[2:]], 6
    requests = max(2, requests // part)
    kinds = {kind: servers[name, kind] for kind in ("plain", "waiting")}
    for server in kinds.values():
        prove_live.asked(server, asking, requests)
    times = prove_live.in_turn(kinds, asking, requests, rounds)
    shares = [100 * (w / p - 1) for w, p in zip(times["waiting"], times["plain"], strict=True)]
    recording = prove_live.while_asked(kinds["waiting"], asking, steps)
    print(recording["said"], flush=True)
    again = prove_live.in_turn(kinds, asking, requests, max(2, rounds // 3))
    return {
        "captured": len(list(servers[name, "waiting"].folder.glob("captures/*.json"))),
        "times": times,
        "waiting": [median(shares), *prove_live.interval(shares)],
        "client": recording.pop("client"),
        "recording": recording,
        "times_after": again,
    }


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
    share = {
        "op": inside.filter("op_known")["duration_ns"].sum() / whole if whole else None,
        "line": inside.drop_nulls("line")["duration_ns"].sum() / whole if whole else None,
    }
    table = serving(run)
    record = json.loads((folder / "manifest.json").read_text())["ranks"][0]
    window = recorded_window(folder / record["trace"])
    if name == "serve":
        each = tokens(trace)
        report_us = float(each["waited_ns"].sum()) / each["waiting"].sum() / 1000 if len(each) else None
    else:
        profiled = record["steps"].get("profiled_s") or ()
        report_us = 1e6 * mean(profiled) if profiled else None
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
    }


def recorded_window(path: Path) -> tuple[float, float]:
    """From the first recorded step's begin to the last one's end, in Unix time; of a recording without steps
    from its first to its last event."""
    content = path.read_bytes()
    base = WALL_NS.search(content)
    events = json.loads(content)["traceEvents"]
    marked = [e for e in events if str(e.get("name", "")).startswith("ProfilerStep#") and e.get("ph") == "X"]
    marked = marked or [e for e in events if e.get("cat") in ("cpu_op", "kernel", "cuda_runtime")]
    base_s = int(base[1]) / 1e9 if base else 0.0
    return base_s + min(e["ts"] for e in marked) / 1e6, base_s + max(e["ts"] + e["dur"] for e in marked) / 1e6


def within(client: dict[str, Any], window: tuple[float, float], name: str) -> float | None:
    """Milliseconds a token of the requests that lie within a window, from the first token on: but for
    ``generate``, which says nothing before the last."""
    found = []
    rows = zip(*(client[key] for key in ("start_times", "ttfts", "e2els", "output_lens")), strict=True)
    for asked, first, last, made in rows:
        began, steps = (asked, made) if name == "generate" else (asked + first, made - 1)
        if window[0] <= began and asked + last <= window[1] and steps:
            found.append(1e3 * (asked + last - began) / steps)
    return mean(found) if found else None


HEAD = (
    "server         captures kept      op     line      waiting %           client   report  differ  stop s"
)


def row(name: str, one: dict[str, Any]) -> str:
    share, waiting = one.get("share", {}), one["waiting"]
    client, report = one.get("client_ms"), one.get("report_ms")
    differ = f"{100 * (report / client - 1):+.1f} %" if client and report else "-"
    return (
        f"{name:<18}{one.get('captured', 0):>4}{one.get('kept', 0):>5}{_percent(share.get('op')):>9}"
        f"{_percent(share.get('line')):>9}   {waiting[0]:+.2f} [{waiting[1]:+.2f}, {waiting[2]:+.2f}]"
        f"{client or 0:>9.3f}{report or 0:>9.3f}{differ:>8}{one['recording']['stop_s'] or 0:>8.1f}"
    )


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.2f}%"


if __name__ == "__main__":
    main()
