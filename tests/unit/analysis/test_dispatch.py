"""Dispatch chains against a walk over the raw events."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from kinetoscope.analysis.origins.dispatch import chains, forward_links, links
from kinetoscope.analysis.origins.rows import Link, Quantiles
from kinetoscope.errors import UsageError
from kinetoscope.sources.run import LoadedRun, load
from kinetoscope.trace.model import Trace
from kinetoscope.trace.read import read
from traces import host as event

Make = Callable[..., Trace]
Event = dict[str, Any]
HOST = ("cpu_op", "user_annotation", "cuda_runtime", "cuda_driver", "python_function")
WORK = ("kernel", "gpu_memcpy", "gpu_memset")


def launched(correlation: int, call: float, start: float, duration: float, name: str = "k") -> list[Event]:
    args = {"device": 0, "stream": 7, "correlation": correlation, "tid": 7}
    return [
        event("cudaLaunchKernel", call, 2, "cuda_runtime", correlation=correlation),
        event(name, start, duration, "kernel", **args),
    ]


def test_launches_of_one_way_are_one_chain_whichever_step_they_are_in(trace_of: Make) -> None:
    steps = [
        e
        for i, kernel in enumerate((5, 9, 7))
        for e in (
            event(f"ProfilerStep#{i}", 1000 * i, 900, "user_annotation"),
            event("aten::mm", 1000 * i + 10, 50),
            *launched(i + 1, 1000 * i + 20, 1000 * i + 40, kernel),
        )
    ]
    other = [event("aten::bmm", 3000, 50), *launched(9, 3010, 3020, 1)]
    first, second = chains(LoadedRun((trace_of(*steps, *other),)), "k").chains
    assert (first.launches, first.device_time_us, first.share_of_device_time) == (3, 21, 21 / 22)
    assert [link.name for link in first.links] == [
        "ProfilerStep#2",
        "aten::mm",
        "cudaLaunchKernel",
        "k",
    ]
    assert first.links[-1].duration_us == 7  # the median one
    assert first.latency_us == Quantiles(median=20, p90=20)
    assert first.queue_delay_us == Quantiles(median=0, p90=0)
    assert [link.name for link in second.links] == ["aten::bmm", "cudaLaunchKernel", "k"]


def test_latency_splits_into_waiting_for_the_stream_and_the_rest(trace_of: Make) -> None:
    trace = trace_of(*launched(1, 0, 10, 100, "first"), *launched(2, 5, 113, 4, "second"))
    (found,) = chains(LoadedRun((trace,)), "second").chains
    assert found.latency_us == Quantiles(median=108, p90=108)  # from 5 to 113
    assert found.queue_delay_us == Quantiles(median=105, p90=105)  # until 110, when "first" ends


def test_work_that_starts_before_its_launch_has_no_latency(trace_of: Make) -> None:
    (found,) = chains(LoadedRun((trace_of(*launched(1, 50, 10, 4)),)), "k").chains
    assert (found.latency_us, found.queue_delay_us) == (None, None)


def test_a_name_is_part_of_one_or_a_pattern_for_the_whole(trace_of: Make) -> None:
    run = LoadedRun((trace_of(*launched(1, 0, 10, 4, "gemm[a]"), *launched(2, 20, 30, 4, "gemm[b]")),))
    assert len(chains(run, "gemm").chains) == 2
    assert [d.links[-1].name for d in chains(run, "m[b]").chains] == ["gemm[b]"]
    assert len(chains(run, "g*").chains) == 2
    for name in ("g?", "GEMM"):
        with pytest.raises(UsageError):
            chains(run, name)
    with pytest.raises(UsageError):
        chains(run, "gemm", category="communication")


def around(events: list[Event], call: Event) -> tuple[str, ...]:
    """What is open on the call's thread when it starts, outermost first, itself last; ``events`` in order."""
    ts, thread = call["ts"], (call["pid"], call["tid"])
    return tuple(
        "ProfilerStep" if e["name"].startswith("ProfilerStep#") else e["name"]
        for e in takewhile(lambda e: e["ts"] <= ts, events)
        if (e["ts"] + e["dur"] > ts)
        and (e["pid"], e["tid"]) == thread
        and (e is call or e["ts"] + e["dur"] >= ts + call["dur"])
    )


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("h200/mm_64_warm_eager.json.gz", "nvjet"),
        ("h200/mm_4096_warm_compile.json.gz", "nvjet"),
        ("h200/llama_generate_eager.json.gz", "CatArrayBatchedCopy"),
        ("public/tl_mi300x_ddp_resnet18_train.json.gz", "Cijk"),
    ],
)
def test_counts_and_latencies_are_those_of_the_raw_events(
    recorded: Callable[[str], Path], file: str, name: str
) -> None:
    path = recorded(file)
    events = [e for e in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"] if e.get("ph") == "X"]
    host = [e for e in events if e["cat"] in HOST]
    host.sort(key=lambda e: (e["ts"], -e["dur"]))
    calls = {
        e["args"]["correlation"]: e
        for e in host
        if e["cat"] in ("cuda_runtime", "cuda_driver") and "correlation" in e.get("args", {})
    }
    work = [e for e in events if e["cat"] in WORK]
    counts: dict[tuple[str, ...], list[float]] = defaultdict(list)
    latencies: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for kernel in [w for w in work if name in w["name"]]:
        call = calls[kernel["args"]["correlation"]]
        way = (*around(host, call), kernel["name"])
        counts[way].append(kernel["dur"])
        latencies[way].append(kernel["ts"] - call["ts"])
    run = LoadedRun((read(path),))
    found: dict[tuple[str, ...], list[Any]] = defaultdict(list)
    for one in chains(run, name).chains:
        names = ["ProfilerStep" if link.kind == "step" else link.name for link in one.links]
        found[tuple(names)].append(one)  # several where the forward ops differ
    assert {way: sum(one.launches for one in ones) for way, ones in found.items()} == {
        way: len(times) for way, times in counts.items()
    }
    for way, ones in found.items():
        assert sum(one.device_time_us for one in ones) == pytest.approx(sum(counts[way]), abs=1e-3)
        if len(ones) == 1:
            assert ones[0].latency_us.median == pytest.approx(median(latencies[way]), abs=2e-3)


def test_ways_that_differ_have_different_chains_on_a_real_recording(shared_data: Path) -> None:
    """A hash stands for the names: every launch of a way has the very names that are shown for it."""
    trace = read(shared_data / "h200/llama_train_eager_stack.json.gz")
    found = chains(LoadedRun((trace,)), "nvjet").chains

    def names(*parts: list[Link]) -> tuple[tuple[str, ...], ...]:
        return tuple(tuple("step" if link.kind == "step" else link.name for link in part) for part in parts)

    ways: dict[Any, int] = defaultdict(int)
    is_nvjet = trace.device_events["name"].cast(str).str.contains("nvjet")
    for row in trace.device_events.filter(is_nvjet)["id"]:
        ways[names(links(trace, row), forward_links(trace, row))] += 1
    assert {names(one.links, one.forward): one.launches for one in found} == ways


def test_ranks_count_together(shared_data: Path) -> None:
    run = load(*(shared_data / f"h200-dist/ddp_rank{rank}.json.gz" for rank in (0, 1)))
    found = chains(run, "ncclDevKernel").chains
    assert found
    assert all(one.ranks == 2 for one in found[:1])
