"""What `bench --max-autotune` found, on the terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping

from rich.console import Console
from rich.text import Text

from kinetoscope import numbers
from kinetoscope.bench.autotune.configurations import Tuned
from kinetoscope.bench.autotune.promise import Saving, of_kernel
from kinetoscope.bench.worker import Result
from kinetoscope.report.pages.table import Name, columns, heads
from kinetoscope.report.verbs.measured import compared, configuration, print_problems
from kinetoscope.report.words import names, palette

SKIPPED = 5  # kernels that are shown though they are not tuned: the longest
WHY = {
    "nothing to win": "within a tenth of a copy",
    "too little to win": "too little to win",
    "beyond the limit": "beyond --limit",
}


def print_tuned(result: Result, in_model: Mapping[str, tuple[float, float]], console: Console) -> None:
    """Which kernels were worth it, the best configurations of each, what they promise and what the graph keeps."""
    _worth(result, console)
    for kernel in result.tuned:
        _kernel(kernel, in_model, console)
    _promised(result, console)
    if result.applied is not None:
        applied = result.applied
        picked = f"{len(applied.picked_up)} of {len(applied.kernels)}"
        console.print(Text(f"Written: {names.plain(applied.table)}; Inductor picks up {picked}"))
        for line in applied.lines:
            # Never folded: the line must be right when it is copied.
            console.print(Text("    " + names.plain(line)), soft_wrap=True)
    print_problems(result, console)


def _worth(result: Result, console: Console) -> None:
    if not result.worth:
        return
    basis = "cold; the least is a copy of as many bytes, or the arithmetic at peak; in one run of its graph"
    console.print(Text.assemble(("Worth tuning", "bold"), (f"  {basis}", "dim")))
    table = columns("left*", *["right"] * 5, "left")
    heads(table, "kernel", "launches", "time", "least", "of a copy's speed", "could win", "")
    chosen = [kernel for kernel in result.worth if kernel.skipped is None]
    others = [kernel for kernel in result.worth if kernel.skipped is not None]
    longest = sorted(others, key=lambda kernel: -kernel.cold_ns * kernel.launches_per_run)[:SKIPPED]
    for kernel in [*chosen, *longest]:
        table.add_row(
            Name(names.plain(kernel.name)),
            Text(numbers.count(kernel.launches_per_run)),
            Text(numbers.time(kernel.cold_ns / 1e3)),
            Text(numbers.time(kernel.least_ns / 1e3)),
            Text(numbers.percent(min(1.0, kernel.speed))),
            Text(numbers.time(kernel.could_win_ns / 1e3)),
            Text(f"skipped: {WHY[kernel.skipped]}" if kernel.skipped else "", style="dim"),
        )
    console.print(table)
    for why, text in WHY.items():
        left = [kernel for kernel in others if kernel.skipped == why]
        if left:
            together = numbers.time(sum(kernel.could_win_ns for kernel in left) / 1e3)
            line = (
                f"skipped, {text}: {numbers.count(len(left), 'kernel')}, which together could win {together}"
            )
            console.print(Text(line, style="dim"))
    console.print()


def _kernel(kernel: Tuned, in_model: Mapping[str, tuple[float, float]], console: Console) -> None:
    usable = sorted((t for t in kernel.trials if t.median_ns), key=lambda t: t.median_ns or math.inf)
    unusable = len(kernel.trials) - len(usable)
    timed = f"  {numbers.count(len(usable), 'configuration')} timed cold, side by side; {unusable} unusable"
    console.print(Text.assemble((names.plain(kernel.name), "bold"), (timed, "dim")), soft_wrap=True)
    table = columns("left*", *["right"] * 3, "left")
    heads(table, "configuration", "median", "registers", "spills", "from")
    for trial in usable[:5] + [t for t in usable[5:] if t.configuration == kernel.default]:
        table.add_row(
            Text(configuration(trial.configuration)),
            Text(numbers.time((trial.median_ns or 0) / 1e3)),
            Text(str(trial.registers)),
            Text(str(trial.spills)),
            Text(trial.origin, style="dim"),
        )
    console.print(table)
    console.print(Text(_saving(kernel, in_model)))
    console.print()


def _saving(kernel: Tuned, in_model: Mapping[str, tuple[float, float]]) -> str:
    told = kernel.comparison
    if told is None:
        return "The default is the fastest."
    text = f"winner {compared(told)}"
    median, _ = in_model.get(kernel.name, (0.0, 0.0))
    if told.verdict == "faster" and median:
        saved = median * (1 - told.ratio) * kernel.launches_per_run / 1e3
        text += (
            f"; would save {numbers.time(saved)} of each run of its graph (its time in the model × launches)"
        )
    return text


def _promised(result: Result, console: Console) -> None:
    """One table: what each winner promises of a run of its graph, together, and what the graph's replay keeps."""
    if not result.tuned:
        return
    basis = "of one run of the graph: default's cold median × (1 − ratio) × launches; 95 % intervals"
    console.print(Text.assemble(("Promised and measured", "bold"), (f"  {basis}", "dim")))
    table = columns("left*", "right", "left*", "right", "right")
    heads(table, "kernel", "launches", "default → winner", "ratio", "promised")
    for kernel in result.tuned:
        told = kernel.comparison
        table.add_row(
            Name(names.plain(kernel.name)),
            Text(numbers.count(kernel.launches_per_run)),
            Text(_changes(kernel)),
            Text(f"{told.ratio:.3f} ({told.low:.3f}–{told.high:.3f})" if told else "–"),
            Text(_time(of_kernel(kernel))),
        )
    console.print(table)
    walls = {replay.module: replay.wall for replay in result.modules}
    for made in result.promises:
        wall = walls[made.module]
        before, after = (numbers.time(wall[name].median_ns / 1e3) for name in ("as recorded", "applied"))
        console.print(
            Text.assemble(
                (f"{names.plain(made.aot_id)}: promised {_time(made.promised)}; ", ""),
                (f"replayed with and without, interleaved: {before} → {after}, ", ""),
                (f"measured {_time(made.measured)}: ", ""),
                (made.outcome, palette.verdict(made.outcome)),
            )
        )
    console.print()


def _changes(kernel: Tuned) -> str:
    """What the winner changes of the default: ``XBLOCK 8→4, warps 16→32``."""
    default, winner = kernel.default, kernel.winner
    changed = [
        f"{n.removeprefix('num_')} {default.get(n, 0)}→{v}" for n, v in winner.items() if default.get(n) != v
    ]
    return ", ".join(changed) or "(the default)"


def _time(saving: Saving) -> str:
    """A saving with its interval."""
    if not saving.ns:
        return "0"
    return f"{numbers.time(saving.ns / 1e3)} ({numbers.time(saving.low_ns / 1e3)} to {numbers.time(saving.high_ns / 1e3)})"
