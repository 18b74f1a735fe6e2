"""A compile log and the traces of the same program, recorded on an H200 (tests/fixtures/h200_modes)."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from kinetoscope.analysis.compiled.join import Joined, join
from kinetoscope.sources.run import load

HERE = Path(__file__).parents[2] / "fixtures" / "h200_modes"
TRACES = ["default", "reduce-overhead", "max-autotune", "train_break", "skip"]


def joined(name: str) -> Joined:
    run = load(HERE / "compile.log.gz", HERE / "scheduler.txt.gz", HERE / f"{name}.json.gz")
    result = join(run)
    assert result is not None
    return result


@pytest.mark.parametrize("name", TRACES)
def test_all_generated_kernels_reach_their_lines(name: str) -> None:
    result = joined(name)
    events = json.loads(gzip.decompress((HERE / f"{name}.json.gz").read_bytes()))["traceEvents"]
    work = [e for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    generated = sum(e["dur"] for e in work if e["name"].startswith("triton_"))
    matched = result.matched
    assert matched.generated_us == pytest.approx(generated)
    assert matched.to_source_us == pytest.approx(generated)
    assert matched.basis_us.keys() == {"graph hash"}
    in_graphs = sum(g.device_time_us or 0 for g in result.compilation.graphs)
    total = sum(e["dur"] for e in work)
    assert result.coverage.compiled_share_of_device_time == pytest.approx(in_graphs / total)


def test_each_trace_finds_the_compilation_that_it_ran() -> None:
    """Five programs compiled as 0/0 in one process: the graph's hash tells them apart."""
    ran = {name: [f.index for f in joined(name).compilation.frames if f.launches] for name in TRACES}
    assert ran == {
        "default": [0],
        "reduce-overhead": [1],
        "max-autotune": [2],
        "train_break": [3, 4],
        "skip": [5],
    }


def test_the_share_of_device_time_in_cuda_graphs_is_found() -> None:
    share = {n: joined(n).coverage.cudagraph_share_of_device_time for n in TRACES}
    assert share["default"] == share["train_break"] == 0
    # Copies into the graph's inputs are launched outside of it.
    assert 0.9 < (share["reduce-overhead"] or 0) < 1
    assert 0.9 < (share["max-autotune"] or 0) < 1
    assert 0 < (share["skip"] or 0) < 0.05
    frames = joined("default").compilation.frames
    assert [f.cudagraphs for f in frames] == ["off", "used", "used", "off", "off", "used"]


def test_fusion_text_beside_the_log() -> None:
    graphs = joined("skip").compilation.graphs
    assert all(g.fusion and g.fusion.rounds for g in graphs)
    cut = graphs[-1].fusion.partitions if graphs[-1].fusion else None
    assert cut is not None
    assert (cut.cudagraphable, cut.others) == (1, 2)
    assert any("cpu" in why.lower() for why in cut.reasons)


def test_a_break_costs_idle_time_and_the_training_step_has_four_graphs() -> None:
    compilation = joined("train_break").compilation
    (row,) = compilation.graph_breaks
    assert (row.function, row.line) == ("forward", 13)
    assert row.idle_us == pytest.approx(542.5, abs=1)
    ran = [(g.compile_id, g.direction, g.calls) for g in compilation.graphs if g.launches]
    assert ran == [
        ("0/0", "forward", 3),
        ("0/0", "backward", 3),
        ("1/0", "forward", 3),
        ("1/0", "backward", 3),
    ]
    for graph in compilation.graphs:
        if graph.launches:
            library = sum(call.device_time_us or 0 for call in graph.extern)
            assert library == pytest.approx(graph.extern_device_time_us, rel=1e-6)


def test_autotuned_choices_have_times() -> None:
    compilation = joined("max-autotune").compilation
    assert compilation.autotune
    for row in compilation.autotune:
        assert row.choices
        assert row.best_ms
    template = next(k for k in compilation.kernels if k.category == "template" and k.launches)
    assert template.config == "num_warps=8, num_stages=4"


def test_the_report_names_the_line_of_a_generated_kernel() -> None:
    from kinetoscope.document.collect.report import build

    report = build(load(HERE / "compile.log.gz", HERE / "default.json.gz"))
    sources = {row.name: row.source for row in report.kernels if row.name.startswith("triton_")}
    assert sources == {"triton_per_fused_div_exp_sum_0": "/tmp/p.py:8"}
    assert report.compilation is not None
    assert report.compilation.coverage.compiled_share_of_device_time == 1
