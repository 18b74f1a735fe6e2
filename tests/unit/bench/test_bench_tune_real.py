"""Tuning real models and programs on the CPU."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from threading import Thread

import msgspec
import pytest

from kinetoscope.bench.tune import program, settings
from kinetoscope.bench.tune.settings import Setting
from kinetoscope.bench.tune.trial import TrialRequest, TrialResult
from programs import OPTIMIZERS

torch = pytest.importorskip("torch")

PROGRAM = (
    OPTIMIZERS
    + """
import sys
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(16, 16)
    def forward(self, x):
        return torch.softmax(self.a(x), -1)

net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
x = torch.randn(int(sys.argv[1]), 16)
for step in range(100000):
    optimizer.zero_grad()
    net(x).sum().backward()
    optimizer.step()
raise SystemExit("never reached: enough steps were seen before")
"""
)


@pytest.mark.timeout(300)
def test_a_real_program_that_compiles_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    found = program.tune_program(
        settings.grid(["default"], backends=["eager"], batches=["4"]),
        [str(script), "{batch}"],
        rounds=1,
        steps=12,
    )
    eager, default = found.rows
    assert found.steps_by == "optimizer"
    assert found.reports[eager.label][0].module == "Net"
    assert (eager.graphs, default.graphs) == (0, 1)
    assert default.error is None
    assert default.agrees
    assert default.output_difference is not None
    assert default.output_difference < 1e-4
    assert default.compile_s is not None  # of a busy machine 0: the start is that much slower
    json.loads(msgspec.json.encode(found))


def test_a_model_in_this_process_with_batches_backends_and_precisions() -> None:
    import kinetoscope

    torch._dynamo.reset()
    before = torch.get_float32_matmul_precision()
    found = kinetoscope.tune(
        torch.nn.Linear(8, 8),
        {2: (torch.ones(2, 8),), 4: {"input": torch.ones(4, 8)}},
        modes=["default"],
        backends=["eager"],
        precisions=["medium"],
        seconds=0.1,
    )
    assert torch.get_float32_matmul_precision() == before
    assert [row.label for row in found.rows] == [
        f"{kind} batch={batch}"
        for batch in (2, 4)
        for kind in (
            "eager",
            "default backend=eager",
            "eager matmul=medium",
            "default backend=eager matmul=medium",
        )
    ]
    assert all(row.error is None and row.agrees is not False for row in found.rows)
    assert found.rows[1].agrees
    assert found.rows[1].verdict in ("faster", "slower", "cannot tell")
    assert found.device
    assert sys.modules["torch"] is torch
    last = found.rows[-1]
    assert last.samples_per_s == pytest.approx(4 / (last.step_s or 0))
    assert last.ratio is not None


BEFORE_TORCH = """
import os
os.environ["OMP_NUM_THREADS"] = "1"
import sys
import torch

step = torch.nn.Linear(8, 8)
for number in range(50):
    step(torch.ones(2, 8))
print(torch.get_num_threads(), "torch._dynamo.utils" in sys.modules)
"""


def test_a_program_imports_torch_itself_and_not_dynamo(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it puts into the environment before is read by torch, and nobody else imports what it does not."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    script = tmp_path / "train.py"
    script.write_text(BEFORE_TORCH)
    order = TrialRequest(
        setting=settings.Setting(as_written=True), folder=str(tmp_path), steps=1000, seconds=30.0
    )
    result = program.run_trial(order, [str(script)], {})
    assert (result.error, result.steps_by) == (None, "module")
    assert len(result.steps_s) > 40
    assert (result.graphs, result.graph_breaks) == (0, 0)
    assert "1 False" in capfd.readouterr().err


PREFIX = "import json, sys; print('\\n' + json.dumps([sys.pycache_prefix, sys.dont_write_bytecode]))\n"


def test_runs_keep_bytecode_where_torch_has_none(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Images are built with PYTHONDONTWRITEBYTECODE=1: Dynamo, which optimizers import, took 9 s a run."""
    script = tmp_path / "train.py"
    script.write_text(PREFIX)
    order = TrialRequest(
        setting=settings.Setting(as_written=True), folder=str(tmp_path), steps=10, seconds=3.0
    )

    def said() -> list[object]:
        program.run_trial(order, [str(script)], {})
        return json.loads(capfd.readouterr().err.splitlines()[-1])

    monkeypatch.delenv("PYTHONPYCACHEPREFIX", raising=False)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(sys, "pycache_prefix", None)
    assert said() == [None, True], "torch has some"
    monkeypatch.setattr(torch.__spec__, "cached", str(tmp_path / "torch" / "__pycache__" / "__init__.pyc"))
    assert said() == [str(tmp_path / "bytecode"), False]
    assert list((tmp_path / "bytecode").rglob("trial.*.pyc"))
    # Where it can be written beside torch, the first run does.
    (tmp_path / "torch").mkdir()
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE")
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    assert said() == [None, False]


def test_a_program_without_torch_has_no_steps(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print('done')\n")
    order = TrialRequest(
        setting=settings.Setting(as_written=True), folder=str(tmp_path), steps=10, seconds=3.0
    )
    assert program.run_trial(order, [str(script)], {}) == TrialResult()


@pytest.mark.parametrize("limit_s", [None, 60.0])
def test_a_signal_that_ends_us_ends_the_run_and_what_holds_its_files(
    limit_s: float | None, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(
        "import os, pathlib, time\npathlib.Path('pid').write_text(str(os.getpid()))\ntime.sleep(120)\n"
    )
    order = TrialRequest(
        setting=Setting(as_written=True), folder=str(tmp_path), steps=4, seconds=60.0, limit_s=limit_s
    )

    def end() -> None:
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        Thread(target=end, daemon=True).start()
        with pytest.raises(SystemExit) as ended:
            program.run_trial(order, ["train.py"], {}, tmp_path)
        assert ended.value.code == 128 + signal.SIGTERM
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        with pytest.raises(ProcessLookupError):
            os.kill(int((tmp_path / "pid").read_text()), 0)
    finally:
        signal.signal(signal.SIGTERM, before)
