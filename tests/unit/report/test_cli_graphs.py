"""``kinetoscope graphs``: every view, every way in, and nothing that a terminal would obey."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from compile_records import artifact, record
from kinetoscope import cli
from kinetoscope.document.compilation import Compilation

FIXTURES = Path(__file__).parents[2] / "fixtures"

AT: dict[str, Any] = {"frame_id": 0, "frame_compile_id": 0, "attempt": 0}
EVIL = "\x1b[31m[bold]evil[/bold]\x07"

MODULE = f"""\
# AOT ID: ['0_inference']
# Topologically Sorted Source Nodes: [y], Original ATen: [aten.mul]
# Graph fragment:
#   %mul : Tensor "f32[8][1]cuda:0" = call_function[target=torch.ops.aten.mul.Tensor](args = (%a, 2))
triton_poi_fused_mul_0 = async_compile.triton('triton_poi_fused_mul_0', '''
# {EVIL}
def triton_poi_fused_mul_0(): pass
''', device_str='cuda')

async_compile.wait(globals())
        triton_poi_fused_mul_0.run(a, buf0, 8, stream=stream0)
"""
POST = f"""\
        # File: /home/{EVIL}.py:10 in forward, code: y = a * 2  # {EVIL}
        mul: "f32[8][1]cuda:0" = torch.ops.aten.mul.Tensor(a, 2)
"""
GUARDS = """
+- RootGuardManager
| +- TYPE_MATCH: ___check_type_id(L['self'], 1), type=<class '__main__.M'>  # q=self.W(x)  # a.py:8 in forward
Guard latency = 5 us
"""
BREAK = (
    f"Graph break in user code at /home/{EVIL}.py:12\nGraph Break Reason: no {EVIL}\n  Explanation: {EVIL}\n"
    f"  Hint: {EVIL}\n"
)
KEYS = (
    '{"key": "%s", "components": '
    '["[aa] gm: GraphModule()", "[%s] fx_kwargs[cudagraphs]: BoxedBool(value=%s)"]}'
)


def written(path: Path, key: str = "fone", cudagraphs: str = "False") -> Path:
    metrics = {
        "compile_id": "0/0",
        "co_name": EVIL,
        "co_filename": f"/home/{EVIL}.py",
        "co_firstlineno": 9,
        "entire_frame_compile_time_s": 1.5,
    }
    path.write_bytes(
        b"".join(
            [
                artifact(
                    "recompile_reasons",
                    f"0/0: tensor '{EVIL}' size mismatch at index 0. expected 8, actual 16",
                    **AT,
                ),
                record({"dynamo_start": {"stack": []}, **AT}),
                artifact("dynamo_graph_break_reason", BREAK, **AT),
                artifact("inductor_post_grad_graph", POST, **AT),
                record({"inductor_output_code": {"filename": f"/x/{EVIL}.py"}, **AT}, MODULE),
                artifact("fx_graph_cache_miss", KEYS % (key, cudagraphs, cudagraphs), **AT),
                record({"dynamo_cpp_guards_str": {}, **AT}, GUARDS),
                artifact("f_ORIGINAL_BYTECODE", " 9  0 RESUME  0\n    2 RETURN_VALUE\n", **AT),
                artifact(
                    "f_MODIFIED_BYTECODE", " 9  0 RESUME  0\n    2 LOAD_GLOBAL 1 (__compiled_fn_1)\n", **AT
                ),
                record({"compilation_metrics": metrics, **AT}),
            ]
        )
    )
    return path


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return written(tmp_path / "a.log")


VIEWS: list[tuple[list[str], str]] = [
    ([], "Graph breaks"),
    (["--frame", "0/0"], "compiled in"),
    (["--guards"], "self is still a __main__.M"),
    (["--bytecode"], "the compiled graph"),
    (["--fusion"], "fusion: not recorded"),
    (["--frame", "0", "--graph", "module_inference"], "triton_poi_fused_mul_0"),
    (["--graph", "post_grad_inference"], "torch.ops.aten.mul"),
    (["--kernel", "triton_poi_fused_mul_0"], "elementwise product"),
]


@pytest.mark.parametrize(("options", "says"), VIEWS)
def test_each_option_of_graphs_prints_its_view(
    log: Path, options: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["graphs", str(log), *options]) == 0
    shown = capsys.readouterr().out
    assert says in shown
    # Names are shown as they are, brackets and all; what a terminal would obey is gone.
    assert "\x1b" not in shown
    assert "\x07" not in shown
    width = max(len(line) for line in shown.splitlines() if "kinetoscope graphs" not in line)
    assert width <= 100


def test_brackets_of_a_name_are_no_markup(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["graphs", str(log)])
    assert "[bold]evil[/bold]" in capsys.readouterr().out


def test_json_is_the_contract(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["graphs", str(log), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)["compilation"]
    assert {
        "torch",
        "frames",
        "graph_breaks",
        "recompilations",
        "graphs",
        "kernels",
        "failures",
        "coverage",
    } <= set(document)
    frame, kernel = document["frames"][0], document["kernels"][0]
    keys = {"compile_id", "function", "file", "line", "status", "attempts", "compile_s", "dynamo_s", "aot_s"}
    keys |= {"inductor_s", "triton_s", "backward_s", "guards", "cudagraphs", "cache", "failure"}
    assert keys <= set(frame)
    assert frame["cache"] == {"fx": "miss", "aot": "off"}
    keys = {"name", "category", "compile_id", "direction", "aten_ops", "source", "device_time_us", "launches"}
    assert keys <= set(kernel)
    assert kernel["device_time_us"] is None
    assert kernel["source"][0]["line"] == 10
    graph = document["graphs"][0]
    assert {"compile_id", "direction", "aot_id", "ops", "module", "device_time_us", "fusion"} <= set(graph)
    row = document["graph_breaks"][0]
    keys = {
        "compile_id",
        "file",
        "line",
        "function",
        "reason",
        "explanation",
        "hints",
        "url",
        "count",
        "cost_s",
    }
    assert keys <= set(row)
    assert document["coverage"]["compiled_share_of_device_time"] is None
    assert document["recompilations"][0]["reasons"][0]["of"] == "0/0"
    assert "texts" not in document


def test_the_document_reads_back_exactly(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = FIXTURES / "h200_breaks" / "breaks.json.gz"
    joined = [str(FIXTURES / "h200_breaks" / "breaks.log.gz"), str(trace)]
    for inputs in ([str(log)], joined):
        assert cli.main(["graphs", *inputs, "--json", "--texts"]) == 0
        text = capsys.readouterr().out
        document = msgspec.json.decode(text, type=dict[str, Compilation])
        assert msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n" == text
        assert (document["compilation"].join is msgspec.UNSET) == (inputs != joined)


def test_json_with_texts(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["graphs", str(log), "--json", "--texts"])
    texts = json.loads(capsys.readouterr().out)["compilation"]["texts"]
    assert texts["frames"][0]["guards"]["checks"] == 1
    assert texts["frames"][0]["bytecode"][0]["opcode"] == "RESUME"
    assert texts["graphs"][0]["module"] == MODULE


def test_cache_keys_are_compared_with_those_of_another_log(
    tmp_path: Path, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = written(tmp_path / "b.log", "ftwo", "True")
    assert cli.main(["graphs", str(other), "--against", str(log)]) == 0
    shown = capsys.readouterr().out
    assert "fone → ftwo" in shown
    assert "fx_kwargs[cudagraphs]" in shown
    assert "gm" not in shown.split("fone")[1].replace("fx_kwargs", "")
    cli.main(["graphs", str(log), "--against", str(log)])
    assert "same cache key" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "says"),
    [(["--frame", "7/7"], "name one of: 0/0"), (["--kernel", "poi_fused"], "did you mean")],
)
def test_a_name_that_is_not_there(
    log: Path, options: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["graphs", str(log), *options]) == 2
    assert says in capsys.readouterr().err


def test_a_graph_that_is_not_there(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["graphs", str(log), "--graph", "nothing"]) == 3
    assert "no graph 'nothing'" in (shown := capsys.readouterr().err)
    assert "module_inference" in shown


def test_a_trace_alone_has_no_compile_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "a.json"
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 1}
    trace.write_text(json.dumps({"traceEvents": [event]}))
    assert cli.main(["graphs", str(trace)]) == 3
    assert "no compile log" in capsys.readouterr().err


def test_the_report_carries_the_compilation(
    tmp_path: Path, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "report.json"
    assert cli.main(["report", str(log), "-o", str(target)]) == 0
    compilation = json.loads(target.read_text())["compilation"]
    assert len(compilation["frames"]) == 1


PRE_FUSION = """\
op0: SchedulerNode(ComputedBuffer)
op0.writes = [MemoryDep('buf0', c0, {c0: 8})]
op0.met_dependencies = []


op1: SchedulerNode(ComputedBuffer)


op2: ExternKernelSchedulerNode(ExternKernelOut)
"""
POST_FUSION = """\
op0_op1: FusedSchedulerNode(SchedulerNode,SchedulerNode)
op0_op1.snodes[0] =
op0: SchedulerNode(ComputedBuffer)
op0_op1.snodes[1] =
op1: SchedulerNode(ComputedBuffer)


op2: ExternKernelSchedulerNode(ExternKernelOut)
"""


def test_a_debug_folder_tells_fusion_and_newer_ones_hold_a_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    top = tmp_path / "torch_compile_debug"
    model = top / "run_2026_11_21-pid_17" / "torchinductor" / "model__0_inference_1.0"
    model.mkdir(parents=True)
    (model / "output_code.py").write_text(MODULE)
    (model / "ir_pre_fusion.txt").write_text(PRE_FUSION)
    (model / "ir_post_fusion.txt").write_text(POST_FUSION)

    def compilation(folder: Path) -> Any:
        assert cli.main(["graphs", str(folder), "--json"]) == 0
        return json.loads(capsys.readouterr().out)["compilation"]

    (graph,) = compilation(top)["graphs"]
    assert graph["fusion"]["rounds"] == [{"before": 3, "after": 2}]
    assert graph["fusion"]["fused"] == ["op0 with op1"]
    assert [f["status"] for f in compilation(top)["frames"]] == ["ok"]
    (top / "tlparse").mkdir()
    for pid in (17, 18):  # two processes wrote here
        at: dict[str, Any] = {"frame_id": pid, "frame_compile_id": 0, "attempt": 0}
        text = record({"dynamo_start": {"stack": []}, **at}).decode()
        text = re.sub(r"^(V\d{4} \S+) \d+ ", rf"\g<1> {pid} ", text)
        (top / "tlparse" / f"dedicated_log_torch_trace_{pid}.log").write_text(text)
    assert [f["compile_id"] for f in compilation(top)["frames"]] == ["17/0", "18/0"]
    assert [f["compile_id"] for f in compilation(top / "run_2026_11_21-pid_17")["frames"]] == ["17/0"]


def test_a_debug_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What TORCH_COMPILE_DEBUG leaves, named at any of its levels."""
    top = tmp_path / "torch_compile_debug"
    model = top / "run_2026_11_21-pid_1" / "torchinductor" / "model__0_inference_1.0"
    model.mkdir(parents=True)
    (model / "output_code.py").write_text(MODULE)
    (model / "fx_graph_transformed.py").write_text(POST)
    for folder in (tmp_path, top, model.parent.parent, model.parent):
        assert cli.main(["graphs", str(folder), "--json"]) == 0
        document = json.loads(capsys.readouterr().out)["compilation"]
        assert [k["source"][0]["line"] for k in document["kernels"]] == [10]
        assert [(g["direction"], g["compile_id"]) for g in document["graphs"]] == [("inference", "0/0")]
