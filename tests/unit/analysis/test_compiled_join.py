"""Compile log and trace joined: on hashes, compile ids and names, with what remains said."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from compile_records import artifact, record
from kinetoscope.analysis.compiled.join import Joined, join
from kinetoscope.compilation import build
from kinetoscope.compilation.build import Sidecar
from kinetoscope.compilation.log import read as log
from kinetoscope.compilation.model import CompiledProgram
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.model import Trace

TraceOf = Callable[..., Trace]

MODULE = """\
# AOT ID: ['{aot}']

# kernel path: /tmp/k.py
# Topologically Sorted Source Nodes: [y], Original ATen: [aten.mul]
# Source node to ATen node mapping:
#   y => mul
# Graph fragment:
#   %mul : Tensor "f32[8][1]cuda:0" = call_function[target=torch.ops.aten.mul.Tensor](args = (%a, 2))
triton_poi_fused_mul_0 = async_compile.triton('triton_poi_fused_mul_0', '''
@triton_heuristics.pointwise(size_hints={{'x': 8}}, triton_meta={{'signature': {{'in_ptr0': '*fp32'}}}})
def triton_poi_fused_mul_0(): pass
''', device_str='cuda')

async_compile.wait(globals())

def call(args):
        assert_size_stride(a, (8, ), (1, ))
        buf0 = empty_strided_cuda((8, ), (1, ), torch.float32)
        # Topologically Sorted Source Nodes: [y], Original ATen: [aten.mul]
        triton_poi_fused_mul_0.run(a, buf0, 8, stream=stream0)
        # Topologically Sorted Source Nodes: [y, z], Original ATen: [aten.mul, aten.mm]
        extern_kernels.mm(buf0, a, out=buf1)
        # Topologically Sorted Source Nodes: [z, w], Original ATen: [aten.mm, aten.mm]
        extern_kernels.mm(buf1, a, out=buf2)
"""
GRAPH = """\
class GraphModule(torch.nn.Module):
    def forward(self, a: "f32[8][1]cuda:0"):
        # File: /home/user/model.py:{line} in forward, code: y = a * 2
        {node}: "f32[8][1]cuda:0" = torch.ops.aten.mul.Tensor(a, 2)
        # File: /home/user/model.py:20 in forward, code: z = y @ a
        {mm}: "f32[8][1]cuda:0" = torch.ops.aten.mm.default({node}, a)
        # File: /home/user/model.py:30 in forward, code: w = z @ a
        {mm2}: "f32[8][1]cuda:0" = torch.ops.aten.mm.default({mm}, a)
"""


def compiled(
    key: str, frame: int, aot: str = "0_inference", line: int = 10, function: str = "forward"
) -> bytes:
    at: dict[str, Any] = {"frame_id": frame, "frame_compile_id": 0, "attempt": 0}
    dynamo = GRAPH.format(line=line, node="y", mm="z", mm2="w")
    post = GRAPH.format(line=line, node="mul", mm="mm", mm2="mm_1")
    metrics = {
        "compile_id": f"{frame}/0",
        "co_name": function,
        "co_filename": "/home/user/model.py",
        "co_firstlineno": 9,
    }
    return b"".join(
        [
            record({"dynamo_start": {"stack": []}, **at}),
            record({"dynamo_output_graph": {}, **at}, dynamo),
            artifact("inductor_post_grad_graph", post, **at),
            record({"inductor_output_code": {"filename": f"/x/{key}.py"}, **at}, MODULE.format(aot=aot)),
            artifact("fx_graph_cache_miss", f'{{"key": "{key}"}}', **at),
            record({"compilation_metrics": metrics, **at}),
        ]
    )


@pytest.fixture
def compilation(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., CompiledProgram]:
    def make(*parts: bytes) -> CompiledProgram:
        path = tmp_path_factory.mktemp("log") / "a.log"
        path.write_bytes(b"".join(parts))
        return build.build([(log.read(path), None, Sidecar())])

    return make


def host(name: str, ts: float, dur: float, category: str = "cpu_op", **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur, "args": args}


def launch(correlation: int, ts: float, name: str = "cuLaunchKernel") -> dict[str, Any]:
    return host(name, ts, 1, "cuda_runtime", correlation=correlation)


def kernel(name: str, correlation: int, ts: float, dur: float, **args: Any) -> dict[str, Any]:
    arguments = {"device": 0, "stream": 7, "correlation": correlation, "registers per thread": 16, **args}
    return {
        "ph": "X",
        "cat": "kernel",
        "name": name,
        "pid": 0,
        "tid": 7,
        "ts": ts,
        "dur": dur,
        "args": arguments,
    }


def call_of(key: str, ts: float, first: int) -> list[dict[str, Any]]:
    """One call of the module on the host and the device: a generated kernel and two matmuls."""
    return [
        host(f"## Call CompiledFxGraph {key} ##", ts, 50),
        host("triton_poi_fused_mul_0", ts + 1, 5),
        launch(first, ts + 2),
        host("aten::mm", ts + 10, 5),
        launch(first + 1, ts + 11),
        host("aten::mm", ts + 20, 5),
        launch(first + 2, ts + 21),
        kernel("triton_poi_fused_mul_0", first, ts + 3, 4),
        kernel("gemm", first + 1, ts + 12, 20),
        kernel("gemm", first + 2, ts + 32, 30),
    ]


def joined(compilation: CompiledProgram, *traces: Trace) -> Joined:
    result = join(LoadedRun(traces, None, compilation, None))
    assert result is not None
    return result


def test_kernels_of_one_name_are_told_apart_by_their_graphs(
    compilation: Callable[..., CompiledProgram], trace_of: TraceOf
) -> None:
    log_ = compilation(compiled("fone", 0), compiled("ftwo", 1, line=40))
    trace = trace_of(*call_of("fone", 0, 1), *call_of("fone", 100, 11), *call_of("ftwo", 200, 21))
    result = joined(log_, trace)
    first, second = result.compilation.kernels
    assert (first.device_time_us, first.launches, first.registers) == (8, 2, 16)
    assert (second.device_time_us, second.launches) == (4, 1)
    assert [(g.calls, g.device_time_us, g.extern_device_time_us) for g in result.compilation.graphs] == [
        (2, 108, 100),
        (1, 54, 50),
    ]
    assert result.compilation.frames[0].device_time_us == 108
    assert [e.device_time_us for g in result.compilation.graphs for e in g.extern] == [100, 50]
    assert result.coverage.compiled_share_of_device_time == 1
    # From the first call's start to the last kernel's end is 262 µs.
    assert first.share_of_window == pytest.approx(8 / 262)
    assert result.compilation.graphs[0].share_of_window == pytest.approx(108 / 262)
    shares = {line.line: line.share_of_window for line in result.source_lines}
    assert shares[10] == pytest.approx(8 / 262)
    assert result.matched.basis_us == {"graph hash": 12}


def test_library_calls_reach_their_own_lines(
    compilation: Callable[..., CompiledProgram], trace_of: TraceOf
) -> None:
    result = joined(compilation(compiled("fone", 0)), trace_of(*call_of("fone", 0, 1)))
    lines = [(line.line, line.device_time_us, line.own_us) for line in result.source_lines]
    assert lines == [(30, 30, 30), (20, 20, 20), (10, 4, 4)]
    by_op = [list(line.library_us.values()) for line in result.source_lines]
    assert by_op == [[30], [20], []], "the rest of a line's time is of generated kernels"


def test_outside_and_replayed_work_has_its_share(
    compilation: Callable[..., CompiledProgram], trace_of: TraceOf
) -> None:
    eager = [host("aten::add", 200, 5), launch(31, 201), kernel("add", 31, 203, 46)]
    replay = [
        host("## Call CompiledFxGraph fone ##", 300, 50),
        launch(41, 302, "cudaGraphLaunch"),
        kernel("triton_poi_fused_mul_0", 41, 310, 4),
        kernel("gemm", 41, 320, 46),
    ]
    result = joined(compilation(compiled("fone", 0)), trace_of(*call_of("fone", 0, 1), *eager, *replay))
    assert msgspec.structs.asdict(result.coverage) == {
        "compiled_share_of_device_time": pytest.approx(104 / 150),
        "cudagraph_share_of_device_time": pytest.approx(50 / 150),
    }
    assert result.compilation.kernels[0].launches == 2
    # Inside of the replay nobody can tell the matmuls from other library kernels.
    assert [e.device_time_us for e in result.compilation.graphs[0].extern] == [50]


def test_without_announced_calls_the_region_and_the_name_decide(
    compilation: Callable[..., CompiledProgram], trace_of: TraceOf
) -> None:
    log_ = compilation(compiled("fone", 0), compiled("ftwo", 1, line=40))
    in_region = [
        host("Torch-Compiled Region: 1/0", 0, 20),
        launch(1, 2),
        kernel("triton_poi_fused_mul_0", 1, 3, 4),
    ]
    nowhere = [
        launch(2, 30),
        kernel("triton_poi_fused_mul_0", 2, 31, 8),
        launch(3, 40),
        kernel("triton_x", 3, 41, 2),
    ]
    result = joined(log_, trace_of(*in_region, *nowhere))
    assert [k.device_time_us for k in result.compilation.kernels] == [0, 4]
    # The name alone fits two graphs: nobody gets it, and that is said.
    assert result.matched.basis_us == {"compile id and name": 4}
    unmatched = [(row.name, row.device_time_us) for row in result.matched.unmatched]
    assert unmatched == [("triton_poi_fused_mul_0", 8), ("triton_x", 2)]
    alone = joined(compilation(compiled("fone", 0)), trace_of(*nowhere))
    assert alone.matched.basis_us == {"name": 8}


def test_frames_of_other_backends_have_what_their_regions_launched(
    compilation: Callable[..., CompiledProgram], trace_of: TraceOf
) -> None:
    at: dict[str, Any] = {"frame_id": 5, "frame_compile_id": 0, "attempt": 0}
    metrics = {"compile_id": "5/0", "co_name": "f", "graph_op_count": 2}
    other = record({"dynamo_start": {"stack": []}, **at}) + record({"compilation_metrics": metrics, **at})
    region = [
        host("Torch-Compiled Region: 5/0", 100, 40),
        launch(31, 102),
        kernel("gemm", 31, 104, 20),
        launch(32, 110),
        kernel("add", 32, 125, 5),
    ]
    result = joined(compilation(compiled("fone", 0), other), trace_of(*call_of("fone", 0, 1), *region))
    frames = {frame.compile_id: frame for frame in result.compilation.frames}
    assert (frames["5/0"].device_time_us, frames["5/0"].launches) == (25, 2)
    assert frames["0/0"].device_time_us == 54
    # It is not said to have run compiled: nobody knows.
    assert result.coverage.compiled_share_of_device_time == pytest.approx(54 / 79)


def test_a_graph_that_the_log_lacks_is_named(
    compilation: Callable[..., CompiledProgram], trace_of: TraceOf
) -> None:
    result = joined(compilation(compiled("fone", 0)), trace_of(*call_of("fother", 0, 1)))
    assert [row.hash for row in result.matched.unknown_graphs] == ["fother"]
    assert result.matched.unmatched[0].name == "triton_poi_fused_mul_0"


def test_the_same_graph_from_the_cache_belongs_to_the_compile_id_that_ran(
    compilation: Callable[..., CompiledProgram], trace_of: TraceOf
) -> None:
    log_ = compilation(compiled("fone", 0), compiled("fone", 1))
    region = host("Torch-Compiled Region: 1/0", 0, 60)
    result = joined(log_, trace_of(region, *call_of("fone", 1, 1)))
    assert [g.calls for g in result.compilation.graphs] == [None, 1]
    assert result.compilation.graphs[1].device_time_us == 54


def test_one_log_serves_the_traces_of_all_ranks(
    compilation: Callable[..., CompiledProgram], trace_of: TraceOf
) -> None:
    log_ = compilation(compiled("fone", 0))
    traces = [trace_of(*call_of("fone", 0, 1), rank=rank) for rank in (0, 1)]
    result = joined(log_, *traces)
    assert result.compilation.kernels[0].launches == 2
    assert result.compilation.graphs[0].device_time_us == 108


def test_no_device_work_leaves_nulls(compilation: Callable[..., CompiledProgram], trace_of: TraceOf) -> None:
    result = joined(compilation(compiled("fone", 0)), trace_of(host("aten::mm", 0, 5)))
    assert set(msgspec.structs.astuple(result.coverage)) == {None}
    assert result.compilation.kernels[0].device_time_us is None
    assert result.source_lines == ()


BREAK = (
    "Graph break in user code at /home/user/model.py:12\n"
    "Graph Break Reason: Failed to trace builtin operator\n"
    "  Explanation: print\n\nUser code traceback:\n"
    '  File "/home/user/model.py", line 12, in forward\n    print(x)\n'
)


def test_idle_at_a_break_is_the_gap_before_the_resumed_work(
    compilation: Callable[..., CompiledProgram], trace_of: TraceOf
) -> None:
    at: dict[str, Any] = {"frame_id": 0, "frame_compile_id": 0, "attempt": 0}
    log_ = compilation(
        artifact("dynamo_graph_break_reason", BREAK, **at),
        compiled("fone", 0),
        compiled("ftwo", 1, function="torch_dynamo_resume_in_forward_at_12"),
    )
    # compiled() says that the resumed function begins in the same file; its line is in its name
    events = [
        host("Torch-Compiled Region: 0/0", 0, 400),
        *call_of("fone", 1, 1),
        host("Torch-Compiled Region: 1/0", 199, 101),
        *call_of("ftwo", 200, 21),
    ]
    result = joined(log_, trace_of(*events))
    (row,) = result.compilation.graph_breaks
    # The first graph's last kernel ends at 1 + 32 + 30 = 63, the second's first begins at 203.
    assert row.idle_us == pytest.approx(140)


def test_the_place_that_the_rest_of_a_function_was_called_from_is_none_of_its_lines(
    compilation: Callable[..., CompiledProgram],
) -> None:
    """Torch gives it to nodes that its passes make; a kernel that has nothing else keeps it."""
    rest = compiled("fone", 0, line=12, function="torch_dynamo_resume_in_forward_at_12")
    assert [line.line for line in compilation(rest).kernels[0].source] == [12]
    one = b"call_function[target=torch.ops.aten.mul.Tensor](args = (%a, 2))"
    more = one + b"\n\t#   %mm : Tensor = call_function[target=torch.ops.aten.mm.default](args = (%mul, %a))"
    assert [line.line for line in compilation(rest.replace(one, more)).kernels[0].source] == [20]
    whole = compiled("fone", 0, line=12).replace(one, more)
    assert [line.line for line in compilation(whole).kernels[0].source] == [12, 20]


def test_joining_does_not_change_the_compilation(
    compilation: Callable[..., CompiledProgram], trace_of: TraceOf
) -> None:
    log_ = compilation(compiled("fone", 0))
    before = replace(log_)
    joined(log_, trace_of(*call_of("fone", 0, 1)))
    assert log_.kernels == before.kernels
    assert log_.kernels[0].device_time_us is None
