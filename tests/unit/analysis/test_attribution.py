"""Device work traced back to forward ops, modules and annotations."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import traces
from kinetoscope.analysis.origins.attribution import attribution
from kinetoscope.analysis.origins.dispatch import forward_links, links
from kinetoscope.trace.model import Trace
from kinetoscope.trace.read import read

Make = Callable[..., Trace]
Event = dict[str, Any]


def host(
    name: str, start: float, duration: float, category: str = "cpu_op", tid: int = 1, **args: Any
) -> Event:
    keys = {key.replace("_", " "): value for key, value in args.items()}
    return traces.host(name, start, duration, category, tid, **keys)


def pair(correlation: int, start: float, tid: int = 1) -> list[Event]:
    """A launch and its kernel."""
    args = {"device": 0, "stream": 7, "correlation": correlation}
    kernel = {
        "ph": "X",
        "cat": "kernel",
        "name": f"k{correlation}",
        "pid": 0,
        "tid": 7,
        "ts": start + 5,
        "dur": 1,
    }
    return [
        host("cudaLaunchKernel", start, 2, "cuda_runtime", tid, correlation=correlation),
        {**kernel, "args": args},
    ]


@pytest.fixture
def training_step(trace_of: Make) -> Trace:
    """A forward op inside a module and an annotation, its backward on another thread, an optimizer."""
    return trace_of(
        host("ProfilerStep#3", 0, 1000, "user_annotation"),
        host("train.py(9): train", 1, 998, "python_function"),
        host("forward", 10, 200, "user_annotation"),
        host("nn.Module: Net_0", 12, 190, "python_function"),
        host("net.py(4): forward", 13, 180, "python_function"),
        host("nn.Module: Linear_1", 14, 170, "python_function"),
        host("torch/nn/modules/linear.py(130): forward", 15, 160, "python_function"),
        host("<built-in function linear>", 16, 150, "python_function"),
        host("aten::linear", 20, 100, Sequence_number=7, Fwd_thread_id=0),
        host("aten::addmm", 30, 80, Sequence_number=7, Fwd_thread_id=0),
        *pair(1, 40),
        host("loss", 300, 200, "user_annotation"),
        host(
            "autograd::engine::evaluate_function: AddmmBackward0", 310, 100,
            tid=2, Sequence_number=7, Fwd_thread_id=1,
        ),
        host("AddmmBackward0", 320, 80, tid=2, Sequence_number=7, Fwd_thread_id=1),
        host("aten::mm", 330, 60, tid=2),
        *pair(2, 340, tid=2),
        host("Optimizer.step#SGD.step", 600, 100, "user_annotation"),
        host("aten::_foreach_add_", 610, 50),
        *pair(3, 620),
        *pair(4, 800),
    )  # fmt: skip


def test_each_column_of_each_piece_of_work(training_step: Trace) -> None:
    names = training_step.host_events["name"].cast(pl.String)
    table = attribution(training_step)

    def texts(column: str) -> list[str | None]:
        return [None if row is None else names[row] for row in table[column]]

    assert texts("forward_op") == [None, "aten::addmm", None, None]
    assert table["module_name"].to_list() == ["Linear_1", "Linear_1", None, None]
    assert table["annotation_name"].to_list() == ["forward", "loss", "Optimizer.step#SGD.step", None]


def test_the_chain_of_backward_work_names_its_forward(training_step: Trace) -> None:
    whole = links(training_step, 1)
    assert [link.name for link in whole] == [
        "autograd::engine::evaluate_function: AddmmBackward0", "AddmmBackward0", "aten::mm",
        "cudaLaunchKernel", "k2",
    ]  # fmt: skip
    assert [link.name for link in forward_links(training_step, 1)][-3:] == [
        "<built-in function linear>",
        "aten::linear",
        "aten::addmm",
    ]
    assert whole[-1].kind == "kernel"


def test_work_without_a_launch_has_itself_alone(trace_of: Make) -> None:
    trace = trace_of(pair(9, 5)[1], host("aten::mm", 0, 3))
    assert [link.name for link in links(trace, 0)] == ["k9"]
    assert attribution(trace).row(0) == (None,) * 5


def test_the_founding_articles_chain(shared_data: Path) -> None:
    trace = read(shared_data / "h200/mm_64_warm_eager.json.gz")
    whole = links(trace, 0)
    assert [(link.kind, link.name) for link in whole[:5]] == [
        ("step", "ProfilerStep#2"),
        ("user_annotation", "matmul_add"),
        ("cpu_op", "aten::matmul"),
        ("cpu_op", "aten::mm"),
        ("cuda_driver", "cuLaunchKernelEx"),
    ]
    assert whole[5].name.startswith("nvjet_sm90")


@pytest.mark.parametrize("name", ["h200/llama_train_eager_stack", "public/hta_a100_ws2_rank0_nccl_metadata"])
def test_forward_ops_are_where_the_files_own_arrows_start(shared_data: Path, name: str) -> None:
    """Kineto draws an arrow from each forward op's start to its backward op's; the join here uses numbers
    alone."""
    path = shared_data / f"{name}.json.gz"
    with gzip.open(path) as file:
        events = [e for e in json.load(file)["traceEvents"] if e.get("cat") == "fwdbwd"]
    starts = {e["id"]: round(e["ts"] * 1000) for e in events if e["ph"] == "s"}
    arrows = {round(e["ts"] * 1000): starts[e["id"]] for e in events if e["ph"] == "f"}
    trace = read(path)
    host = trace.host_events
    start, parent, forward_thread = (
        host["start_ns"].to_list(),
        host["parent"].to_list(),
        trace.argument("forward_thread").to_list(),
    )
    checked = 0
    for launch, forward in zip(trace.device_events["launch"], attribution(trace)["forward_op"], strict=True):
        up = launch
        while up is not None and not forward_thread[up]:
            up = parent[up]
        if up is not None and start[up] in arrows:
            assert abs(start[forward] - arrows[start[up]]) <= 1  # the file rounds its arrows by itself
            checked += 1
    assert checked > 800


def test_modules_against_a_walk_up_the_tree(shared_data: Path) -> None:
    trace = read(shared_data / "h200/llama_train_eager_stack.json.gz")
    host = trace.host_events
    names, parents = host["name"].cast(pl.String).to_list(), host["parent"].to_list()
    for launch, module in zip(trace.device_events["launch"], attribution(trace)["module"], strict=True):
        above: list[int] = []
        up = launch
        while up is not None:
            above.append(up)
            up = parents[up]
        if not any(names[row].startswith("autograd::engine") for row in above):
            modules = [row for row in above if names[row].startswith("nn.Module: ")]
            assert module == (modules[0] if modules else None)
