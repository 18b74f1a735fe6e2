"""The ops that made allocations, of a trace whose events of memory have the same addresses."""

from __future__ import annotations

import json
from pathlib import Path

import traces
from kinetoscope.analysis.memory.peak import histories, holders
from kinetoscope.document.collect.memory import peaks
from kinetoscope.sources.run import LoadedRun, MemoryFiles
from kinetoscope.trace.read import read
from snapshots import MAIN, WHEN_US, Allocator, dump, frames

BASE_NS = (WHEN_US - 1000) * 1000


def test_an_allocation_is_that_op_s_that_ran_when_it_was_made(tmp_path: Path):
    allocator = Allocator()
    first = allocator.alloc(5000, frames(*MAIN))  # at 1020 µs of the trace, after its segment
    allocator.free(first)
    again = allocator.alloc(6000)  # autograd's, at the same address
    assert again == first

    def made(ts: float, address: int, size: int) -> dict[str, object]:
        args = {"Device Type": 1, "Device Id": 0, "Addr": address, "Bytes": size}
        return {
            "ph": "i",
            "name": "[memory]",
            "cat": "cpu_instant_event",
            "pid": 1,
            "tid": 1,
            "ts": ts,
            "args": args,
        }

    events = [
        traces.host("aten::linear", 1010, 15),
        traces.host("aten::empty", 1012, 10),
        made(1019, first, 5120),
        made(1032, first, -5120),
        traces.host("MmBackward0", 1045, 20),
        made(1051, again, 6144),
    ]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "baseTimeNanoseconds": BASE_NS, "traceEvents": events}))
    run = LoadedRun((read(path),), snapshots=(MemoryFiles(0, dump(tmp_path / "x.pickle", allocator)),))
    (one,) = histories(run).found
    known = one.history.known.sort("start")
    assert known["op"].to_list() == ["aten::linear", "MmBackward0"]
    (peak,) = peaks(run).peaks
    assert peak.traced_us is not None
    for block, (start, end) in zip(peak.blocks, ((1010, 1025), (1045, 1065)), strict=True):
        assert start <= peak.traced_us + (block.start_us or 0) <= end  # the timeline shows it in its op
    (row,) = holders(one.history).iter_rows(named=True)
    assert (row["owner"], row["op"]) == ("autograd, MmBackward0", "MmBackward0")
