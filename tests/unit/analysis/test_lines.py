"""Lines of one step, laid over the ops of the recorded ones."""

from __future__ import annotations

import json

import polars as pl
import pytest
from msgspec.structs import replace

import traces
from kinetoscope.analysis.events.torch_names import CLOCK
from kinetoscope.analysis.origins.lines import op_lines
from kinetoscope.analysis.origins.sums import kernels
from kinetoscope.document.collect.kernels import ops as listed_ops
from kinetoscope.document.collect.replay import replay
from kinetoscope.export import speedscope
from kinetoscope.findings import evidence
from kinetoscope.findings.rank_view import RankView
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.model import Trace
from traces import noted


def ops(start: float, *names: str) -> list[dict[str, object]]:
    return [traces.host(name, start + 10 * place, 5) for place, name in enumerate(names)]


def run(recorded: Trace, lines: Trace) -> LoadedRun:
    return LoadedRun((recorded,), lines={0: lines})


def lines_of(found: LoadedRun) -> list[str | None]:
    table = op_lines(found)[0].texts
    host = found.traces[0].host_events.select(pl.col("category").cast(pl.String))
    return table.filter(host["category"] == "cpu_op")["line"].to_list()


def test_ops_in_the_same_order_have_the_lines_of_the_step_that_knows_them():
    recorded = traces.trace(
        traces.step(1, 0, 100), traces.step(2, 100, 100),
        *ops(10, "aten::mm", "aten::add"), *ops(110, "aten::mm", "aten::add"),
    )  # fmt: skip
    found = run(recorded, noted(("aten::mm", "train.py(3): step"), ("aten::add", "train.py(4): step")))
    assert lines_of(found) == ["train.py:3 step", "train.py:4 step"] * 2
    assert op_lines(found)[0].verified == 1.0


def test_what_differs_has_no_line():
    recorded = traces.trace(
        traces.step(1, 0, 100), *ops(10, "aten::mm", "aten::mul", "aten::add", "aten::relu")
    )
    known = [("aten::mm", "a.py(1): f"), ("aten::add", "a.py(2): f"), ("aten::relu", "a.py(3): f")]
    assert lines_of(run(recorded, noted(*known))) == ["a.py:1 f", None, "a.py:2 f", "a.py:3 f"]


def test_a_step_of_another_kind_has_none():
    recorded = traces.trace(traces.step(1, 0, 100), *ops(10, "aten::conv2d", "aten::relu_", "aten::mm"))
    found = run(recorded, noted(("aten::mm", "a.py(1): f"), ("aten::add", "a.py(2): f")))
    assert lines_of(found) == [None] * 3


@pytest.mark.parametrize(("skew", "known"), [(0.4, True), (5.0, False)])
def test_where_the_clocks_disagree_no_line_is_known(skew: float, known: bool):
    recorded = traces.trace(traces.step(1, 0, 100), *ops(10, "aten::mm"))
    assert bool(op_lines(run(recorded, noted(("aten::mm", "a.py(1): f"), skew=skew)))) == known


def test_without_such_a_step_nothing_is_known_and_kernels_say_so():
    recorded = traces.trace(traces.step(1, 0, 100), *ops(10, "aten::mm"))
    assert op_lines(LoadedRun((recorded,))) == {}
    assert op_lines(replace(run(recorded, recorded), lines={})) == {}
    assert kernels(LoadedRun((recorded,)), "line").is_empty()


def test_kernels_are_summed_by_line_and_module_and_backward_work_is_its_forward_op_s():
    recorded = traces.trace(
        traces.step(1, 0, 200),
        traces.host("aten::mm", 10, 10, **{"Sequence number": 5, "Fwd thread id": 0}),
        traces.call("cudaLaunchKernel", 12, 2, 1),
        traces.kernel("gemm", 20, 30, 1),
        traces.host("MmBackward0", 60, 12, tid=2, **{"Sequence number": 5, "Fwd thread id": 1}),
        traces.call("cudaLaunchKernel", 64, 2, 2, tid=2),
        traces.kernel("gemm_backward", 80, 50, 2),
        traces.host("aten::add", 120, 10),
        traces.call("cudaLaunchKernel", 122, 2, 3),
        traces.kernel("add", 140, 10, 3),
    )
    known = noted(("aten::mm", "a.py(1): Block.forward"), ("aten::add", "a.py(2): step"))
    found = run(recorded, known)
    rows = kernels(found, "line").select("line", "launches").rows()
    assert [(str(line), launches) for line, launches in rows] == [
        ("a.py:1 Block.forward", 2), ("a.py:2 step", 1),
    ]  # fmt: skip
    view = RankView(found, recorded)
    shown = evidence.of(view, "all", recorded.device_events)
    assert evidence.lines(view, [shown]) == ("a.py:1 Block.forward", "a.py:2 step")


def test_of_a_pause_the_line_is_known_in_which_most_of_it_passed():
    clock = [event for at in (1.0, 3.0) for event in (
        traces.event("python_function", CLOCK, at, 1), traces.event("user_annotation", CLOCK, at + 0.3, 0.2),
    )]  # fmt: skip
    known = traces.trace(
        *clock,
        traces.step(9, 99, 500),
        *(
            traces.event("python_function", name, at, us)
            for name, at, us in (
                ("a.py(1): load", 100, 20),
                ("a.py(2): load", 120, 60),
                ("a.py(3): load", 180, 30),
                ("a.py(4): load", 210, 20),
            )
        ),
        traces.host("aten::mm", 102, 5),
        traces.host("aten::copy_", 212, 5),
        traces.host("aten::add", 220, 5),
    )
    recorded = traces.trace(traces.step(1, 0, 100), *ops(10, "aten::mm", "aten::copy_", "aten::add"))
    before = op_lines(run(recorded, known))[0].rows["before"]
    host = recorded.host_events.select(pl.col("category").cast(pl.String))
    assert before.filter(host["category"] == "cpu_op").to_list() == [None, "a.py:2 load", None]


def test_speedscope_has_the_device_time_by_modules_lines_and_ops():
    document = json.loads(speedscope.render(traces.two_layers()))
    names = [frame["name"] for frame in document["shared"]["frames"]]
    profile = document["profiles"][-1]
    stacks = [[names[frame] for frame in stack] for stack in profile["samples"]]
    assert dict(zip(map(tuple, stacks), profile["weights"], strict=True)) == {
        ("Layer", "Attention", "a.py:1 Attention.forward", "aten::mm", "gemm"): 30_000,
        ("a.py:2 step", "aten::add", "add"): 10_000,
    }
    assert profile["endValue"] == sum(profile["weights"])


def test_of_the_time_between_ops_the_lines_are_named_in_which_it_passed():
    recorded = traces.trace(
        traces.step(1, 0, 100),
        *(traces.host(name, at, 10) for name, at in (("aten::mm", 10), ("aten::add", 70))),
    )
    lines = noted(("aten::mm", "a.py(1): f"), ("aten::add", "a.py(2): step"))
    for known, named in (({0: lines}, ["a.py:2 step", "a.py:1 f"]), ({}, [])):
        found = replay(LoadedRun((recorded,), lines=known))
        between = next(part for part in found.critical_path if part.text == "host: between ops")
        assert [one.line for one in between.lines] == named
        assert sum(one.us for one in between.lines) <= between.us + 1e-6
    assert all(part.lines is None for part in found.critical_path if part is not between)


def test_an_op_is_listed_with_the_line_that_calls_it_most():
    products = traces.host("aten::mm", 10, 5), traces.host("aten::mm", 20, 9)
    recorded = traces.trace(traces.step(1, 0, 100), *products)
    lines = noted(("aten::mm", "a.py(1): f"), ("aten::mm", "a.py(2): g"))
    rows = {row.name: row.line for row in listed_ops(run(recorded, lines))}
    assert rows["aten::mm"] == "a.py:2 g"
    assert {row.line for row in listed_ops(LoadedRun((recorded,)))} == {None}
