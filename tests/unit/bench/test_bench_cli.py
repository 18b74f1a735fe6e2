"""`bench` and `tune` on the command line: what they refuse, what they print, also of hostile names."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from clockwork import measured
from kinetoscope import cli
from kinetoscope.bench.autotune.configurations import TriedConfiguration, Tuned
from kinetoscope.bench.autotune.winners import promise
from kinetoscope.bench.autotune.worth import Skipped, Worth
from kinetoscope.bench.kernels.ncu import NcuRow
from kinetoscope.bench.kernels.replay import DeviceWork, ModuleResult
from kinetoscope.bench.kernels.timing import KernelResult
from kinetoscope.bench.measure.harness import measure
from kinetoscope.bench.measure.timers import HostTimer
from kinetoscope.bench.request import BenchResult, busy_machine
from kinetoscope.bench.tune.results import SettingRow, Tuning
from kinetoscope.bench.tune.settings import Setting
from kinetoscope.bench.worker import generated_kernels
from kinetoscope.document.collect.measurements import autotuned, benched, replayed
from kinetoscope.document.measurements import InModel
from kinetoscope.render import terminal
from kinetoscope.render.terminal import show
from kinetoscope.views import bench, tune

HOSTILE = "triton_poi_[red]x[/red]_\x1b[31m_<script>"


def printed(print_to: Callable[[Console], None], width: int = 120) -> str:
    text = io.StringIO()
    print_to(Console(file=text, width=width, markup=False, highlight=False, emoji=False))
    return text.getvalue()


def test_a_busy_machine_is_noted_with_what_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1}, raising=False)
    monkeypatch.setattr("os.getloadavg", lambda: (1.9, 0.0, 0.0))
    assert busy_machine() == ()
    monkeypatch.setattr("os.getloadavg", lambda: (6.9, 0.0, 0.0))
    result = BenchResult(device="cpu", torch="2.13.0", notes=busy_machine())
    for page in (bench.kernels(benched(result, {})), bench.replays(replayed(result))):
        shown = " ".join(terminal.text(page, 60).split())
        assert "note: the machine was busy, a load of 6.9 on 2 cores, when measuring began" in shown


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
def test_impossible_requests_of_bench_are_refused_with_their_status(
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
    cold = measure({name: call}, timer=timer, mode="cold", warmup_seconds=0)
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
        measured={"cold": cold},
    )


def test_times_that_spread_around_the_least_promise_nothing() -> None:
    def said(least_ns: float, quickest_ns: float | None = None) -> str:
        slow = Worth(
            name="k", module="m", launches_per_run=1, cold_ns=1000.0, least_ns=least_ns,
            quickest_ns=quickest_ns,
        )  # fmt: skip
        result = BenchResult(device="cpu", torch="2.13.0", kernels=(kernel("k", 8, 1000),), worth=(slow,))
        return terminal.text(bench.kernels(benched(result, {})), 120)

    assert "could win 900 ns a run" in said(100)
    # A tenth of the measurements took no longer than a copy does.
    assert "could win: not known, its times spread too widely" in said(100, quickest_ns=90)
    assert "could win 900 ns a run" in said(100, quickest_ns=110)
    assert "could win nothing" in said(1000, quickest_ns=900)


def test_a_kernels_figures_are_arithmetic_on_what_was_measured() -> None:
    result = BenchResult(
        device="NVIDIA H200",
        torch="2.11.0",
        kernels=(kernel("triton_a", 240_000_000, 100_000), kernel("triton_b", 600_000_000, 100_000)),
        ncu=(
            NcuRow(name="triton_a", launches=3, duration_ns=101_000, memory_percent=52, compute_percent=11),
        ),
    )
    text = printed(lambda c: show(bench.kernels(benched(result, {"triton_a": InModel(110_000, 0.25)})), c))
    a, b = text.split("triton_a")[1].split("triton_b")
    assert "25.0 % of GPU time" in a
    assert "cold 100 µs" in a
    assert "in the model 110 µs" in a
    assert "ncu 101 µs" in a
    assert "2,400 GB/s, 50.0 % of peak" in a
    assert "24 registers, 0 spills, 2.05 kB shared memory · XBLOCK=64 num_warps=4" in a
    assert "1 launch in a run" in a
    assert "refused: over the device's peak" in b


def test_the_table_of_promises_has_its_kernels_and_what_became_of_them() -> None:
    def worth(name: str, cold_us: float, least_us: float, skipped: Skipped | None) -> Worth:
        return Worth(
            name=name,
            module="m",
            launches_per_run=2,
            cold_ns=cold_us * 1e3,
            least_ns=least_us * 1e3,
            skipped=skipped,
        )

    final = measured(default=100_000, winner=50_000)
    winner = Tuned(
        name="triton_red_0",
        module="m",
        launches_per_run=2,
        trials=(
            TriedConfiguration(configuration={"XBLOCK": 1, "num_warps": 4}, origin="default", median_ns=1e5),
        ),
        default={"XBLOCK": 1, "num_warps": 4},
        winner={"XBLOCK": 8, "num_warps": 4},
        final=final,
    )
    replay = ModuleResult(
        module="m", aot_id="0_backward", wall=measured(as_recorded=1_000_000, applied=900_000)
    )
    made = promise(([winner]), replay)
    assert made is not None
    result = BenchResult(
        device="NVIDIA H200",
        torch="2.11.0",
        tuned=(winner,),
        worth=(
            worth("triton_red_0", 100, 40, None),
            worth("triton_poi_1", 300, 290, "nothing to win"),
            worth("triton_poi_2", 3, 1, "too little to win"),
        ),
        modules=(replay,),
        promises=(made,),
    )
    text = printed(lambda c: show(bench.autotuned(autotuned(result, {})), c))
    assert re.search(r"triton_red_0\s+2\s+100 µs\s+40.0 µs\s+40.0 %\s+120 µs", text)
    assert "skipped: within a tenth of a copy" in text
    assert "skipped, too little to win: 1 kernel, which together could win 4.00 µs" in text
    assert "XBLOCK 1→8" in text
    assert "0.500 (0.500–0.500)" in text
    unwrapped = " ".join(text.split())
    assert "0_backward: promised 100 µs (100 µs to 100 µs); replayed with and without" in unwrapped
    assert "1.00 ms → 900 µs, measured 100 µs (100 µs to 100 µs): confirmed" in unwrapped


def test_a_replayed_graph_shows_what_ncu_saw_of_its_kernels() -> None:
    replay = ModuleResult(
        module="m",
        aot_id="0_forward",
        wall=measured(as_recorded=120_000),
        busy_ns=1e5,
        span_ns=2e5,
        work=(DeviceWork("triton_poi_0", 2, 40_000.0), DeviceWork("void cutlass::gemm", 1, 60_000.0)),
    )
    seen = NcuRow(name="triton_poi_0", launches=2, duration_ns=21_000, memory_percent=81, compute_percent=9)
    assert generated_kernels([replay], 5) == ("triton_poi_0",)
    result = BenchResult(device="", torch="", modules=(replay,), ncu=(seen,))
    text = printed(lambda c: show(bench.replays(replayed(result)), c))
    assert "50.0 % of its span" in text
    (line,) = [line for line in text.splitlines() if line.startswith("triton_poi_0")]
    assert " ".join(line.split()) == "triton_poi_0 pointwise 40.0 % 40.0 µs 2 20.0 µs 21.0 µs 81 % 9 %"
    plain = msgspec.structs.replace(result, ncu=())
    assert "ncu" not in printed(lambda c: show(bench.replays(replayed(plain)), c))


def test_settings_are_shown_with_their_samples_and_what_fails_is_said() -> None:
    eager = SettingRow(
        setting=Setting(batch="8"), label="eager batch=8", step_s=0.01, samples_per_s=800, as_written=True
    )
    failed = Setting(mode="default", batch="8")
    found = Tuning(
        command=("train.py", "{batch}"),
        device="cpu",
        steps_by="optimizer",
        step_name="SGD",
        rounds=3,
        tokens_per_sample=4,
        rows=(eager, SettingRow(setting=failed, label=failed.label, error="no compiler")),
    )
    text = printed(lambda c: show(tune.settings(found), c))
    (line,) = [line for line in text.splitlines() if line.startswith("eager")]
    assert line.split() == ["eager", "8", "10.0", "ms", "800", "3,200", "as", "written"]
    assert "default batch=8: no compiler" in text
    assert "pays after" not in text


@pytest.mark.parametrize(
    ("width", "there"),
    [(160, "samples/s breaks memory compile"), (120, "memory compile"), (100, "compile"), (80, "speed-up")],
)
def test_settings_that_say_much_lose_columns_but_no_digits(width: int, there: str) -> None:
    rows = [
        SettingRow(
            setting=Setting(mode=mode, batch="32"),
            label=mode,
            step_s=0.0123,
            samples_per_s=2600,
            ratio=0.8,
            low=0.78,
            high=0.82,
            verdict="faster",
            compile_s=25.1,
            break_even_steps=10_000,
            peak_memory_bytes=3 << 30,
            graph_breaks=2,
            agrees=True,
        )
        for mode in ("default", "reduce-overhead")
    ]
    found = Tuning(
        command=("train.py",), steps_by="optimizer", step_name="SGD", tokens_per_sample=8, rows=tuple(rows)
    )
    text = printed(lambda c: show(tune.settings(found), c), width)
    lines = text.splitlines()
    (head,) = [line for line in lines if line.startswith("setting")]
    assert not set(there.split()) - set(head.split())
    (row,) = [line for line in lines if line.startswith("reduce-overhead")]
    assert "…" not in row
    assert "1.250× (1.220–1.282)" in row
    assert ("no room here for" in text) == (width < 160)


def test_names_do_not_run_in_the_terminal() -> None:
    failed = msgspec.structs.replace(kernel("k", 1, 1000), name=HOSTILE, measured={}, error=f"no {HOSTILE}")
    kernels = Tuned(
        name=HOSTILE,
        module="m",
        launches_per_run=2,
        trials=(TriedConfiguration(configuration={"XBLOCK": 1}, origin="default", median_ns=1.0),),
        default={"XBLOCK": 1},
        winner={"XBLOCK": 1},
    )
    result = BenchResult(device=HOSTILE, torch="", kernels=(failed,), tuned=(kernels,), problems=(HOSTILE,))
    tuning = Tuning(
        command=(HOSTILE,),
        step_name=HOSTILE,
        rows=(SettingRow(setting=Setting(), label="eager", error=HOSTILE),),
        recommendation=HOSTILE,
        lines=(HOSTILE,),
    )
    text = (
        printed(lambda c: show(bench.kernels(benched(result, {})), c))
        + printed(lambda c: show(bench.autotuned(autotuned(result, {})), c))
        + printed(lambda c: show(tune.settings(tuning), c))
    )
    assert "\x1b" not in text
    assert "[red]x[/red]" in text
    assert "The default is the fastest." in text
