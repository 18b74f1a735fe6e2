"""Speed of light of compiled work: against plain arithmetic on the raw events of an H200's recordings."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from kinetoscope.analysis.compiled.join import Joined, join
from kinetoscope.compilation import fx
from kinetoscope.compilation.generated import module
from kinetoscope.compilation.model import CallCost
from kinetoscope.sources.run import load

FIXTURES = Path(__file__).parents[2] / "fixtures" / "h200_modes"
BANDWIDTH, FP32 = 4800e9, 67e12  # the H200's datasheet


def joined(name: str) -> Joined:
    found = join(load(str(FIXTURES / "compile.log.gz"), str(FIXTURES / f"{name}.json.gz")))
    assert found is not None
    return found


def durations(name: str) -> dict[str, list[float]]:
    """Microseconds of each kernel's launches, by its name."""
    found: dict[str, list[float]] = defaultdict(list)
    for event in json.loads(gzip.decompress((FIXTURES / f"{name}.json.gz").read_bytes()))["traceEvents"]:
        if event.get("cat") == "kernel":
            found[event["name"]].append(event["dur"])
    return found


@pytest.mark.parametrize("name", ["default", "max-autotune", "train_break"])
def test_kernels_reach_the_share_of_peak_that_their_raw_events_say(name: str) -> None:
    ran, compilation = durations(name), joined(name).compilation
    names = [k.name for k in compilation.kernels if k.launches]
    checked = 0
    for kernel in compilation.kernels:
        if not kernel.launches or names.count(kernel.name) > 1 or not kernel.bytes:
            continue
        took = median(ran[kernel.name]) / 1e6
        memory, compute = kernel.bytes / BANDWIDTH, (kernel.flops or 0) / FP32
        assert kernel.median_us == pytest.approx(took * 1e6)
        assert kernel.bytes_per_s == pytest.approx(kernel.bytes / took)
        share = max(memory, compute) / took
        assert kernel.refused == (share > 1)
        assert kernel.speed_of_light == (None if share > 1 else pytest.approx(share))
        if share <= 1:
            assert kernel.bound == ("compute" if compute > memory else "memory")
        checked += 1
    assert checked


def test_a_template_has_the_flops_of_its_matrix_product() -> None:
    compilation = joined("max-autotune").compilation
    template = next(k for k in compilation.kernels if k.category == "template" and k.launches)
    # bmm of f32[4, 256, 256] and f32[4, 256, 1024], without tf32
    assert (template.flops, template.dtype) == (2 * 4 * 256 * 1024 * 256, "fp32")
    assert template.bound == "compute"


def test_sums_are_those_of_the_parts() -> None:
    found = joined("default")
    for graph in found.compilation.graphs:
        if not graph.launches:
            continue
        kernels = [k for k in found.compilation.kernels if k.graph == graph.index and k.launches]
        least = sum((k.speed_of_light or 0) * (k.median_us or 0) * (k.launches or 0) for k in kernels)
        costed = sum(k.device_time_us or 0 for k in kernels if k.speed_of_light)
        for call in graph.extern:  # all of them are matrix products of known shapes
            for cost in call.costs:
                assert cost is not None
                least += max(cost.flops / FP32, cost.bytes / BANDWIDTH) * 1e6 * (graph.calls or 0)
            costed += call.device_time_us or 0
        assert graph.costed_us == pytest.approx(costed)
        assert graph.speed_of_light == pytest.approx(least / costed)
        frame = found.compilation.frames[graph.frame]
        assert (frame.costed_us or 0) >= (graph.costed_us or 0)
    for line in found.source_lines:
        assert 0 < (line.speed_of_light or 0) < 1
        assert (line.costed_us or 0) <= line.device_time_us * (1 + 1e-9)


MODULE = """\
# AOT ID: ['0_inference']

def call(args):
        assert_size_stride(arg0_1, (8, 16), (16, 1))
        assert_size_stride(arg1_1, (4, 16), (16, 1))
        assert_size_stride(arg2_1, (s0, 16), (16, 1))
        buf0 = empty_strided_cuda((8, 4), (4, 1), torch.bfloat16)
        # Topologically Sorted Source Nodes: [y], Original ATen: [aten.mm]
        extern_kernels.mm(arg0_1, reinterpret_tensor(arg1_1, (16, 4), (1, 16), 0), out=buf0)
        buf1 = buf0; del buf0  # reuse
        extern_kernels.addmm(arg3_1, arg0_1, reinterpret_tensor(arg1_1, (16, 4), (1, 16), 0), out=buf1)
        extern_kernels.mm(arg2_1, reinterpret_tensor(arg1_1, (16, 4), (1, 16), 0), out=buf1)
        extern_kernels.convolution(arg0_1, arg1_1, stride=(1, 1), out=buf1)
"""


def test_what_a_modules_matrix_products_cost() -> None:
    calls = {call.name: call for call in module.parse(MODULE).calls}
    product = CallCost(flops=2 * 8 * 4 * 16, bytes=2 * (8 * 16 + 16 * 4 + 8 * 4), dtype="bf16")
    assert [c.cost for c in calls["extern_kernels.mm"].comments] == [product, None]  # a size is a symbol
    # What is added is of unknown shape.
    assert [c.cost for c in calls["extern_kernels.addmm"].comments] == [None]
    assert [c.cost for c in calls["extern_kernels.convolution"].comments] == [None]


def test_products_of_a_graph() -> None:
    text = """\
def forward(self, a: "f32[3, 4][4, 1]cuda:0", b: "f32[4, 5][5, 1]cuda:0", s: "f32[s0, 4][4, 1]cuda:0"):
    mm: "f32[3, 5][5, 1]cuda:0" = torch.ops.aten.mm.default(a, b);  a = None
    addmm: "f32[3, 5][5, 1]cuda:0" = torch.ops.aten.addmm.default(mm, a, b)
    mm_1: "f32[s0, 5][5, 1]cuda:0" = torch.ops.aten.mm.default(s, b)
"""
    assert fx.matrix_products(text) == {"mm": 120, "addmm": 120, "mm_1": None}


def test_an_unknown_device_leaves_the_rows_as_they_were(tmp_path: Path) -> None:
    document: dict[str, Any] = json.loads(gzip.decompress((FIXTURES / "default.json.gz").read_bytes()))
    for device in document["deviceProperties"]:
        device["name"] = "Nobody's device"
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(document))
    found = join(load(str(FIXTURES / "compile.log.gz"), str(path)))
    assert found is not None
    assert any(k.launches for k in found.compilation.kernels)
    assert {k.speed_of_light for k in found.compilation.kernels} == {None}
