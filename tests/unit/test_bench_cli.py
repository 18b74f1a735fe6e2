"""`bench` and `tune` on the command line: what they refuse, and what they print of names that others chose."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from kinetoscope import cli
from kinetoscope.bench.autotune import Trial, Tuned
from kinetoscope.bench.harness import measure
from kinetoscope.bench.kernels import KernelResult
from kinetoscope.bench.ncu import NcuRow
from kinetoscope.bench.settings import Setting
from kinetoscope.bench.timers import HostTimer
from kinetoscope.bench.tuning_rows import Row, Tuning
from kinetoscope.bench.worker import Result
from kinetoscope.hardware.spec import find
from kinetoscope.report import autotuned, measured
from kinetoscope.report import tuning as tuning_table

HOSTILE = "triton_poi_[red]x[/red]_\x1b[31m_<script>"


def printed(print_to, width: int = 120) -> str:
    console = Console(file=io.StringIO(), width=width, markup=False, highlight=False, emoji=False)
    print_to(console)
    return console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["bench", "nowhere"], 3, "no such file"),
        (["bench", ".", "--apply"], 2, "add --max-autotune"),
        (["bench", ".", "--max-autotune", "--config", "X"], 2, "not a configuration"),
        (["bench", ".", "--configs", "nowhere"], 3, "cannot read the configurations"),
        (["tune"], 2, "nothing to run"),
        (["tune", "nowhere.py"], 3, "does not exist"),
        (["tune", "--modes", "fast", "x.py"], 2, "there is no 'fast'"),
        (["tune", "--batch", "4", "x.py"], 2, "{batch}"),
    ],
)
def test_what_cannot_be_is_refused_with_its_status(
    words: list[str],
    status: int,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.py").write_text("")
    assert cli.main(words) == status
    assert message in capsys.readouterr().err


def kernel(name: str, bytes_moved: int, median_ns: float) -> KernelResult:
    elapsed = 0.0

    def call() -> None:
        nonlocal elapsed
        elapsed += median_ns

    timer = HostTimer(flush=lambda: None, clock=lambda: int(elapsed))
    session = measure({name: call}, timer=timer, mode="cold", warmup_seconds=0)
    return KernelResult(
        name=name,
        category="pointwise",
        module="m",
        launches_per_run=1,
        arguments=(),
        bytes=bytes_moved,
        configuration={"XBLOCK": 64, "num_warps": 4},
        registers=24,
        spills=0,
        shared_memory_bytes=2048,
        sessions={"cold": session},
    )


def test_a_kernels_figures_are_arithmetic_on_what_was_measured() -> None:
    result = Result(
        device="NVIDIA H200",
        torch="2.11.0",
        kernels=(kernel("triton_a", 240_000_000, 100_000), kernel("triton_b", 600_000_000, 100_000)),
        ncu=(
            NcuRow(name="triton_a", launches=3, duration_ns=101_000, memory_percent=52, compute_percent=11),
        ),
    )
    text = printed(
        lambda c: measured.print_kernels(result, {"triton_a": (110_000, 0.25)}, find("NVIDIA H200"), c)
    )
    a, b = text.split("triton_a")[1].split("triton_b")
    assert "25.0 % of GPU time" in a
    assert "cold 100 µs" in a
    assert "in the model 110 µs" in a
    assert "ncu 101 µs" in a
    assert "2,400 GB/s, 50.0 % of peak" in a
    assert "24 registers, 0 spills, 2.05 kB shared memory · XBLOCK=64 num_warps=4" in a
    assert "1 launch in a run" in a
    assert "refused: over the device's peak" in b


def test_names_do_not_run_in_the_terminal() -> None:
    failed = msgspec.structs.replace(kernel("k", 1, 1000), name=HOSTILE, error=f"no {HOSTILE}")
    tuned = Tuned(
        name=HOSTILE,
        module="m",
        launches_per_run=2,
        trials=(Trial(configuration={"XBLOCK": 1}, origin="default", median_ns=1.0),),
        default={"XBLOCK": 1},
        winner={"XBLOCK": 1},
    )
    result = Result(device=HOSTILE, torch="", kernels=(failed,), tuned=(tuned,), problems=(HOSTILE,))
    tuning = Tuning(
        command=(HOSTILE,),
        step_name=HOSTILE,
        rows=(Row(setting=Setting(), label="eager", error=HOSTILE),),
        recommendation=HOSTILE,
        lines=(HOSTILE,),
    )
    text = (
        printed(lambda c: measured.print_kernels(result, {}, None, c))
        + printed(lambda c: autotuned.print_tuned(result, {}, c))
        + printed(lambda c: tuning_table.print_tuning(tuning, c))
    )
    assert "\x1b" not in text
    assert "[red]x[/red]" in text
    assert "The default is the fastest." in text
