"""The compile log of this machine's torch, on the CPU: by `run`, by `with kinetoscope.profile()`, by
TORCH_TRACE.

KINETOSCOPE_OTHER_PYTHONS names interpreters with other versions of torch (and msgspec), as PATH names
folders; theirs are recorded too, read here, where `-m slow` or `-m ""` asks for it:

    KINETOSCOPE_OTHER_PYTHONS=/envs/torch29/bin/python:/envs/torch215/bin/python \\
        pytest -m "" tests/integration/test_compile_live.py
"""

from __future__ import annotations

import ast
import importlib
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kinetoscope.compilation import fx
from kinetoscope.compilation.model import DEFAULTS, CompiledProgram
from kinetoscope.compilation.sources import load
from kinetoscope.document import compilation as document

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(600)  # compiling took 217 s on a busy machine
PROGRAM = Path(__file__).parent / "compile_cases.py"
SOURCE = Path(__file__).parents[2] / "src"
LOGS = Path(__file__).parents[1] / "fixtures" / "compile-logs"


OTHERS = [python for python in os.environ.get("KINETOSCOPE_OTHER_PYTHONS", "").split(os.pathsep) if python]


def execute(python: str, folder: Path, *words: str, **variables: str) -> None:
    # A cache of one's own: a hit would bring the source lines of whichever program filled it.
    own = {"TORCHINDUCTOR_CACHE_DIR": str(folder / "cache")}
    # Another interpreter has its own packages, but for the one under test.
    own["PYTHONPATH"] = os.pathsep.join(sys.path) if python == sys.executable else str(SOURCE)
    environment = os.environ | own | variables
    done = subprocess.run(
        [python, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=590
    )
    assert done.returncode == 0, done.stderr


def ways() -> Iterator[Any]:
    """How it is recorded, and by which interpreter; compiling takes half a minute, so most only by hand."""
    yield pytest.param(("run", sys.executable), id="run")
    yield pytest.param(("with", sys.executable), id="with", marks=pytest.mark.slow)
    yield pytest.param(("TORCH_TRACE", sys.executable), id="TORCH_TRACE", marks=pytest.mark.slow)
    for python in OTHERS:
        for way in ("run", "with"):
            yield pytest.param((way, python), id=f"{way} {python}", marks=pytest.mark.slow)


@pytest.fixture(scope="module", params=ways())
def recorded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("live")
    way, python = request.param
    if way == "run":
        arguments = ["run", "--whole", "--no-report", "--out", "recording", str(PROGRAM)]
        execute(python, folder, "-m", "kinetoscope", *arguments)
    elif way == "with":
        execute(python, folder, str(PROGRAM), "--with", "recording", INDUCTOR_PROVENANCE="1")
    else:
        execute(python, folder, str(PROGRAM), TORCH_TRACE=str(folder / "recording"), INDUCTOR_PROVENANCE="1")
    return folder / "recording"


@pytest.fixture(scope="module")
def compilation(recorded: Path) -> CompiledProgram:
    return load(recorded)


def test_attention_forward_and_backward(compilation: CompiledProgram) -> None:
    frame = next(f for f in compilation.frames if f.function == "forward")
    assert (frame.status, frame.backend, frame.mode) == ("ok", "inductor", "default")
    assert frame.file == str(PROGRAM)
    assert frame.dynamo_s > 0
    assert frame.inductor_s > 0
    assert frame.triton_s > 0
    assert frame.backward_s > 0
    graphs = [g for g in compilation.graphs if g.frame == frame.index]
    assert [g.direction for g in graphs] == ["forward", "backward"]
    assert graphs[0].saved
    kernels = [k for k in compilation.kernels if k.frame == frame.index]
    assert kernels
    code = PROGRAM.read_text().splitlines()
    for kernel in kernels:
        assert kernel.aten_ops
        assert kernel.source
        for line in kernel.source:
            assert line.file == str(PROGRAM)
            assert line.code == code[line.line - 1].strip()


def multiply_add(a: Any, b: Any, c: Any) -> Any:
    return a * b + c


def executed(text: str, inputs: Sequence[Any]) -> tuple[dict[str, Any], Any]:
    """Every value of a printed graph by its name, and what it returns: Python runs the text as it stands."""
    kept = re.sub(r";  .*", "", text).replace("return (", "self.values = dict(locals())\n        return (")
    # Inductor's own op: importing it takes seconds.
    kept = kept.replace("torch.ops.prims.fma.default", "multiply_add")
    scope: dict[str, Any] = {
        "torch": torch,
        "device": torch.device,
        "multiply_add": multiply_add,
    }
    exec(textwrap.dedent(kept), scope)
    module = scope["GraphModule"]()
    returned = module(*inputs)
    return {n: v for n, v in module.values.items() if isinstance(v, torch.Tensor)}, returned


def read_by_own(text: str, again: set[str]) -> set[str]:
    """What the nodes of a printed graph that are not of ``again`` read."""
    walked = ast.walk(ast.parse(textwrap.dedent(text)))
    statements = [node for node in walked if isinstance(node, ast.AnnAssign | ast.Return)]
    own = [s for s in statements if not (isinstance(s, ast.AnnAssign) and ast.unparse(s.target) in again)]
    return {node.id for statement in own for node in ast.walk(statement) if isinstance(node, ast.Name)}


def check_partition(compilation: CompiledProgram) -> set[str]:
    """Both graphs run: what has one value in both was computed again, and a donated one is nobody else's."""
    graph = next(g for g in compilation.graphs if g.direction == "forward")
    texts = [compilation.texts[graph.frame, way].read() for way in ("forward", "backward")]
    sizes = re.findall(r'primals_\d+: "f32\[([\d, ]+)\]', texts[0])
    forward, outputs = executed(
        texts[0], [0.01 * torch.rand([int(n) for n in size.split(",")]) for size in sizes]
    )
    saved = {t.name: forward[t.name] for t in graph.saved}
    backward, gradients = executed(texts[1], [*saved.values(), torch.rand_like(outputs[0])])

    again = {n for n in forward.keys() & backward.keys() - saved if torch.equal(forward[n], backward[n])}
    assert {n.name: n.bytes for n in graph.rematerialised} == {n: forward[n].nbytes for n in again}
    kept = {memory(value) for value in saved.values()}
    spared = {memory(backward[n]): backward[n] for n in read_by_own(texts[1], again) & again}
    spared_bytes = sum(t.untyped_storage().nbytes() for at, t in spared.items() if at not in kept)
    assert graph.rematerialised_bytes == spared_bytes

    inputs = [value for name, value in forward.items() if name.startswith("primals")]
    others = {memory(t) for t in (outputs[0], *inputs, *gradients) if t is not None}
    assert {t.name: t.donated for t in graph.saved} == {n: memory(t) not in others for n, t in saved.items()}
    assert graph.partitioner is not None
    assert graph.partitioner.changed() == {}
    return again


def memory(tensor: Any) -> int:
    return tensor.untyped_storage().data_ptr()


def test_what_the_partitioner_chose_is_what_its_graphs_do(compilation: CompiledProgram) -> None:
    assert check_partition(compilation)


def test_what_the_partitioner_chose_in_a_log_of_a_gpu() -> None:
    assert check_partition(load(LOGS / "graphbreak.log.gz")) == {"expand_2", "exp", "sum_1"}


def test_views_and_defaults_are_torchs() -> None:
    names = fx.VIEWS.pattern.partition("(?:")[2].partition(")")[0].split("|")
    for packet in (getattr(torch.ops.aten, name) for name in names if name != "_unsafe_view"):
        overload = getattr(packet, packet.overloads()[0])
        assert overload._schema.arguments[0].alias_info is not None
    config = importlib.import_module("torch._functorch.config")
    assert msgspec.structs.asdict(DEFAULTS) == {n: getattr(config, n) for n in DEFAULTS.__struct_fields__}


def test_each_frame_names_its_backend(recorded: Path, compilation: CompiledProgram) -> None:
    names = {frame.function: frame.backend for frame in compilation.frames}
    if not (recorded / "manifest.json").is_file():
        assert names["double"].startswith("a Dynamo backend (eager, or another")
        return
    assert names["forward"] == "inductor"
    assert names["double"] == "eager"
    assert {names[n] for n in names if n and n.endswith(("talk", "talk_at_27"))} == {"aot_eager"}
    assert names["branch"] == "none"  # refused before any backend saw it
    assert {frame.mode for frame in compilation.frames if frame.backend != "inductor"} == {"none"}


def test_a_recompilation_and_its_remedy_are_read_from_a_live_log(compilation: CompiledProgram) -> None:
    (row,) = compilation.recompilations
    (reason,) = row.reasons
    assert (row.function, reason.subject, reason.dimension) == ("double", "x", 0)
    assert (reason.expected, reason.actual) == ("3", "4")
    assert "mark_dynamic(x, 0)" in row.advice


def test_a_graph_break_is_read_from_a_live_log(compilation: CompiledProgram) -> None:
    (row,) = compilation.graph_breaks
    assert (row.function, row.count) == ("talk", 1)
    assert row.code == 'print("", end="")'
    assert "print" in row.explanation
    assert row.hints


def test_an_error_of_dynamo_is_read_from_a_live_log(compilation: CompiledProgram) -> None:
    (failure,) = compilation.failures
    assert failure.type == "Unsupported"
    assert failure.code == "return x * 2 if x.sum() > 0 else x - 1"
    assert failure.effect == "the call raised this error"


def test_bytecode_and_guards_are_there(compilation: CompiledProgram) -> None:
    from kinetoscope.compilation import bytecode, guards

    frame = next(f for f in compilation.frames if f.function == "forward")
    tree = guards.parse(compilation.texts[frame.index, "guards"].read())
    assert tree.checks == guards.count_checks(compilation.texts[frame.index, "guards"].read())
    assert tree.checks > 10
    if (frame.index, "bytecode") not in compilation.texts:
        pytest.skip("TORCH_TRACE alone holds bytecode of resumed functions only")
    before = bytecode.parse(compilation.texts[frame.index, "bytecode"].read())
    after = bytecode.parse(compilation.texts[frame.index, "modified bytecode"].read())
    assert any(i.meaning == "apply a binary operator to the top two" for i in before)
    assert any(i.meaning == "the compiled graph" for i in after)


def test_a_recording_has_fusion_and_the_report_the_compilation(
    recorded: Path, compilation: CompiledProgram
) -> None:
    if not (recorded / "manifest.json").is_file():
        pytest.skip("TORCH_TRACE alone holds no fusion")
    inductor = [g for g in compilation.graphs if g.kernels]
    assert all(g.fusion and g.fusion.rounds for g in inductor)
    printed = subprocess.run(
        [sys.executable, "-m", "kinetoscope", "graphs", str(recorded), "--json"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        check=True,
    ).stdout
    read = msgspec.json.decode(printed, type=dict[str, document.Compilation])
    assert read["compilation"].frames == compilation.frames
