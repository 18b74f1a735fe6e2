"""`kinetoscope run --kernel-inputs` around real programs, with a stand-in for Triton's launcher."""

from __future__ import annotations

import json

from programs import TRAIN, Programs, Run

PROGRAM = (
    TRAIN
    + """
import types

class JITFunction:
    def __init__(self, fn):
        self.fn, self.__name__, self.__module__ = fn, fn.__name__, fn.__module__
        self.arg_names = ["x", "n"]
        plain = {"is_constexpr": False, "has_default": False}
        self.params = [types.SimpleNamespace(name=n, **plain) for n in ("x", "n")]
        self.seen = 0
    def run(self, *arguments, grid, warmup, **named):
        self.seen += 1

fake = types.ModuleType("triton.runtime.jit")
fake.JITFunction = JITFunction
sys.modules["triton.runtime.jit"] = fake

@JITFunction
def kernel(x, n):
    pass

plain = JITFunction.run
for step in range(STEPS):
    optimizer.zero_grad()
    model(torch.randn(4, 32)).sum().backward()
    kernel.run(torch.arange(step, step + 3), step, grid=(1,), warmup=False)
    optimizer.step()
assert JITFunction.run is plain
print("launched", kernel.seen)
"""
)
"""The program asserts that nothing of ours is left, and prints what it would print without us."""


def recorded(programs: Programs, steps: int) -> tuple[Run, list[str]]:
    run = programs.record("--kernel-inputs", str(programs.write(PROGRAM.replace("STEPS", str(steps)))))
    assert run.status == 0, run.err
    assert f"launched {steps}" in run.out
    return run, [note for note in run.rank.get("notes", []) if "kernel inputs" in note]


def test_the_step_after_the_recorded_ones_is_kept(programs: Programs) -> None:
    run, notes = recorded(programs, 400)  # steps of some 100 µs, of which 20 ms are timed
    assert notes == []
    assert run.folder is not None
    last = run.steps["first_step"] + len(run.steps["profiled_s"])
    [kernel] = json.loads((run.folder / "inputs" / "rank0.json").read_text())["user"]
    assert kernel["kernel"] == "kernel"
    assert kernel["launches"] == 1
    x, n = kernel["parameters"]
    assert (x["shape"], x["dtype"]) == ([3], "int64")
    assert last <= n["value"] <= last + 1
    values = (run.folder / "inputs" / "rank0.bin").read_bytes()
    assert int.from_bytes(values[:8], "little") == n["value"]


def test_a_program_that_ends_before_says_so(programs: Programs) -> None:
    run, notes = recorded(programs, 3)
    assert notes == ["kernel inputs were not kept: no step followed the recorded ones"]
    assert run.folder is not None
    assert not (run.folder / "inputs").exists()
