"""What ops inside replayed graphs cost, against sums by hand."""

from __future__ import annotations

import pytest

from kinetoscope.analysis.cost.roofline import costed
from kinetoscope.trace.captures import with_captures
from traces import Event, call, event, host, kernel, trace

MM = {"Input Dims": [[4, 8], [8, 16]], "Input type": ["float", "float"]}


def capture() -> list[Event]:
    return [
        call("cudaStreamBeginCapture", 1, 1, 0),
        host("aten::mm", 10, 8, **MM),
        call("cudaLaunchKernel", 12, 1, 5000),
        call("cudaStreamEndCapture", 900, 1, 0),
    ]


def test_each_replay_of_a_graph_does_its_ops_once() -> None:
    replays: list[Event] = []
    for number in range(3):
        at = 10_000.0 + 1000 * number
        replays += [
            event("user_annotation", "step[DECODE bs=4]", at, 100),
            call("cudaGraphLaunch", at + 5, 10, 100 + number),
            kernel("gemm", at + 200, 8, 100 + number),
        ]
    joined = with_captures(trace(*replays), [trace(*capture())])
    table = costed(joined)
    assert table["time_ns"].to_list() == [8000] * 3
    assert table["flops"].to_list() == pytest.approx([2 * 4 * 8 * 16] * 3)
