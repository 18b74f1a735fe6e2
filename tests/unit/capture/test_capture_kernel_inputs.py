"""What kernels are called with, kept from one step and used by bench; Triton is a stand-in of a few lines."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kinetoscope.bench.kernels import replica  # noqa: E402
from kinetoscope.bench.kernels import subjects as kernels  # noqa: E402
from kinetoscope.bench.kernels.generated import ScalarArgument, TensorArgument  # noqa: E402
from kinetoscope.capture import torch_private  # noqa: E402
from kinetoscope.capture.compiler import kernel_inputs  # noqa: E402
from kinetoscope.capture.compiler.kernel_inputs import KernelInputs  # noqa: E402


class FakeAutotuner:
    def __init__(self, name: str) -> None:
        self.inductor_meta = {"kernel_name": name}
        self.launched: list[tuple[Any, ...]] = []

    def run(self, *arguments: Any, stream: int) -> str:
        self.launched.append(arguments)
        return "launched"


class FakeJIT:
    """As much of triton.runtime.jit.JITFunction as is used: run, fn, arg_names, params, kernel[grid](…)."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        code = fn.__code__
        self.fn, self.__name__, self.__module__ = fn, fn.__name__, fn.__module__
        self.arg_names = list(code.co_varnames[: code.co_argcount])
        defaults = dict(
            zip(
                self.arg_names[len(self.arg_names) - len(fn.__defaults__ or ()) :],
                fn.__defaults__ or (),
                strict=True,
            )
        )
        self.params = [
            types.SimpleNamespace(
                name=name,
                is_constexpr="constexpr" in str(fn.__annotations__.get(name, "")),
                has_default=name in defaults,
                default=defaults.get(name),
            )
            for name in self.arg_names
        ]
        self.calls: list[tuple[Any, ...]] = []

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        return lambda *arguments, **named: self.run(*arguments, grid=grid, warmup=False, **named)

    def run(self, *arguments: Any, grid: Any, warmup: bool, **named: Any) -> Any:
        self.calls.append((arguments, grid, named))
        return types.SimpleNamespace(
            n_regs=32, n_spills=0, metadata=types.SimpleNamespace(num_warps=4, num_stages=2, shared=0)
        )


@pytest.fixture
def triton(monkeypatch: pytest.MonkeyPatch) -> None:
    package, language = types.ModuleType("triton"), types.ModuleType("triton.language")

    class constexpr:  # spelled as Triton does
        def __init__(self, value: Any) -> None:
            self.value = value

    language.constexpr = constexpr
    package.jit, package.language = FakeJIT, language
    heuristics = types.ModuleType(torch_private.TRITON_HEURISTICS)
    heuristics.CachingAutotuner = FakeAutotuner
    jit = types.ModuleType(torch_private.TRITON_JIT)
    jit.JITFunction = FakeJIT
    for module in (package, language, heuristics, jit):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(FakeJIT, "run", FakeJIT.run)
    monkeypatch.setattr(FakeAutotuner, "run", FakeAutotuner.run)


PROGRAM = """
import os

import triton
import triton.language as tl

SCALE = tl.constexpr(3)
BIAS = 0.5


@triton.jit
def scaled(x):
    return x * SCALE + BIAS


@triton.jit
def mine(x_ptr, i_ptr, out_ptr, n, factor, BLOCK: tl.constexpr, EVEN: tl.constexpr = True):
    # a comment stays
    out = scaled(n) * factor


@triton.jit
def lost(x_ptr, BLOCK: tl.constexpr):
    os.getpid()
"""


@pytest.fixture
def program(triton: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    file = tmp_path / "program_with_kernels.py"
    file.write_text(PROGRAM)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "program_with_kernels", raising=False)
    import program_with_kernels

    return program_with_kernels


def watched(folder: Path, step: Callable[[], None]) -> KernelInputs:
    inputs = KernelInputs(folder, 0)
    inputs.start()
    step()
    inputs.stop()
    return inputs


def test_integers_of_generated_kernels_are_kept_once_and_come_back(triton: None, tmp_path: Path) -> None:
    first, second = torch.tensor([[3, 1], [4, 1]]).t(), torch.tensor([[9, 9], [9, 9]])
    mask = torch.tensor([True, False, True])
    tuner = FakeAutotuner("triton_poi_fused_embedding_0")

    def step() -> None:
        assert tuner.run(torch.randn(4), first, mask, 4, stream=0) == "launched"
        tuner.run(torch.randn(4), second, mask, 4, stream=0)

    inputs = watched(tmp_path, step)
    assert inputs.notes == []
    assert len(tuner.launched) == 2
    assert "wrapped" not in FakeAutotuner.run.__qualname__
    values, user, data = kernels.read_inputs(tmp_path)
    assert not user
    assert data.stat().st_size == 4 * 8 + 3
    kept = values["triton_poi_fused_embedding_0"]
    assert [(saved.position, saved.dtype, saved.shape) for saved in kept.tensors] == [
        (1, "int64", (2, 2)),
        (2, "bool", (3,)),
    ]
    recorded = (
        TensorArgument((4,), (1,), "float32", "cpu", 0, 0),
        TensorArgument((2, 2), (1, 2), "int64", "cpu", 1, 0),
        TensorArgument((3,), (1,), "bool", "cpu", 2, 0),
        ScalarArgument(4),
    )
    made = replica.arguments(recorded, "cpu", 0, 100, kept)
    assert torch.equal(made[1], first)
    assert made[1].stride() == (1, 2)
    assert torch.equal(made[2], mask)
    assert replica.notes(recorded, 100, kept) == ("index values: recorded",)
    other = (
        TensorArgument((5,), (1,), "float32", "cpu", 0, 0),
        TensorArgument((7,), (1,), "int64", "cpu", 1, 0),
    )
    assert "random below 100" in replica.notes(other, 100, kept)[0]
    assert replica.arguments(other, "cpu", 0, 100, kept)[1].max() < 100


def test_no_more_is_kept_than_the_bound(
    triton: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_inputs, "MOST_BYTES", 100)
    tuner = FakeAutotuner("k")
    inputs = watched(
        tmp_path,
        lambda: tuner.run(torch.zeros(13, dtype=torch.int64), torch.ones(9, dtype=torch.int8), stream=0),
    )
    assert (tmp_path / "inputs" / "rank0.bin").stat().st_size == 9
    assert "1 tensors were left out" in inputs.notes[0]


def test_a_hand_written_kernel_is_rebuilt_from_the_recording_alone(program: Any, tmp_path: Path) -> None:
    x, index = torch.randn(8, 4)[:, 1], torch.arange(8)

    def step() -> None:
        for _ in range(3):
            program.mine[lambda meta: (8 // meta["BLOCK"],)](x, index, x, 8, 2.5, BLOCK=4, num_warps=2)
        program.lost[(1,)](x, 4)

    watched(tmp_path, step)
    sys.modules.pop("program_with_kernels")
    (tmp_path / "program_with_kernels.py").unlink()
    [subject], problems = kernels.find(tmp_path)
    line = PROGRAM[: PROGRAM.index("def lost")].count("\n")
    assert problems == [
        f"lost (program_with_kernels.py:{line}) cannot be rebuilt from its source alone: "
        "it needs os of its module"
    ]
    assert (subject.kernel.kind, subject.facts.category, subject.launches) == ("user", "user Triton", 3)
    # The same storage twice, with its own strides and offset; each argument is counted once.
    a, i, b, n, factor = subject.arguments
    assert a == b == TensorArgument((8,), (4,), "float32", "cpu", 0, 1)
    assert i == TensorArgument((8,), (1,), "int64", "cpu", 1, 0)
    assert (n, factor) == (ScalarArgument(8), ScalarArgument(2.5))
    assert subject.bytes == 8 * 4 + 8 * 8 + 8 * 4
    source = subject.kernel.source
    assert "SCALE = tl.constexpr(3)" in source
    assert "BIAS = 0.5" in source
    assert source.index("def scaled") < source.index("def mine")
    assert "# a comment stays" in source
    assert "import os" not in source
    built = replica.Replica(subject.kernel)
    made = kernels.arguments(subject, "cpu")
    assert torch.equal(made[1], index)
    built.bind(made)()
    launched = built._function.calls[0]
    assert launched[1] == (2,)
    assert launched[2]["BLOCK"] == 4
    assert launched[2]["EVEN"] is True
    assert launched[2]["num_warps"] == 2
    assert launched[2]["x_ptr"] is made[0]
    launcher = built.launcher()
    assert launcher is not None
    assert (launcher.registers, launcher.configuration["BLOCK"]) == (32, 4)


def test_what_cannot_be_described_is_told_and_disturbs_nothing(program: Any, tmp_path: Path) -> None:
    strange = object()
    watched(tmp_path, lambda: program.mine[(1,)](strange, None, None, 1, 1.0, BLOCK=1))
    assert program.mine.calls[0][0][0] is strange
    found = json.loads((tmp_path / "inputs" / "rank0.json").read_text())
    assert found["user"][0]["unusable"] == "TypeError: the argument x_ptr is a object"
    subjects, problems = kernels.find_by_hand(tmp_path, "*")
    assert not subjects
    assert "cannot be rebuilt: TypeError" in problems[0]


def test_a_failing_file_system_is_none_of_the_programs_business(triton: None, tmp_path: Path) -> None:
    tuner = FakeAutotuner("k")
    inputs = KernelInputs(tmp_path, 0)
    inputs.start()
    assert inputs.data is not None
    inputs.data.close()  # every write fails from now on
    assert tuner.run(torch.zeros(3, dtype=torch.int64), stream=0) == "launched"
    inputs.remove()


def test_the_end_says_what_was_not_kept(triton: None, tmp_path: Path) -> None:
    never = KernelInputs(tmp_path, 0)
    never.end()
    assert never.notes == ["kernel inputs were not kept: no step followed the recorded ones"]
    half = KernelInputs(tmp_path, 0)
    half.start()
    half.end()
    assert half.notes[0] == "kernel inputs: the program ended during the step that was watched"
    assert "no Triton kernel was launched" in half.notes[1]
    assert not half.watching
    half.end()
    assert len(half.notes) == 2


def test_the_shape_of_a_tensor() -> None:
    shape = kernel_inputs.tensor_shape(torch.zeros(3, 4, dtype=torch.float16).t())
    assert shape == {"shape": (4, 3), "stride": (1, 4), "dtype": "float16", "device": "cpu"}
