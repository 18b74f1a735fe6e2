"""Everyday programs with one or several things wrong, and each fix alone: what was promised, what it saved.

    python tests/gpu/pairs.py record OUT [NAME…]
    python tests/gpu/pairs.py judge OUT

The first, on a CUDA device, records each program as it is and times it with each fix: recordings and
times.json go to OUT. The second, anywhere, prints the table of predicted and measured.

`python tests/gpu/pairs.py NAME [--fix A,B]` is the program itself.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import wrong_programs
from wrong_programs import Step

STEPS, WARM, TIMED = 110, 8, 24

# Each fix of each program, and the rules whose advice it is.
FIXES: dict[str, dict[str, tuple[str, ...]]] = {
    "resnet": {
        "channels_last": ("layout-conversion",),
        "pinned": ("pageable-copy",),
        "fused": ("optimizer-not-fused",),
        "no-item": ("sync-in-step",),
    },
    "bert": {
        "tf32": ("no-tensor-cores",),
        "fused": ("optimizer-not-fused",),
        "no-item": ("sync-in-step",),
    },
    "gpt": {
        "sdpa": ("unfused-attention",),
        "fused": ("optimizer-not-fused",),
        "compile": ("unfused-elementwise", "overhead-bound", "launch-gap"),
    },
    "vit": {"tf32": ("no-tensor-cores",), "graph": ("overhead-bound", "launch-gap")},
    "densenet": {"graph": ("overhead-bound", "launch-gap"), "channels_last": ("layout-conversion",)},
    "unet": {"tf32": ("no-tensor-cores",), "channels_last": ("layout-conversion",)},
    "experts": {"unbind": ("index-backward",)},
    "average": {"foreach": ("many-tiny-kernels",), "fused": ("optimizer-not-fused",)},
    "loader": {"workers": ("data-loading-stall",)},
    "tuned": {},
}


PROGRAMS: dict[str, Callable[[set[str]], Step]] = {name: getattr(wrong_programs, name) for name in FIXES}


def timed(step: Step) -> float:
    """Median of rounds of steps, in µs; the device is waited for at both ends of a round."""
    import torch

    for _ in range(WARM):
        step()
    rounds: list[float] = []
    for _ in range(4):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(TIMED // 4):
            step()
        torch.cuda.synchronize()
        rounds.append((time.perf_counter() - began) / (TIMED // 4) * 1e6)
    return statistics.median(rounds)


def times(name: str) -> None:
    """Time each fix alone and all together, the program as it is first and last."""
    found: dict[str, list[float]] = {}
    fixes = list(FIXES[name])
    turns = [set[str](), *({fix} for fix in fixes), *([set(fixes)] if len(fixes) > 1 else []), set[str]()]
    for chosen in turns:
        step = PROGRAMS[name](chosen)
        found.setdefault("+".join(sorted(chosen)), []).append(timed(step))
        del step
    print("TIMES", json.dumps(found), flush=True)


def record(out: Path, names: list[str]) -> None:
    every: dict[str, Any] = {}
    for name in names or list(FIXES):
        began = time.perf_counter()
        tool = [sys.executable, "-m", "kinetoscope", "run", "-o", str(out / name), "--", __file__, name]
        ran = subprocess.run(tool, capture_output=True, text=True, timeout=150)
        between = time.perf_counter()
        done = subprocess.run(
            [sys.executable, __file__, name, "--times"], capture_output=True, text=True, timeout=200
        )
        lines = [line for line in done.stdout.splitlines() if line.startswith("TIMES")]
        if lines:
            every[name] = json.loads(lines[0][6:])
        else:
            print(done.stderr[-400:], flush=True)
        if ran.returncode:
            print(ran.stderr[-400:], flush=True)
        print(
            f"{name:10} run {between - began:5.1f} s, times {time.perf_counter() - between:5.1f} s",
            every.get(name),
            flush=True,
        )
        (out / "times.json").write_text(json.dumps(every, indent=1))


def judge(out: Path) -> None:
    """The table of predicted and measured savings of the recordings in a folder."""
    from kinetoscope.analysis.run import load
    from kinetoscope.findings.registry import find
    from kinetoscope.findings.scene import scenes

    every = json.loads((out / "times.json").read_text())
    print("| program | plain, ms | as it runs, ms | fix | promised, ms | saved, ms | ratio | first finding |")
    print("|---|---:|---:|---|---:|---:|---:|---|")
    for name, measured in every.items():
        run = load(out / name)
        found = find(run)
        (scene,) = scenes(run)
        before = statistics.mean(measured[""])
        plain = " and ".join(f"{us / 1e3:.2f}" for us in measured[""])
        program = f"| {name} | {plain} | {scene.own_step_us / 1e3:.2f}"
        first = found[0].rule if found else ""
        for fix, rules in FIXES[name].items():
            promised = max((one.saving.us for one in found if one.rule in rules), default=None)
            print(f"{program} | {fix} | {_compared(promised, before - measured[fix][0])} | {first} |")
            program, first = "| | | ", ""
        if len(FIXES[name]) > 1:
            saved = before - measured["+".join(sorted(FIXES[name]))][0]
            wanted = {rule for rules in FIXES[name].values() for rule in rules}
            promised = sum(one.remaining.us for one in found if one.rule in wanted)
            print(f"{program} | all of these | {_compared(promised, saved)} | |")
        if not FIXES[name]:
            graver = [one.rule for one in found if one.severity in ("high", "medium")]
            print(f"{program} | none: tuned | | | | {', '.join(graver) or 'nothing above low'} |")


def _compared(promised: float | None, saved: float) -> str:
    if promised is None:
        return f"– | {saved / 1e3:.2f} | –"
    ratio = f"{promised / saved:.2f}" if saved > 0 else "–"
    return f"{promised / 1e3:.2f} | {saved / 1e3:.2f} | {ratio}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what")
    parser.add_argument("rest", nargs="*")
    parser.add_argument("--fix", default="")
    parser.add_argument("--times", action="store_true")
    arguments = parser.parse_args()
    if arguments.what == "record":
        record(Path(arguments.rest[0]), arguments.rest[1:])
    elif arguments.what == "judge":
        judge(Path(arguments.rest[0]))
    elif arguments.times:
        times(arguments.what)
    else:
        step = PROGRAMS[arguments.what](set(filter(None, arguments.fix.split(","))))
        for _ in range(STEPS):
            step()


if __name__ == "__main__":
    main()
