"""Everyday programs with one or several things wrong, and each fix alone: what was promised, what it saved.

    python tests/gpu/pairs.py record OUT [NAME…] [--of held_out,held_out_own]
    python tests/gpu/pairs.py judge OUT [--of held_out,held_out_own]
    python tests/gpu/pairs.py try [NAME…] [--of held_out,held_out_own]

The first, on a CUDA device, records each program as it is and times it with each fix: recordings and
times.json go to OUT. The second, anywhere, prints the table of predicted and measured. The third takes two
steps of each program with each fix, on whatever device there is.

`python tests/gpu/pairs.py NAME [--fix A,B] [--of held_out,held_out_own]` is the program itself.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Step = Callable[[], Any]

STEPS, WARM, ROUNDS, EACH = 110, 8, 9, 4


@dataclass(frozen=True)
class Programs:
    """Modules of programs: functions of what is mended that return a step, and ``FIXES`` of each."""

    modules: str

    @property
    def fixes(self) -> dict[str, dict[str, tuple[str, ...]]]:
        each = [importlib.import_module(name).FIXES for name in self.modules.split(",")]
        return {name: fixes for one in each for name, fixes in one.items()}

    def step(self, name: str, fixes: set[str]) -> Step:
        each = [importlib.import_module(module) for module in self.modules.split(",")]
        (module,) = [module for module in each if name in module.FIXES]
        return getattr(module, name)(fixes)

    def turns(self, name: str) -> list[set[str]]:
        """Each fix of a program alone, and all of them."""
        fixes = list(self.fixes[name])
        return [*({fix} for fix in fixes), *([set(fixes)] if len(fixes) > 1 else [])]


def times(programs: Programs, name: str) -> None:
    """Time the program as it is, with each fix alone and with all: a few steps of each in turn, round by
    round, since the host's pace drifts by more than many a fix saves. µs a step, of every round."""
    import torch

    found: dict[str, list[float]] = {}
    every = [_ready(programs, name, chosen) for chosen in [set[str](), *programs.turns(name)]]
    gc.collect()
    for _ in range(ROUNDS):
        for fix, step, (precision, tf32) in filter(None, every):
            torch.set_float32_matmul_precision(precision)
            torch.backends.cudnn.allow_tf32 = tf32
            step()
            torch.cuda.synchronize()
            began = time.perf_counter()
            for _ in range(EACH):
                step()
            torch.cuda.synchronize()
            found.setdefault(fix, []).append((time.perf_counter() - began) / EACH * 1e6)
    print("TIMES", json.dumps(found), flush=True)


def _ready(programs: Programs, name: str, chosen: set[str]) -> tuple[str, Step, tuple[str, bool]] | None:
    """A step that has run a few times, and the settings that it set; None: it fails, others are timed."""
    import torch

    try:
        step = programs.step(name, chosen)
        settings = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
        for _ in range(WARM):
            step()
    except Exception:
        traceback.print_exc()
        return None
    return "+".join(sorted(chosen)), step, settings


def record(programs: Programs, out: Path, names: list[str]) -> None:
    file = out / "times.json"
    every: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    for name in names or programs.fixes:
        began = time.perf_counter()
        program = [__file__, name, "--of", programs.modules]
        _output("-m", "kinetoscope", "run", "-o", str(out / name), "--", *program)
        between = time.perf_counter()
        lines = [line for line in _output(*program, "--times").splitlines() if line.startswith("TIMES")]
        if lines:
            every[name] = json.loads(lines[0][6:])
        print(
            f"{name:10} run {between - began:5.1f} s, times {time.perf_counter() - between:5.1f} s",
            every.get(name),
            flush=True,
        )
        file.write_text(json.dumps(every, indent=1))


def _output(*words: str) -> str:
    """What Python prints; the end of what it complains of is shown."""
    try:
        ran = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired as error:
        print(error, flush=True)
        return ""
    if ran.returncode or "Traceback" in ran.stderr:
        print(ran.stderr[-600:], flush=True)
    return ran.stdout


def attempt(programs: Programs, names: list[str]) -> None:
    for name in names or programs.fixes:
        for chosen in [set[str](), *programs.turns(name)]:
            step = programs.step(name, chosen)
            step()
            step()
            print(name, "+".join(sorted(chosen)), "runs", flush=True)


def judge(programs: Programs, out: Path) -> None:
    """The table of predicted and measured savings of the recordings in a folder."""
    from kinetoscope.analysis.run import load
    from kinetoscope.findings.registry import find
    from kinetoscope.findings.scene import scenes

    every = json.loads((out / "times.json").read_text())
    print(
        "| program | plain, ms (middle half) | as it runs, ms | fix | promised, ms | saved, ms | ratio | first finding |"
    )
    print("|---|---:|---:|---|---:|---:|---:|---|")
    for name in filter(every.get, programs.fixes):
        measured = every[name]
        run = load(out / name)
        found = find(run)
        (scene,) = scenes(run)
        before = measured[""]
        least, _, most = statistics.quantiles(before)
        program = f"| {name} | {least / 1e3:.2f} to {most / 1e3:.2f} | {scene.own_step_us / 1e3:.2f}"
        first = found[0].rule if found else ""
        for fix, rules in programs.fixes[name].items():
            if fix not in measured:
                continue
            promised = max((one.saving.us for one in found if one.rule in rules), default=None)
            print(f"{program} | {fix} | {_compared(promised, before, measured[fix])} | {first} |")
            program, first = "| | | ", ""
        together = "+".join(sorted(programs.fixes[name]))
        if len(programs.fixes[name]) > 1 and together in measured:
            wanted = {rule for rules in programs.fixes[name].values() for rule in rules}
            promised = sum(one.remaining.us for one in found if one.rule in wanted)
            print(f"{program} | all of these | {_compared(promised, before, measured[together])} | |")
        if not programs.fixes[name]:
            graver = [one.rule for one in found if one.severity in ("high", "medium")]
            print(f"{program} | none: tuned | | | | {', '.join(graver) or 'nothing above low'} |")


def _compared(promised: float | None, before: list[float], after: list[float]) -> str:
    """What was saved is the median over rounds, ± half of what the middle half of them spans."""
    low, saved, high = statistics.quantiles([one - other for one, other in zip(before, after, strict=True)])
    measured = f"{saved / 1e3:.2f} ± {(high - low) / 2e3:.2f}"
    if promised is None:
        return f"– | {measured} | –"
    ratio = f"{promised / saved:.2f}" if saved > 0 else "–"
    return f"{promised / 1e3:.2f} | {measured} | {ratio}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what")
    parser.add_argument("rest", nargs="*")
    parser.add_argument("--of", default="wrong_programs", help="the modules that hold the programs")
    parser.add_argument("--fix", default="")
    parser.add_argument("--times", action="store_true")
    arguments = parser.parse_intermixed_args()
    programs = Programs(arguments.of)
    if arguments.what == "record":
        record(programs, Path(arguments.rest[0]), arguments.rest[1:])
    elif arguments.what == "judge":
        judge(programs, Path(arguments.rest[0]))
    elif arguments.what == "try":
        attempt(programs, arguments.rest)
    elif arguments.times:
        times(programs, arguments.what)
    else:
        step = programs.step(arguments.what, set(filter(None, arguments.fix.split(","))))
        for _ in range(STEPS):
            step()


if __name__ == "__main__":
    main()
