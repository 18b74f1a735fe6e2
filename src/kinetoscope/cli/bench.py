"""`kinetoscope bench`: generated kernels and modules timed alone, configurations tried, winners applied."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from kinetoscope.analysis.run import Run

KERNELS, TUNED = 20, 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "input",
        metavar="INPUT",
        help="a recording, Inductor's cache folder, or a module that Inductor generated",
    )
    add("--kernel", metavar="GLOB", default="*", help="only kernels whose full name matches")
    add(
        "--graph",
        metavar="HASH",
        help="replay the modules whose hash or AOT id begins so (with --kernel: only theirs)",
    )
    add(
        "--max-autotune",
        action="store_true",
        help="try every configuration, then coordinate descent from the best",
    )
    add(
        "--config", action="append", default=[], metavar="C", help="also try this one: XBLOCK=128,num_warps=8"
    )
    add("--configs", metavar="FILE", help="also try these: one configuration a line")
    add(
        "--apply",
        action="store_true",
        help="write the winners for Inductor, and replay their graphs with them",
    )
    add("--ncu", action="store_true", help="also Nsight Compute's durations and speed-of-light numbers")
    add(
        "--timer",
        choices=("activity", "events", "graph", "host"),
        help="how samples are taken (see docs/bench.md)",
    )
    add(
        "--seconds",
        type=float,
        default=1.0,
        metavar="S",
        help="of measuring a kernel in one mode, at most (default 1)",
    )
    add(
        "--limit",
        type=int,
        metavar="N",
        help=f"kernels, most time first (default {KERNELS}; 0: all); with --max-autotune those that could win most "
        f"(default {TUNED})",
    )
    add("--json", action="store_true", help="print one JSON document, with every sample")


def main(arguments: argparse.Namespace) -> int:
    import time
    from pathlib import Path

    import msgspec

    from kinetoscope.bench.autotune.configurations import parse_configuration
    from kinetoscope.bench.measure import results
    from kinetoscope.bench.worker import Request, ask
    from kinetoscope.errors import InputError, UsageError
    from kinetoscope.recording.manifest import is_recording

    path = Path(arguments.input)
    if not path.exists():
        raise InputError("there is no such file or folder", where=str(path), mend="check the path")
    if arguments.apply and not arguments.max_autotune:
        raise UsageError("--apply has nothing to apply", mend="add --max-autotune")
    given = [*arguments.config]
    if arguments.configs:
        given += [line for line in _lines(Path(arguments.configs)) if line and not line.startswith("#")]
    run = _profile(path)
    in_model = _in_model(run) if run else {}
    replay = arguments.graph is not None and arguments.kernel == "*" and not arguments.max_autotune
    home = path if is_recording(path) else Path.cwd()
    result = ask(
        Request(
            task="module" if replay else "autotune" if arguments.max_autotune else "kernels",
            input=str(path),
            pattern=arguments.kernel,
            graph=arguments.graph or "",
            order=tuple(in_model),
            limit=arguments.limit
            if arguments.limit is not None
            else TUNED
            if arguments.max_autotune
            else KERNELS,
            seconds=max(arguments.seconds, 5.0) if replay else arguments.seconds,
            timer=arguments.timer,
            configurations=tuple(map(parse_configuration, given)),
            apply_in=str(home) if arguments.apply else None,
            with_ncu=arguments.ncu,
        )
    )
    if is_recording(path):
        task = "module" if replay else "autotune" if arguments.max_autotune else "kernels"
        results.save(path, f"{task}-{time.strftime('%Y%m%d-%H%M%S')}", result)
    if arguments.json:
        rows = {name: {"median_ns": m, "share_of_device_time": s} for name, (m, s) in in_model.items()}
        print(
            msgspec.json.format(
                msgspec.json.encode({"measured": result, "in_model": rows}), indent=2
            ).decode()
        )
        return 0
    from kinetoscope.hardware.spec import find
    from kinetoscope.report.pages.console import standard_output
    from kinetoscope.report.verbs import autotuned, measured

    console = standard_output(widest=None)
    if arguments.max_autotune:
        autotuned.print_tuned(result, in_model, console)
    elif replay:
        for module in result.modules:
            measured.print_module(module, _categories([row.name for row in module.work]), result.ncu, console)
        measured.print_problems(result, console)
    else:
        measured.print_kernels(result, in_model, find(result.device), console)
    return 0


def _lines(path: Path) -> list[str]:
    from kinetoscope.errors import InputError

    try:
        return [line.strip() for line in path.read_text().splitlines()]
    except OSError as error:
        raise InputError(f"cannot read the configurations: {error.strerror}", where=str(path)) from error


def _profile(path: Path) -> Run | None:
    """The recording's traces; None for a folder of modules, and for a recording without a trace."""
    from kinetoscope.recording import manifest

    if not manifest.is_recording(path) or not any(rank.trace for rank in manifest.read(path).ranks):
        return None
    from kinetoscope.analysis.run import load

    return load(path)


def _in_model(run: Run) -> dict[str, tuple[float, float]]:
    """Kernel name → (median duration in ns, share of device time), most time first."""
    from kinetoscope.analysis.origins.sums import kernels

    table = kernels(run)
    return {
        str(name): (median, share)
        for name, median, share in table.select("kernel", "median_ns", "share_of_device_time").iter_rows()
    }


def _categories(names: list[str]) -> dict[str, str]:
    """The category of each piece of device work, by its name alone."""
    import polars as pl

    from kinetoscope.analysis.kernels.categories import classify

    series = pl.Series("name", names, pl.String)
    kind = pl.Series(
        [
            "memcpy" if n.startswith("Memcpy") else "memset" if n.startswith("Memset") else "kernel"
            for n in names
        ],
        dtype=pl.String,
    )
    unknown = pl.Series([None] * len(names), dtype=pl.String)
    never = pl.Series([False] * len(names), dtype=pl.Boolean)
    from kinetoscope.analysis.kernels import taxonomy

    under = {rule.under: never for rule in taxonomy.RULES if rule.under is not None}
    return dict(zip(names, classify(kind, series, never, unknown, under).cast(pl.String), strict=True))
