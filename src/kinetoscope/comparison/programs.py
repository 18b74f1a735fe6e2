"""Whether recordings are of one program: by its script, else by its outermost modules, else by its ops."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from pathlib import PurePath

import polars as pl

from kinetoscope.analysis.events.enclosing import nearest
from kinetoscope.analysis.events.rows import matching
from kinetoscope.analysis.events.torch_names import MODULE
from kinetoscope.analysis.memo import remembered
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.model import Trace

# Modules of torch that hold those of any program, and wrap them.
OF_ANY = {"Sequential", "ModuleList", "DataParallel", "DistributedDataParallel", "OptimizedModule"}
MOST = 0.5


def program(run: LoadedRun) -> str | None:
    """The script or module that was run, without its folder; None where the recording does not say."""
    return _script(run.manifest.command) or None if run.manifest else None


def _script(command: Sequence[str]) -> str:
    """The script or module of a command, without its folder: a base is often checked out elsewhere."""
    words = [*command]
    if "-m" in words[:-1]:
        return f"-m {words[words.index('-m') + 1]}"
    return next((PurePath(word).name for word in words if word.endswith(".py")), "")


def arguments(command: Sequence[str]) -> str | None:
    """The arguments of a program; None where the program is not known."""
    name = _script(command).removeprefix("-m ")
    place = next((i for i, word in enumerate(command) if name and PurePath(word).name == name), None)
    return None if place is None else shlex.join(command[place + 1 :])


def other_programs(base: LoadedRun, new: LoadedRun) -> str | None:
    """A sentence where two recordings are of different programs."""
    scripts = program(base), program(new)
    if all(scripts):
        same, named = scripts[0] == scripts[1], " and ".join(map(str, scripts))
        return None if same else f"they are different programs: {named}"
    one, other = _models(base), _models(new)
    if not one or not other or one & other:
        return None
    named = " and ".join(", ".join(sorted(models)) for models in (one, other))
    return f"they are different programs, by the modules that they call: {named}"


def unknown_program(base: LoadedRun, new: LoadedRun) -> str | None:
    """A sentence where it cannot be said whether two recordings are of one program: no script and no module
    of the program's own is in both, and their ops differ."""
    if all((program(base), program(new))) or _models(base) & _models(new):
        return None
    if (share := _shared(base, new)) == 1:
        return None
    return (
        "whether they are of one program cannot be said, since traces do not name their script: "
        f"{share:.0%} of their ops have the same names"
    )


def is_of_one_series(base: LoadedRun, new: LoadedRun) -> bool:
    """Whether two recordings are of one program, or as far as that is unknown, have most ops in common."""
    if other_programs(base, new):
        return False
    return unknown_program(base, new) is None or _shared(base, new) > MOST


def in_series(runs: Iterable[LoadedRun]) -> list[int]:
    firsts: list[LoadedRun] = []
    found: list[int] = []
    for run in runs:
        place = next((place for place, first in enumerate(firsts) if is_of_one_series(first, run)), None)
        if place is None:
            place = len(firsts)
            firsts.append(run)
        found.append(place)
    return found


def _models(run: LoadedRun) -> frozenset[str]:
    """The classes of the program's outermost modules that have others inside."""
    traces = (*run.traces, *run.lines.values())
    return frozenset[str]().union(*map(_models_of, traces)) - OF_ANY


@remembered
def _models_of(trace: Trace) -> frozenset[str]:
    host = trace.host_events
    is_module = matching(host, "name", f"^{MODULE}")
    around = nearest(host, is_module).gather(host["parent"]).filter(is_module)
    is_outermost = around.is_null()
    holders = host["id"].filter(is_module).filter(is_outermost).is_in(around.drop_nulls().implode())
    names = host["name"].filter(is_module).filter(is_outermost).filter(holders).cast(pl.String).unique()
    return frozenset(names.str.strip_prefix(MODULE).str.replace(r"_\d+$", ""))


def _shared(base: LoadedRun, new: LoadedRun) -> float:
    """The part of the ops of both recordings, each name once, that both call; 1 where both have none."""
    one, other = (frozenset[str]().union(*(_ops_of(trace) for trace in run.traces)) for run in (base, new))
    every = one | other
    return len(one & other) / len(every) if every else 1.0


@remembered
def _ops_of(trace: Trace) -> frozenset[str]:
    host = trace.host_events
    return frozenset(host["name"].filter(matching(host, "category", "^cpu_op$")).cast(pl.String).unique())
