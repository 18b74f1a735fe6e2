"""The op table's rules, each on the smallest trace that shows it. Times in the traces are microseconds."""

from __future__ import annotations

from typing import Any

from kinetoscope.analysis.events.ops import ops
from kinetoscope.sources.run import LoadedRun
from traces import Event, call, host, kernel, step, trace


def rows(*events: Event) -> dict[tuple[str, str], dict[str, Any]]:
    table = ops(LoadedRun((trace(*events),)))
    return {(row["name"], row["kind"]): row for row in table.iter_rows(named=True)}


def times(row: dict[str, Any]) -> tuple[int, float, float, float, float]:
    """Calls, host self, host total, device self, device total; microseconds."""
    columns = ("host_self_ns", "host_total_ns", "device_self_ns", "device_total_ns")
    return (row["calls"], *(row[column] / 1000 for column in columns))


def op(name: str, ts: float, dur: float, external: int, tid: int = 1) -> Event:
    return host(name, ts, dur, tid=tid, **{"External id": external})


def test_children_count_towards_totals_and_not_towards_self() -> None:
    table = rows(
        op("aten::linear", 0, 100, 1),
        op("aten::addmm", 10, 50, 2),
        call("cudaLaunchKernel", 20, 10, 7) | {"args": {"correlation": 7, "External id": 2}},
        kernel("gemm", 200, 30, 7, **{"External id": 2}),
    )
    assert times(table["aten::linear", "cpu_op"]) == (1, 50, 100, 0, 30)
    assert times(table["aten::addmm", "cpu_op"]) == (1, 40, 50, 30, 30)
    assert times(table["cudaLaunchKernel", "cuda_runtime"]) == (1, 10, 10, 0, 0)
    assert times(table["gemm", "kernel"]) == (1, 0, 0, 30, 30)


def test_steps_are_one_row() -> None:
    table = rows(step(1, 0, 10), step(2, 10, 30), step(12, 50, 5))
    assert times(table["ProfilerStep*", "user_annotation"]) == (3, 45, 45, 0, 0)


def test_an_only_child_of_the_same_name_is_its_parent() -> None:
    table = rows(
        op("aten::mm", 0, 100, 1), op("aten::mm", 10, 80, 2), kernel("gemm", 200, 30, 0, **{"External id": 2})
    )
    assert times(table["aten::mm", "cpu_op"]) == (1, 100, 100, 30, 30)


def test_one_of_two_children_of_the_same_name_is_a_call_of_its_own() -> None:
    table = rows(op("aten::mm", 0, 100, 1), op("aten::mm", 10, 40, 2), op("aten::t", 60, 10, 3))
    assert times(table["aten::mm", "cpu_op"]) == (2, 90, 140, 0, 0)


def test_bookkeeping_and_python_functions_are_no_rows() -> None:
    table = rows(
        op("aten::mm", 0, 100, 1),
        op("aten::is_leaf", 10, 5, 2),
        host("nn.Module: Linear_0", 20, 50, "python_function"),
        op("aten::t", 30, 10, 3),
    )
    assert set(table) == {("aten::mm", "cpu_op"), ("aten::t", "cpu_op")}
    assert times(table["aten::mm", "cpu_op"]) == (1, 90, 100, 0, 0)


def test_the_profilers_overhead_belongs_to_what_it_interrupted() -> None:
    table = rows(
        op("aten::mm", 0, 100, 1),
        op("aten::mul", 1000, 100, 2, tid=2),
        host("Activity Buffer Request", 1010, 60, "overhead", tid=0) | {"pid": -1},
        host("Buffer Flush", 2000, 5, "overhead", tid=0) | {"pid": -1},
    )
    assert times(table["aten::mul", "cpu_op"]) == (1, 40, 100, 0, 0)
    assert times(table["aten::mm", "cpu_op"]) == (1, 100, 100, 0, 0)
    assert times(table["Activity Buffer Request", "overhead"]) == (1, 60, 60, 0, 0)
    assert times(table["Buffer Flush", "overhead"]) == (1, 5, 5, 0, 0)


def test_an_op_as_long_as_the_overhead_around_it_is_inside_of_it() -> None:
    """Each inside of the other would be a ring, and summing up the tree would never end."""
    table = rows(
        host("Buffer Flush", 10, 5, "overhead"),
        op("aten::mm", 10, 5, 1),
        kernel("gemm", 200, 30, 0, **{"External id": 1}),
    )
    assert times(table["aten::mm", "cpu_op"]) == (1, 5, 5, 30, 30)
    assert times(table["Buffer Flush", "overhead"]) == (1, 0, 5, 0, 30)


def test_an_annotation_has_a_row_on_the_host_and_one_on_the_device() -> None:
    on_device = kernel("block", 200, 50) | {"cat": "gpu_user_annotation"}
    table = rows(
        host("block", 0, 100, "user_annotation", **{"External id": 1}),
        on_device,
        kernel("gemm", 200, 30, 0, **{"External id": 1}),
    )
    assert times(table["block", "user_annotation"]) == (1, 100, 100, 30, 30)
    assert times(table["block", "device annotation"]) == (1, 0, 0, 50, 50)


def test_the_launch_and_no_id_says_whose_the_kernel_is() -> None:
    table = rows(
        op("aten::view", 0, 5, 70),
        op("aten::mm", 10, 50, 3),
        call("cudaLaunchKernel", 20, 10, 70),
        kernel("gemm", 200, 30, 70, **{"External id": 70}),  # its correlation id, as in 2021
    )
    assert times(table["aten::mm", "cpu_op"])[3:] == (30, 30)
    assert times(table["aten::view", "cpu_op"])[3:] == (0, 0)


def test_correlation_ids_that_stand_for_external_ids_name_no_op() -> None:
    table = rows(
        op("aten::view", 0, 5, 70),
        call("cudaLaunchKernel", 20, 10, 70) | {"args": {"correlation": 70, "External id": 70}},
        kernel("gemm", 200, 30, 70, **{"External id": 70}),
    )
    assert times(table["aten::view", "cpu_op"])[3:] == (0, 0)


def test_without_external_ids_the_launch_says_whose_the_kernel_is() -> None:
    table = rows(op("aten::mm", 0, 100, 1), call("cudaLaunchKernel", 10, 5, 7), kernel("gemm", 200, 30, 7))
    assert times(table["aten::mm", "cpu_op"]) == (1, 95, 100, 30, 30)


def test_ranks_are_summed() -> None:
    ranks = [trace(op("aten::mm", 0, 10 + rank, 1), rank=rank) for rank in range(2)]
    assert ops(LoadedRun(tuple(ranks)))["host_total_ns"].to_list() == [21_000]
