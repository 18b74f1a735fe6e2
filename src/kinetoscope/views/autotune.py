"""What `bench --max-autotune` found, on the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from kinetoscope import numbers
from kinetoscope.document import measurements as document
from kinetoscope.render import names, palette
from kinetoscope.render.table import Name
from kinetoscope.views.bench import configuration, print_problems
from kinetoscope.views.listing import grid, titled

WHY = {
    "nothing to win": "within a tenth of a copy",
    "too little to win": "too little to win",
    "beyond the limit": "beyond --limit",
}


def print_autotuned(shown: document.AutotuneListing, console: Console) -> None:
    """Which kernels were worth it, the best configurations of each, what they promise and replays keep."""
    if shown.worth:
        _print_worth(shown, console)
    for row in shown.rows:
        _print_configurations(row, console)
    if shown.rows:
        _print_promises(shown, console)
    if shown.applied is not None:
        picked = f"{len(shown.applied.picked_up)} of {len(shown.applied.kernels)}"
        console.print(Text(f"Written: {names.plain(shown.applied.table)}; Inductor picks up {picked}"))
        for line in shown.applied.lines:
            # Never folded: the line must be right when it is copied.
            console.print(Text("    " + names.plain(line)), soft_wrap=True)
    print_problems(shown.problems, console)


def _print_worth(shown: document.AutotuneListing, console: Console) -> None:
    basis = "cold; the least is a copy of as many bytes, or the arithmetic at peak; in one run of its graph"
    console.print(titled("Worth tuning", basis))
    table = grid(
        ("kernel", "left*", [Name(names.plain(kernel.name)) for kernel in shown.worth]),
        ("launches", "right", [numbers.count(kernel.launches_per_run) for kernel in shown.worth]),
        ("time", "right", [numbers.time(kernel.cold_ns / 1e3) for kernel in shown.worth]),
        ("least", "right", [numbers.time(kernel.least_ns / 1e3) for kernel in shown.worth]),
        ("of a copy's speed", "right", [numbers.percent(min(1.0, kernel.speed)) for kernel in shown.worth]),
        ("could win", "right", [numbers.time(kernel.could_win_ns / 1e3) for kernel in shown.worth]),
        ("", "left", [Text(_skipped(kernel), style="dim") for kernel in shown.worth]),
    )
    console.print(table)
    for left in shown.skipped:
        together = f"{numbers.count(left.count, 'kernel')}, which together could win"
        line = f"skipped, {WHY[left.reason]}: {together} {numbers.time(left.could_win_ns / 1e3)}"
        console.print(Text(line, style="dim"))
    console.print()


def _skipped(kernel: document.Worth) -> str:
    return f"skipped: {WHY[kernel.skipped]}" if kernel.skipped else ""


def _print_configurations(row: document.AutotuneRow, console: Console) -> None:
    unusable = len(row.kernel.trials) - row.timed
    timed = f"  {numbers.count(row.timed, 'configuration')} timed cold, side by side; {unusable} unusable"
    console.print(Text.assemble((names.plain(row.kernel.name), "bold"), (timed, "dim")), soft_wrap=True)
    table = grid(
        ("configuration", "left*", [configuration(tried.configuration) for tried in row.fastest]),
        ("median", "right", [numbers.time((tried.median_ns or 0.0) / 1e3) for tried in row.fastest]),
        ("registers", "right", [str(tried.registers) for tried in row.fastest]),
        ("spills", "right", [str(tried.spills) for tried in row.fastest]),
        ("from", "left", [Text(tried.origin, style="dim") for tried in row.fastest]),
    )
    console.print(table)
    console.print(Text(_winner(row)))
    console.print()


def _winner(row: document.AutotuneRow) -> str:
    against = row.kernel.comparison
    if against is None:
        return "The default is the fastest."
    text = (
        f"winner takes {against.ratio:.3f} of the default's time ({against.low:.3f}–{against.high:.3f}, "
        f"noise floor {100 * against.noise_floor:.2f} %): {against.verdict}"
    )
    if row.saves_in_model_ns is not None:
        saved = numbers.time(row.saves_in_model_ns / 1e3)
        text += f"; would save {saved} of each run of its graph (its time in the model × launches)"
    return text


def _print_promises(shown: document.AutotuneListing, console: Console) -> None:
    """What each winner promises of a run of its graph; all together, and what the graph's replay keeps."""
    basis = "of one run of the graph: default's cold median × (1 − ratio) × launches; 95 % intervals"
    console.print(titled("Promised and measured", basis))
    kernels = [row.kernel for row in shown.rows]
    table = grid(
        ("kernel", "left*", [Name(names.plain(kernel.name)) for kernel in kernels]),
        ("launches", "right", [numbers.count(kernel.launches_per_run) for kernel in kernels]),
        ("default → winner", "left*", [_changes(kernel) for kernel in kernels]),
        ("ratio", "right", [_ratio(kernel.comparison) for kernel in kernels]),
        ("promised", "right", [_gain(kernel.gain) for kernel in kernels]),
    )
    console.print(table)
    for row in shown.promises:
        made = row.promise
        before, after = numbers.time(row.before_ns / 1e3), numbers.time(row.after_ns / 1e3)
        console.print(
            Text.assemble(
                f"{names.plain(made.aot_id)}: promised {_gain(made.promised)}; ",
                f"replayed with and without, interleaved: {before} → {after}, ",
                f"measured {_gain(made.measured)}: ",
                (made.outcome, palette.verdict(made.outcome)),
            )
        )
    console.print()


def _changes(kernel: document.Tuned) -> str:
    """What the winner changes of the default: ``XBLOCK 8→4, warps 16→32``."""
    default, winner = kernel.default, kernel.winner
    changed = [
        f"{n.removeprefix('num_')} {default.get(n, 0)}→{v}" for n, v in winner.items() if default.get(n) != v
    ]
    return ", ".join(changed) or "(the default)"


def _ratio(against: document.Comparison | None) -> str:
    return f"{against.ratio:.3f} ({against.low:.3f}–{against.high:.3f})" if against else "–"


def _gain(gain: document.Gain) -> str:
    if not gain.ns:
        return "0"
    middle, low, high = (numbers.time(ns / 1e3) for ns in (gain.ns, gain.low_ns, gain.high_ns))
    return f"{middle} ({low} to {high})"
