"""Memory in other tools' views: counters beside a trace, and torch's own viewer of the file as it is."""

from __future__ import annotations

import gzip
import importlib.util
import json
import pickle
from pathlib import Path

import msgspec
import pytest

import traces
from kinetoscope.export import perfetto
from kinetoscope.recording.memory import Held
from kinetoscope.snapshot.model import ALLOC
from kinetoscope.snapshot.read import read as read_snapshot
from kinetoscope.sources.run import LoadedRun, MemoryFiles
from kinetoscope.trace.read import read
from snapshots import WHEN_US, Training, dump

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"


def test_counters_beside_a_trace_sum_to_what_the_allocator_counted(tmp_path: Path):
    training = Training()
    (tmp_path / "x.json").write_bytes(
        msgspec.json.encode(Held(boundaries_ns=tuple(training.boundaries), tensors=(), entries=1 << 20))
    )
    events = [traces.step(1, 0, 5000)]
    document = {"schemaVersion": 1, "baseTimeNanoseconds": WHEN_US * 1000, "traceEvents": events}
    (tmp_path / "trace.json").write_text(json.dumps(document))
    trace = read(tmp_path / "trace.json")
    files = MemoryFiles(0, dump(tmp_path / "x.pickle", training.allocator), tmp_path / "x.json")
    shown = json.loads(perfetto.render(LoadedRun((trace,), snapshots=(files,))))["traceEvents"]
    # The history's first moment stands twice: before its first entry, and after.
    counters = {one["ts"]: one["args"] for one in shown if one["ph"] == "C"}
    entries = training.allocator.entries
    assert [*counters] == [float(entry["time_us"]) - WHEN_US for entry in entries]  # type: ignore[arg-type]
    for counts, counted in zip(counters.values(), training.allocator.counted, strict=True):
        assert sum(counts.values()) == counted["reserved"]
        assert counts["free or rounding"] == counted["reserved"] - counted["requested"]
    assert "GPU 0 memory" in {one["args"].get("name") for one in shown if one["ph"] == "M"}
    without = json.loads(perfetto.render(LoadedRun((trace,))))["traceEvents"]
    assert not [one for one in without if one["ph"] == "C"]


def test_torch_s_viewer_reads_what_kinetoscope_reads(tmp_path: Path):
    """By its own file: torch is not imported for it."""
    torch = importlib.util.find_spec("torch")
    if torch is None or torch.origin is None:
        pytest.skip("torch is not installed")
    viewer = importlib.util.spec_from_file_location(
        "memory_viz", Path(torch.origin).parent / "cuda/_memory_viz.py"
    )
    assert viewer is not None
    assert viewer.loader is not None
    module = importlib.util.module_from_spec(viewer)
    viewer.loader.exec_module(module)
    packed = FIXTURES / "h200_memory/generate.pickle.gz"
    (tmp_path / "x.pickle").write_bytes(gzip.decompress(packed.read_bytes()))
    found, snapshot = read_snapshot(tmp_path / "x.pickle"), pickle.loads((tmp_path / "x.pickle").read_bytes())
    assert f"segments: {len(found.segments)}\n" in module.segsum(snapshot)
    lines = module.trace(snapshot)
    assert lines.count(" = ") - lines.count("cudaMalloc") == int((found.entries["action"] == ALLOC).sum()) > 0
    assert "MemoryViz" in module.trace_plot(snapshot)
