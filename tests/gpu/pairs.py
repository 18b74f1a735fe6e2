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
import importlib
import json
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any

import proving
from kinetoscope.statistics.distribution import median
from kinetoscope.statistics.intervals import compare_rounds

Step = Callable[[], Any]

# Rules that were written down for a fix before anything was recorded, and whose figure is not that fix's: it
# stands in the first table (docs/evidence/everyday.md), and is not judged since.
NOT_ITS_ADVICE = {
    ("convnext", "ema-foreach"): {"overhead-bound": "a CUDA graph of the whole step, not one loop of it"},
    ("llama", "ema-foreach"): {"overhead-bound": "a CUDA graph of the whole step, not one loop of it"},
    ("gpt2", "clip-foreach"): {"overhead-bound": "a CUDA graph of the whole step, not one loop of it"},
    ("lora", "no-dropout"): {"overhead-bound": "a CUDA graph of all launches, not those of dropout alone"},
    ("gpt", "compile"): {
        "overhead-bound": "a CUDA graph of the whole step; compiled was the model, without graphs",
        "launch-gap": "likewise",
    },
}

STEPS, WARM, ROUNDS, TIMED = 110, 8, 9, 4


@dataclass(frozen=True)
class Programs:
    """Modules of programs: functions of what is fixed that return a step, and ``FIXES`` of each."""

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
    """Time the program as it is, with each fix and with all, in turn: µs per step of each round. What drifts
    on the machine does so for all of them; torch's settings that a program makes are made again before it."""
    import torch

    steps: dict[str, tuple[Step, str, bool]] = {}
    for chosen in [set[str](), *programs.turns(name)]:
        try:
            step = programs.step(name, chosen)
            kept = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
            for _ in range(WARM):
                step()
            steps["+".join(sorted(chosen))] = (step, *kept)
        except Exception:  # noqa: PERF203 - of the program: its other fixes are timed all the same
            traceback.print_exc()
    found: dict[str, list[float]] = {fix: [] for fix in steps}
    for _ in range(ROUNDS):
        for fix, (step, matmul, convolutions) in steps.items():
            torch.set_float32_matmul_precision(matmul)
            torch.backends.cudnn.allow_tf32 = convolutions
            step()
            torch.cuda.synchronize()
            began = time.perf_counter()
            for _ in range(TIMED):
                step()
            torch.cuda.synchronize()
            found[fix].append((time.perf_counter() - began) / TIMED * 1e6)
    print("TIMES", json.dumps(found), flush=True)


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
        ran = proving.python(*words, timeout=120)
    except TimeoutExpired as error:
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
    """The table of predicted and measured savings of the recordings in a folder, and how many agree."""
    from kinetoscope.findings.ledger import settle
    from kinetoscope.findings.rank_view import views
    from kinetoscope.findings.registry import find
    from kinetoscope.sources.run import load

    every = json.loads((out / "times.json").read_text())
    print("| program | plain, ms | as it runs, ms | fix | promised, ms | saved, ms | ratio | first finding |")
    print("|---|---:|---:|---|---:|---:|---:|---|")
    notes: list[str] = []
    ratios: list[float | None] = []  # of the fixes that surely saved something; None: none was promised
    for name in filter(every.get, programs.fixes):
        measured = every[name]
        run = load(out / name)
        found = find(run)
        (view,) = views(run)
        before = measured[""]
        steps = max(1, round(median(before) / view.own_step_us))  # recorded ones in one of the program's
        program = f"| {name} | {median(before) / 1e3:.2f} | {steps * view.own_step_us / 1e3:.2f}"
        first = found[0].rule if found else ""
        for fix, written in programs.fixes[name].items():
            if fix not in measured:
                continue
            others = NOT_ITS_ADVICE.get((name, fix), {})
            rules = [rule for rule in written if rule not in others]
            notes += [f"{name}, {fix}: not {rule} ({why})" for rule, why in others.items()]
            promised = max((one.saving.us * steps for one in found if one.rule in rules), default=None)
            shown, low, saved = _compared(promised, before, measured[fix])
            if low > 0:
                ratios.append(promised and promised / saved)
            print(f"{program} | {fix} | {shown} | {first} |")
            program, first = "| | | ", ""
        together = "+".join(sorted(programs.fixes[name]))
        if len(programs.fixes[name]) > 1 and together in measured:
            wanted = {
                rule
                for fix, rules in programs.fixes[name].items()
                for rule in rules
                if rule not in NOT_ITS_ADVICE.get((name, fix), {})
            }
            promised = sum(
                one.remaining.saving_us for one in settle(run, [f for f in found if f.rule in wanted])
            )
            print(
                f"{program} | all of these | {_compared(promised * steps, before, measured[together])[0]} | |"
            )
        if not programs.fixes[name]:
            graver = [one.rule for one in found if one.severity in ("high", "medium")]
            print(f"{program} | none: tuned | | | | {', '.join(graver) or 'nothing above low'} |")
    given = [ratio for ratio in ratios if ratio is not None]
    near, far = sum(0.67 <= ratio <= 1.5 for ratio in given), sum(not 1 / 3 <= ratio <= 3 for ratio in given)
    print(
        f"\n{len(ratios)} fixes surely saved something; for {len(given)} something was promised, {near} times"
    )
    print(
        f"within 0.67 and 1.5 of what was saved, {far} times beyond three times; median {median(given):.2f}."
    )
    print(*notes, sep="\n")


def _compared(promised: float | None, before: list[float], after: list[float]) -> tuple[str, float, float]:
    """Promised; saved with its 95 % interval; in ms; and their ratio, where surely something was saved. Then
    the lower end of that interval and what was saved, in µs."""
    ratio = compare_rounds(before, after)
    saved, low, high = (median(before) * (1 - of) for of in (ratio.ratio, ratio.high, ratio.low))
    shown = f"{saved / 1e3:.2f} ({low / 1e3:.2f} to {high / 1e3:.2f})"
    if promised is None:
        return f"– | {shown} | –", low, saved
    return f"{promised / 1e3:.2f} | {shown} | " + (f"{promised / saved:.2f}" if low > 0 else "–"), low, saved


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
