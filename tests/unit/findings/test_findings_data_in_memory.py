"""Data in the CPU's memory that is gathered there and sent, step by step."""

from __future__ import annotations

import pytest

import traces
from kinetoscope.findings.model import Finding
from kinetoscope.findings.rank_view import RankView
from kinetoscope.findings.rules import data_in_memory
from kinetoscope.recording.manifest import DeviceInfo, Environment, Manifest, RankRecord
from kinetoscope.sources.run import LoadedRun

LOADER = "enumerate(DataLoader)#_{}ProcessDataLoaderIter.__next__"
MIB = 1 << 20


def view(
    ops: dict[str, float], *, loader: str | None = "Single", sent: int = 6 * MIB, own_us: float = 100
) -> RankView:
    """A step: ops on the CPU (µs of each), within a loader or not, which runs Python for ``own_us``; then the
    batch is sent and worked on."""
    at, events = 20.0, list[traces.Event]()
    for name, us in ops.items():
        events.append(traces.host(name, at, us))
        at += us + 1
    if loader is not None:
        events.append(traces.host(LOADER.format(loader), 10, at + own_us - 10, "user_annotation"))
        at += own_us + 10
    events += [
        traces.host("aten::copy_", at, 130),
        traces.call("cudaMemcpyAsync", at + 5, 100, 1),
        traces.kernel("Memcpy HtoD (Pageable -> Device)", at + 10, 90, 1, bytes=sent) | {"cat": "gpu_memcpy"},
        traces.call("cudaStreamSynchronize", at + 110, 10, 0),
        traces.host("aten::mm", at + 140, 20),
        traces.call("cudaLaunchKernel", at + 145, 5, 2),
        traces.kernel("gemm", at + 160, 300, 2),
    ]
    trace = traces.trace(traces.step(1, 0, at + 470), *events)
    devices = (DeviceInfo(index=0, name="NVIDIA H200", total_memory_bytes=140 << 30),)
    record = RankRecord(rank=0, peak_memory_bytes=4 << 30)
    manifest = Manifest(ranks=(record,), environment=Environment(devices=devices))
    return RankView(LoadedRun((trace,), manifest), trace)


def found(seen: RankView) -> list[Finding]:
    return list(data_in_memory.find(seen))


SAMPLES = {"aten::select": 300.0, "aten::stack": 200.0}


def test_samples_taken_one_by_one_go_with_their_loader_and_their_copy() -> None:
    (finding,) = found(view(SAMPLES))
    assert "takes samples one by one" in finding.title
    assert "2 ops: aten::select, aten::stack" in finding.title
    assert "the 146 GB that are free" in finding.advice
    assert finding.saving.us == pytest.approx(500 + 100 + 130, rel=0.1)


def test_rows_that_are_gathered_go_without_the_loader_around_them() -> None:
    """What else the loader does, such as sampling, stays."""
    (finding,) = found(view({"aten::index": 300, "aten::sort": 400}))
    assert "takes rows out of tensors" in finding.title
    assert finding.saving.us == pytest.approx(300 + 130, rel=0.15)


def test_rows_that_the_program_gathers_itself_are_found_as_well() -> None:
    (finding,) = found(view({"aten::index": 300}, loader=None))
    assert "aten::index" in finding.title


@pytest.mark.parametrize(
    ("ops", "loader", "sent"),
    [
        (SAMPLES, "Single", 4096),  # labels: nothing of size travels
        ({"aten::div": 500.0}, "Single", 6 * MIB),  # computed, not picked
        ({"aten::set_": 5.0}, "MultiProcessing", 6 * MIB),  # workers make the batches
        ({"aten::index": 5.0}, None, 6 * MIB),  # less than 3 % of the step
    ],
)
def test_no_data_in_memory(ops: dict[str, float], loader: str | None, sent: int) -> None:
    assert not found(view(ops, loader=loader, sent=sent))
