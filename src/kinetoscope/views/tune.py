"""What `tune` found, on the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from kinetoscope import numbers
from kinetoscope.document.measurements import Fits, LargestBatch, SettingRow, Tuning
from kinetoscope.render import names, palette
from kinetoscope.views.listing import grid

GAP = 2  # columns between two of the table's
GIVES_WAY = ("samples/s", "breaks", "memory", "pays after", "compile", "tokens/s")


def print_tuning(shown: Tuning, console: Console) -> None:
    """The settings side by side, and what to do."""
    rates = any(row.samples_per_s for row in shown.rows)
    head = f"{' '.join(shown.command) or shown.step_name} on {shown.device}"
    basis = (
        f"steps by {shown.steps_by} ({shown.step_name}); {numbers.count(shown.rounds, 'round')}; speed-up"
        f"{' of a sample' if rates else ''} over {_base(shown)}, 95 % interval"
    )
    console.print(Text(names.plain(head), style="bold"))
    console.print(Text(names.plain(basis), style="dim"))
    cells = [_cells(row, shown.tokens_per_sample) for row in shown.rows]
    # Columns that no row fills take no room.
    filled = [name for name in cells[0] if any(line[name].plain for line in cells)] if cells else []
    fitting = _fitting(cells, filled, console.width)
    sides = {"setting": "left", "verdict": "left"}
    console.print(grid(*((n, sides.get(n, "right"), [line[n] for line in cells]) for n in fitting)))
    if left_out := [name for name in filled if name not in fitting]:
        console.print(Text(f"no room here for {', '.join(left_out)}: a wider terminal has it", style="dim"))
    for row in shown.rows:
        if row.error is not None:
            console.print(Text(f"{names.plain(row.label)}: {names.plain(row.error)[:300]}", style="red"))
    if shown.fits is not None:
        console.print(Text(_fits(shown.fits)))
    console.print()
    console.print(Text(names.plain(shown.recommendation), style="bold"))
    for line in shown.lines:
        console.print(Text("    " + names.plain(line)), soft_wrap=True)


def _fits(shown: Fits) -> str:
    largest = "no batch that was tried fits" if shown.largest is None else f"batch {shown.largest:,} fits"
    too_large = "none" if shown.too_large is None else f"{shown.too_large:,}"
    return f"{largest}; {too_large} runs out of memory"


def print_largest(shown: LargestBatch, console: Console) -> None:
    """Each batch that was tried, what was foreseen and what was found."""
    foreseen, tries = shown.foreseen, sorted(shown.tries, key=lambda one: one.batch)
    console.print(Text(names.plain(f"{' '.join(shown.command)} on {shown.device}"), style="bold"))
    basis = f"one run each, as written; foreseen from batch {foreseen.batch:,} of {foreseen.recording}"
    console.print(Text(names.plain(basis), style="dim"))
    verdicts = ["fits" if one.fits else "out of memory" for one in tries]
    console.print(
        grid(
            ("batch", "right", [Text(f"{one.batch:,}") for one in tries]),
            ("foreseen", "right", [Text(numbers.size(one.foreseen_bytes)) for one in tries]),
            ("memory", "right", [Text(numbers.size(one.peak_bytes or 0)) for one in tries]),
            ("", "left", [Text(verdict, style=palette.verdict(verdict)) for verdict in verdicts]),
            ("", "left", [Text(_retries(one.retries), style="dim") for one in tries]),
        )
    )
    console.print()
    interval = (
        f"{foreseen.low:,}" if foreseen.low == foreseen.high else f"{foreseen.low:,} to {foreseen.high:,}"
    )
    found = _fits(Fits(largest=shown.largest, too_large=shown.too_large))
    console.print(Text(f"Foreseen: batch {interval}. Found: {found}.", style="bold"))


def _retries(times: int) -> str:
    return f"cached memory was given back {numbers.count(times, 'time')}, which waits" if times else ""


def _fitting(cells: list[dict[str, Text]], columns: list[str], width: int) -> list[str]:
    """The columns that fit, without those that give way first; what is left shows whole numbers."""

    def needed(shown: list[str]) -> int:
        return sum(max(len(name), *(line[name].cell_len for line in cells)) + GAP for name in shown) - GAP

    shown = list(columns)
    for name in GIVES_WAY:
        if shown and needed(shown) > width:
            shown = [other for other in shown if other != name]
    return shown


def _base(shown: Tuning) -> str:
    """What the speed-ups are over: the one row without a ratio, or eager with each batch."""
    bases = [row.label for row in shown.rows if row.error is None and row.ratio is None]
    return names.plain(bases[0]) if len(bases) == 1 else "eager with the same batch"


def _cells(row: SettingRow, tokens: int | None) -> dict[str, Text]:
    """The cells of one setting, by their column."""
    written = "as written" if row.as_written and not row.setting.as_written else ""
    verdict = "out of memory" if row.ran_out else "fails" if row.error is not None else row.verdict or ""
    rate = row.samples_per_s or 0.0
    return {
        "setting": Text(names.plain(row.setting.name)),
        "batch": Text(names.plain(row.setting.batch or "")),
        "step": Text(numbers.time(row.step_s * 1e6) if row.step_s else ""),
        "samples/s": Text(numbers.rate(rate) if rate else ""),
        "tokens/s": Text(numbers.rate(rate * tokens) if rate and tokens else ""),
        "speed-up": Text(_speed_up(row)),
        "verdict": Text.assemble(
            (verdict, palette.verdict(verdict)), (" " if verdict and written else ""), (written, "dim")
        ),
        "compile": Text(numbers.time(row.compile_s * 1e6) if row.compile_s else ""),
        "pays after": Text(numbers.count(row.break_even_steps, "step") if row.break_even_steps else ""),
        "memory": Text(numbers.size(row.peak_memory_bytes) if row.peak_memory_bytes else ""),
        "breaks": Text(str(row.graph_breaks) if row.graph_breaks else ""),
        "output": Text({None: "", True: "agrees", False: "DIFFERS"}[row.agrees]),
    }


def _speed_up(row: SettingRow) -> str:
    if row.ratio is None:
        return ""
    if row.low is None or row.high is None or row.low <= 0:
        return f"{1 / row.ratio:.3f}× (one round)"
    low, high = 1 / row.high, 1 / row.low
    return f"{1 / row.ratio:.3f}× ({f'{low:.3f}–{high:.3f}' if high < 100 else 'too few rounds'})"
