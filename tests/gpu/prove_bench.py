"""What `bench` and `tune` claim, shown on a GPU. Run by hand; every section prints a table and keeps JSON.

    PYTHONPATH=src python tests/gpu/prove_bench.py OUT --data FOLDER [SECTION…]

FOLDER holds mixnet_l_forward.py.gz and mixnet_l_backward.py.gz, modules that Inductor generated on an H200.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import proving
from generated_modules import MIXNET, llama, mixnet
from kinetoscope.bench.kernels import ncu
from kinetoscope.bench.measure import results
from kinetoscope.bench.request import BenchResult, Request, ask
from kinetoscope.statistics.distribution import median

# Those of the backward graph's kernels that take most device time and are furthest from the memory's peak.
AUTOTUNED = (
    "triton_red_fused__native_batch_norm_legit_functional_convolution_backward_native_batch_norm_backward_118",
    "triton_poi_fused_add_cat_div_expand_mul_sigmoid_silu_silu_backward_11",
    "triton_red_fused__native_batch_norm_legit_functional_native_batch_norm_backward_56",
    "triton_per_fused__native_batch_norm_legit_functional_cat_mul_sigmoid_sigmoid_backward_silu_sum_9",
    "triton_poi_fused__native_batch_norm_legit_functional_native_batch_norm_backward_silu_silu_backward_22",
)


def compare_with_ncu(data: Path, out: Path, seconds: float) -> None:
    """Cold medians against Nsight Compute's durations."""
    rows: list[tuple[str, BenchResult]] = []
    for direction, names in MIXNET.items():
        request = Request(
            task="kernels",
            input=str(mixnet(data, direction)),
            order=names,
            limit=len(names),
            seconds=seconds,
            with_ncu=True,
        )
        rows.append((f"mixnet_{direction}", ask(request)))
    request = Request(task="kernels", input=str(llama(out)), limit=10, seconds=seconds, with_ncu=True)
    rows.append(("llama", ask(request)))
    empty = empty_kernel()
    print(f"\nan empty kernel here: {empty:.0f} ns")
    print("cold, hot and Nsight Compute's median (µs), the gap, the gap without an empty kernel's, reference")
    for source, result in rows:
        results.save(out, f"kernels_{source}", result)
        seen = {row.name: row for row in result.ncu}
        offset = seen[ncu.EMPTY].duration_ns - empty if ncu.EMPTY in seen else 0.0
        print(source, result.notes)
        for kernel in result.kernels:
            if kernel.error:
                print("ERROR", kernel.name, kernel.error[:200])
                continue
            cold, hot = kernel.cold, kernel.hot
            assert cold is not None
            assert hot is not None
            row = seen.get(kernel.name)
            there = row.duration_ns if row else float("nan")
            medians = f"{cold.median_ns / 1e3:8.2f} {hot.median_ns / 1e3:8.2f} {there / 1e3:8.2f}"
            print(
                f"{kernel.name[:12]}…{kernel.name[-42:]:42} {medians}"
                f" {(cold.median_ns / there - 1) * 100:+6.1f}%"
                f" {(cold.median_ns / (there - offset) - 1) * 100:+6.1f}% n={cold.n:4d}"
                f" {kernel.measured['cold'].stopped}"
                f" {kernel.reference.text if kernel.reference else ''} {kernel.notes}"
            )


def empty_kernel() -> float:
    """Our own duration of a kernel that does nothing, in ns."""
    from kinetoscope.bench import torch_names
    from kinetoscope.bench.measure.device import bench_for
    from kinetoscope.bench.measure.harness import measure

    timer = bench_for("cuda").timer
    return measure({"empty": torch_names.empty_kernel()}, timer=timer, mode="cold")["empty"].median_ns


def spread(data: Path, out: Path, seconds: float) -> None:
    """The medians of the same kernels in five processes."""
    chosen = {
        "backward": MIXNET["backward"][:3] + MIXNET["backward"][5:],
        "forward": MIXNET["forward"][1:2],
    }
    found: dict[str, list[float]] = {}
    requests = [
        Request(
            task="kernels",
            input=str(mixnet(data, direction)),
            order=names,
            limit=len(names),
            seconds=seconds,
        )
        for direction, names in chosen.items()
    ]
    for _ in range(5):
        for kernel in (kernel for request in requests for kernel in ask(request).kernels):
            for mode, measured in (("cold", kernel.cold), ("hot", kernel.hot)):
                found.setdefault(f"{mode} {kernel.name}", []).append(measured.median_ns if measured else 0.0)
    results.save(out, "spread", found)
    print("\nmedian of five processes (µs), spread (max/min − 1)")
    for name, medians in found.items():
        spread = (max(medians) / min(medians) - 1) * 100
        print(f"{name[:70]:70} {median(medians) / 1e3:8.2f} {spread:6.2f} %")


def aa(out: Path, measurements: int) -> None:
    """Identical kernels, and one that is 3 % slower, measured many times."""
    import torch

    from kinetoscope.bench.measure.device import bench_for
    from kinetoscope.bench.measure.harness import measure

    timer = bench_for("cuda").timer
    x = torch.randn(100, 1 << 18, device="cuda")
    same = torch.randn(100, 1 << 18, device="cuda")
    more = torch.randn(103, 1 << 18, device="cuda")
    outs = [torch.empty_like(t) for t in (x, same, more)]
    calls = {
        "a": lambda: torch.sin(x, out=outs[0]),
        "same": lambda: torch.sin(same, out=outs[1]),
        "planted": lambda: torch.sin(more, out=outs[2]),
    }
    kept: list[results.RatioToBase] = []
    for seed in range(measurements):
        measured = measure(
            calls, timer=timer, mode="cold", base="a", seconds=1.0, warmup_seconds=0.05, seed=seed
        )
        kept += measured.comparisons
    results.save(out, "aa", kept)
    print(f"\nA/A and a planted 3 %, {measurements} times, from the device's activity records, cold")
    for line, count in sorted(Counter(f"{c.name}: {c.verdict}" for c in kept).items()):
        print(f"{line:30} {count}")


def timers(out: Path) -> None:
    """The same short and long kernel by every timer."""
    import torch

    from kinetoscope.bench.measure.device import bench_for
    from kinetoscope.bench.measure.harness import measure

    print("\nthe same kernel by every timer (µs, hot)")
    for elements in (1 << 10, 1 << 22, 1 << 26):
        x = torch.randn(elements, device="cuda")
        y = torch.empty_like(x)
        line = []
        for name in ("activity", "events", "graph"):
            call = functools.partial(torch.sin, x, out=y)
            measured = measure({"sin": call}, timer=bench_for("cuda", name).timer, seconds=1.0)
            median_us = measured["sin"].median_ns / 1e3
            line.append(f"{name} {median_us:8.2f} (n={measured.rounds}, {measured.stopped})")
        print(f"{elements:9} ", "  ".join(line))
        if measured.clocks:
            print(measured.clocks[-1])


def autotune(data: Path, out: Path, names: tuple[str, ...], seconds: float) -> None:
    """Every configuration of some kernels, the winners applied, the whole module with and without them."""
    result = ask(
        Request(
            task="autotune",
            input=str(mixnet(data, "backward")),
            order=names,
            limit=len(names),
            seconds=seconds,
            apply_in=str(out),
        )
    )
    results.save(out, "autotune", result)
    for tuned in result.tuned:
        usable = [t for t in tuned.trials if t.median_ns]
        print(
            f"\n{tuned.name[:90]}: {len(tuned.trials)} tried, {len(usable)} usable, x{tuned.launches_per_run}"
        )
        for trial in sorted(usable, key=lambda t: t.median_ns or 0)[:4]:
            time_us = (trial.median_ns or 0) / 1e3
            print(f"   {time_us:8.2f} µs {trial.configuration} {trial.origin} {trial.registers} regs")
        for trial in [t for t in tuned.trials if t.error][:2]:
            print("   ", trial.configuration, (trial.error or "")[:120])
        if tuned.comparison:
            c = tuned.comparison
            ratio = f"{c.ratio:.3f} [{c.low:.3f}, {c.high:.3f}]"
            print(f"   {tuned.default} → {tuned.winner}: {ratio} {c.verdict} floor {c.noise_floor:.4f}")
    print(result.applied)
    for module in result.modules:
        print(
            module.module,
            f"busy {(module.busy_ns or 0) / 1e6:.2f} ms span {(module.span_ns or 0) / 1e6:.2f} ms",
        )
        print([(s.name, round(s.median_ns / 1e6, 3)) for s in module.wall.subjects], module.wall.comparisons)
    print(result.problems)


def tune(out: Path) -> None:
    """The founding documents' attention and matmul under every mode, with a planted 3 % slower twin."""
    import torch

    import kinetoscope

    class Attention(torch.nn.Module):
        def __init__(self, dim: int) -> None:
            super().__init__()
            self.W_q = torch.nn.Linear(dim, dim, bias=False)
            self.W_k = torch.nn.Linear(dim, dim, bias=False)
            self.W_v = torch.nn.Linear(dim, dim, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = self.W_q(x), self.W_k(x), self.W_v(x)
            out = q @ k.transpose(-2, -1)
            out = torch.exp(out) / torch.sum(torch.exp(out), dim=-1, keepdim=True)
            return out @ v

    def matmul_add(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.add(torch.matmul(x, w), b)

    attention = Attention(4096).cuda()
    x = torch.rand(1, 1024, 4096, device="cuda")
    cases: dict[str, tuple[Callable[..., object], tuple[object, ...]]] = {"attention_4096": (attention, (x,))}
    for size in (64, 4096):
        made = tuple(torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(3))
        cases[f"matmul_{size}"] = (matmul_add, made)
    for name, (model, inputs) in cases.items():
        torch._dynamo.reset()
        with torch.no_grad():
            found = kinetoscope.tune(model, inputs, seconds=6)
        results.save(out, f"tune_{name}", found)
        print(f"\n{name}: {found.recommendation} {found.lines}")
        for row in found.rows:
            if row.error:
                print(f"   {row.label:28} {row.error[:150]}")
                continue
            print(
                f"   {row.label:28} {(row.step_s or 0) * 1e6:10.2f} µs  ratio {row.ratio or 1:.4f}"
                f" [{row.low or 1:.4f}, {row.high or 1:.4f}] {row.verdict} compile {row.compile_s or 0:.1f} s"
                f" breaks even {row.break_even_steps} differs by {row.output_difference}"
            )


def tune_llama(out: Path) -> None:
    """A program that compiles by itself, unedited, in processes of its own."""
    from kinetoscope.bench.tune import settings
    from kinetoscope.bench.tune.program import tune_program

    found = tune_program(
        settings.grid(["default", "max-autotune-no-cudagraphs"]),
        [str(proving.ROOT / "tests/gpu/llama_step.py"), str(out / "ignored.json")],
        rounds=2,
        steps=30,
        progress=print,
    )
    results.save(out, "tune_llama", found)
    print(f"\n{found.recommendation} {found.lines}")
    for row in found.rows:
        print(f"   {row.label:28} {row.rounds_s} ratio {row.ratio} [{row.low}, {row.high}] {row.verdict}")
        print(
            f"      compile {row.compile_s} s, breaks even {row.break_even_steps}, "
            f"differs by {row.output_difference}, {row.error}"
        )


def main() -> None:
    parser = proving.arguments(__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("sections", nargs="*", default=["ncu", "spread", "aa", "timers", "autotune"])
    chosen = parser.parse_intermixed_args()
    sections: dict[str, Callable[[], None]] = {
        "ncu": lambda: compare_with_ncu(chosen.data, chosen.out, chosen.seconds),
        "spread": lambda: spread(chosen.data, chosen.out, chosen.seconds),
        "aa": lambda: aa(chosen.out, 60),
        "tune": lambda: tune(chosen.out),
        "llama": lambda: tune_llama(chosen.out),
        "timers": lambda: timers(chosen.out),
        "autotune": lambda: autotune(chosen.data, chosen.out, AUTOTUNED, chosen.seconds),
    }
    proving.run_sections(chosen.sections, sections)


if __name__ == "__main__":
    main()
