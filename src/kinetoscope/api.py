"""The public API: ``load`` gives a ``Run``, whose methods are the command line's verbs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import MappingProxyType, NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, overload

from msgspec import Struct, structs, to_builtins

from kinetoscope import document, numbers
from kinetoscope.comparison.gates import Judgement
from kinetoscope.comparison.history import History
from kinetoscope.document import difference as differences
from kinetoscope.document.compilation import Compilation
from kinetoscope.errors import UsageError
from kinetoscope.sources import run as runs

if TYPE_CHECKING:
    import polars as pl


NONE: Mapping[str, float] = MappingProxyType({})


class Run(runs.LoadedRun, frozen=True, eq=False, dict=True):
    """One run of a program as it was recorded: every rank's trace, and whatever else is known of it.

    Methods that give tables give Polars frames. Their columns are those of the report's JSON, with the units
    in their names: ``_us`` is microseconds, ``share_of_…`` and ``…_fraction`` are fractions of one. What is
    computed for one answer is kept for the next.

    Args:
        traces: the tables as the files have them (``kinetoscope.trace.schema``), in integer nanoseconds.
        manifest: a recording's account of its program; None for a bare trace.
        compilation: the compile log, None without one. ``compilation.texts[0, "dynamo"].read()`` is a large
            text of frame 0: its graphs, guards, bytecode.
        folder: the recording; None for a bare trace.
        unread: the files of a folder that are no trace, and why.
        snapshots: files of the allocator's state, which ``memory()`` reads.
        inputs: the paths as they were given.
    """

    def __repr__(self) -> str:
        known = [
            numbers.count(len(self.traces), "trace"),
            numbers.count(sum(trace.source.events for trace in self.traces), "event"),
            numbers.count(sum(len(trace.steps) for trace in self.traces), "step"),
            *dict.fromkeys(device.name for trace in self.traces for device in trace.devices),
            *(["compile log"] if self.compilation else []),
        ]
        return f"<Run of {' '.join(self.inputs)}: {', '.join(known)}>"

    def report(self) -> document.Report:
        """Everything that a report shows, as one struct: the document that its JSON is written from."""
        return self._report

    def _repr_html_(self) -> str:
        """The report's page in a frame of its own: what a notebook shows of a run."""

        from kinetoscope.render.html import framed

        return framed(self.to_html())

    def show(self) -> None:
        """Print the report, as ``kinetoscope report`` does."""
        from kinetoscope.render.terminal import standard_output
        from kinetoscope.views import overview

        overview.show(self.report(), self.inputs, standard_output())

    @overload
    def to_html(self, path: None = None) -> str: ...
    @overload
    def to_html(self, path: str | Path) -> Path: ...
    def to_html(self, path: str | Path | None = None) -> str | Path:
        """The report as one HTML page that needs no network: written to a file, whose path is given, or as
        text where no path is named.

        Raises:
            UsageError: a file cannot be written there, or it would overwrite an input.
        """
        return self._written(path, ".html")

    @overload
    def to_json(self, path: None = None) -> str: ...
    @overload
    def to_json(self, path: str | Path) -> Path: ...
    def to_json(self, path: str | Path | None = None) -> str | Path:
        """The report as JSON, numbers not rounded; otherwise as ``to_html``."""
        return self._written(path, ".json")

    @overload
    def to_markdown(self, path: None = None) -> str: ...
    @overload
    def to_markdown(self, path: str | Path) -> Path: ...
    def to_markdown(self, path: str | Path | None = None) -> str | Path:
        """The report as Markdown; otherwise as ``to_html``."""
        return self._written(path, ".md")

    def kernels(self, by: str = "kernel", category: str | None = None) -> pl.DataFrame:
        """Device time, most first: launches, sum, share and quantiles.

        Args:
            by: what it is summed by: kernel, category, op, graph, step, stream, annotation, module, grid.
            category: only kernels of this one (pointwise, matmul, communication, …).

        Returns:
            ``name`` (of the kernel, category, op, …) and the columns of the report's ``kernels``: those from
            ``ops`` on (who launched it, bytes, FLOPs, speed of light) only where a row is a kernel.

        Raises:
            UsageError: nothing is summed by that, or no kernel is of that category.
        """
        from kinetoscope.document.collect import kernels

        rows = kernels.listing(self, by, category).rows
        if by != "kernel":
            return _frame(rows, document.ListingRow)
        table = _frame(kernels.kernels(self), document.KernelRow)
        return table if category is None else table.filter(category=category)

    def ops(self) -> pl.DataFrame:
        """The operators as torch's ``key_averages()`` counts them, most device time first."""
        from kinetoscope.document.collect import kernels

        return _frame(kernels.ops(self), document.OpRow)

    def steps(self) -> pl.DataFrame:
        """Every recorded step of every rank: when, how long, how busy its device, how many launches."""
        from kinetoscope.document.collect import steps

        return _frame(steps.steps(self), document.StepRow)

    def devices(self) -> pl.DataFrame:
        """Every device: how busy it was in the window of the recorded steps, and with what."""
        from kinetoscope.document.collect import devices

        return _frame(devices.devices(self), document.DeviceRow)

    def idle(self) -> pl.DataFrame:
        """Why each device was idle, longest first."""
        from kinetoscope.document.collect import devices

        return _frame(devices.idle(self), document.IdleRow)

    def table(self, name: str) -> pl.DataFrame:
        """Any table of the report: ``categories``, ``graphs``, ``step_times``, ``launching``, ``memory``, …

        Raises:
            UsageError: it has no table of that name; the message lists those it has.
        """
        tables = {
            field.name: row
            for field in structs.fields(document.Report)
            for row in get_args(field.type)
            if get_origin(field.type) is list and issubclass(row, Struct)
        }
        if name not in tables:
            raise UsageError(f"the report has no table {name!r}", hint=f"one of: {', '.join(tables)}")
        return _frame(getattr(self.report(), name), tables[name])

    def findings(self, after: Run | None = None) -> list[document.FindingRow]:
        """Findings, with what to change: those that save most first.

        Args:
            after: a run of the program with a change: its saving is given next to the prediction.

        Raises:
            InputError: one of them lacks what only recordings have: the time of steps without the profiler.
        """
        from kinetoscope.document.collect.findings import listing

        return listing(self, after).findings

    def graphs(self) -> Compilation | None:
        """The work of torch.compile, each piece with its time on the device; None without a compile log.

        Rows: ``frames``, ``graph_breaks``, ``recompilations``, ``failures``, ``graphs``, ``kernels``,
        ``source_lines``, … Device columns are null where the log comes without a trace. Without a log,
        ``table("graphs")`` has what the trace shows of compiled graphs.
        """
        if self.compilation is None:
            return None
        from kinetoscope.analysis.compiled.join import join
        from kinetoscope.document.collect.compilation import as_document

        has_events = any(trace.source.events for trace in self.traces)
        return as_document(self.compilation, join(self) if has_events else None)

    def chains(self, name: str, category: str | None = None) -> document.ChainListing:
        """How the kernels with ``name`` in their name (or that fit a pattern with * or ?) came about: step,
        annotation, ops, launch, kernel."""
        from kinetoscope.analysis.origins.dispatch import chains

        return chains(self, name, category)

    def memory(self) -> document.MemoryPeaks:
        """The owners of each device's memory at its peak, and what grows: of a recording with
        ``--memory``, a snapshot of torch's allocator, a memory timeline, or a trace.

        Raises:
            InputError: a snapshot is damaged.
        """
        from kinetoscope.document.collect.memory import listing

        return listing(self)

    def whatif(
        self,
        *,
        kernel: Mapping[str, float] = NONE,
        op: Mapping[str, float] = NONE,
        category: Mapping[str, float] = NONE,
        host: float | None = None,
        no_sync: bool = False,
        fuse: bool = False,
    ) -> document.WhatIfRow | None:
        """Replay the recorded steps as they were and with something changed: the step's time, its critical
        path, and what each change saves. None where nothing was recorded.

        Args:
            kernel, op, category: names or patterns, and the part of its time (0 to 1) that each takes:
                ``run.whatif(kernel={"*flash*": 0.5})``.
            host: the part of its time that the host takes.
            no_sync: no call waits for the device.
            fuse: chains of eager elementwise kernels are one kernel each.

        Raises:
            InputError: nothing has such a name.
        """
        from kinetoscope.analysis.replay import what_if
        from kinetoscope.document.collect.replay import what_if_listing

        asked = what_if.asked(
            kernel=kernel, op=op, category=category, host_factor=host, no_sync=no_sync, fuse=fuse
        )
        return what_if_listing(self, asked)

    def check(self, against: str | Path, *, fail_on: Sequence[str] = ()) -> list[Judgement]:
        """Judge the run by a baseline, as ``kinetoscope check`` does.

        Args:
            against: the baseline's file (see ``to_baseline``).
            fail_on: gates, as in ``"launches > 0"``; else any growth of exact counts, and of time and memory.

        Raises:
            InputError: there is no baseline, or it is damaged.
            UsageError: an expression is no gate.
        """
        from kinetoscope.comparison import baseline
        from kinetoscope.comparison.gates import parse

        return baseline.checked(self, baseline.read(Path(against)), [parse(text) for text in fail_on])

    def to_baseline(self, path: str | Path) -> Path:
        """Write the baseline that ``check`` takes, to be kept in a repository, and give its path.

        Raises:
            UsageError: a file cannot be written there, or it would overwrite an input.
        """
        from kinetoscope.comparison import baseline
        from kinetoscope.render import destination

        target = destination.check(Path(path), self.inputs)
        destination.write(target, baseline.render(baseline.of(self)).encode())
        return target

    def export(self, path: str | Path, to: Literal["perfetto", "parquet", "csv", "speedscope"]) -> Path:
        """Write the recording for another tool, as ``kinetoscope export`` does, and give the path: a folder
        for Parquet (a file a table), else a file.

        Raises:
            UsageError: nothing can be written there, or it would overwrite an input.
        """
        from kinetoscope.analysis.query import tables
        from kinetoscope.export import write
        from kinetoscope.render import destination

        target = Path(path)
        if to in ("parquet", "csv"):
            destination.make_folder(target)
            write.tables(tables(self), target, to, self.inputs)
        else:
            destination.write(destination.check(target, self.inputs), write.rendered(self, to, target))
        return target

    def query(self, sql: str) -> pl.DataFrame:
        """The rows that one SELECT (Polars' SQL) finds in the tables that ``kinetoscope query --tables``
        lists.

        Raises:
            UsageError: the statement cannot be run; the message says why.
        """
        from kinetoscope.analysis.query import query

        return query(self, sql)

    @cached_property
    def _report(self) -> document.Report:
        from kinetoscope.document.collect.report import build

        return build(self)

    def _written(self, path: str | Path | None, suffix: str) -> str | Path:
        """The report in the format of a suffix, in a file where one is named."""
        from kinetoscope.document.collect.page import with_page
        from kinetoscope.render import destination
        from kinetoscope.render.formats import FORMATS
        from kinetoscope.views import overview, page

        target = None if path is None else destination.check(Path(path), self.inputs)
        report = with_page(self, self._report) if suffix == ".html" else self._report
        text = FORMATS[suffix](overview.view(report, self.inputs, lambda: page.render(report, self.inputs)))
        if target is None:
            return text
        destination.write(target, text.encode())
        return target


class Diff(differences.Difference, frozen=True, kw_only=True):
    """Two runs compared, as ``kinetoscope diff --json`` has them; a notebook shows the comparison's page."""

    def __repr__(self) -> str:
        from kinetoscope.views.difference import headline

        return f"<{headline(self)}>"

    def _repr_html_(self) -> str:
        from kinetoscope.render.html import framed
        from kinetoscope.views.page import render_difference

        return framed(render_difference(self))

    def show(self) -> None:
        """Print it, as ``kinetoscope diff`` does."""
        from kinetoscope.render.terminal import standard_output
        from kinetoscope.views import difference

        difference.show(self, standard_output())


def diff(base: Run | str | Path, new: Run | str | Path, *, fail_on: Sequence[str] = ()) -> Diff:
    """Compare two runs: what changed, by how much, because of what. A notebook shows the comparison's page.

    Args:
        base, new: runs, or paths as ``kinetoscope diff`` takes them: folders of repeated recordings too.
        fail_on: gates, as in ``"launches > 0"``; those that fail are in ``failed``.

    Raises:
        InputError: a path cannot be used.
        UsageError: an expression is no gate.

    Warns with what is missing of a path's traces.
    """
    from kinetoscope.comparison.gates import parse
    from kinetoscope.document.collect.difference import compared

    return Diff(**structs.asdict(compared(base, new, [parse(text) for text in fail_on], page=True)))


def history(folder: str | Path) -> History:
    """The time of the step in the recordings, traces and reports of a folder, and where it changed.

    Raises:
        InputError: nothing in it can be read.
    """
    from kinetoscope.document.collect.history import gathered

    return gathered(Path(folder))


def load(*paths: str | Path, progress: runs.Progress | None = None) -> Run:
    """Read recordings, traces, compile logs or folders of them: together they are one run.

    Compile logs are joined to the traces next to them; alone they make a run whose trace is empty.
    Several recordings are taken for one run of several hosts: its ranks are those of all of them, its
    command, environment and measurements those of the first.

    Args:
        progress: called now and then with a trace's path, the bytes of it read so far, and its size.

    Raises:
        UsageError: no path is given.
        InputError: an input cannot be used; the message says why, and what to do.
    """
    if not paths:
        raise UsageError("there is nothing to load", hint='kinetoscope.load("trace.json.gz")')
    return Run(**structs.asdict(runs.load(*paths, progress=progress)))


def _frame(rows: Sequence[Struct], kind: type[Struct]) -> pl.DataFrame:
    """Rows of a document as a frame, whose columns have their types even where there is no row."""
    import polars as pl

    return pl.DataFrame(to_builtins(rows), {field.name: _dtype(field.type) for field in structs.fields(kind)})


def _dtype(kind: Any) -> pl.DataType:
    """The column type for values of a type that rows of a document are declared with."""
    import polars as pl

    if isinstance(kind, UnionType):
        (kind,) = set(get_args(kind)) - {NoneType}
    if get_origin(kind) in (list, tuple):
        return pl.List(_dtype(get_args(kind)[0]))
    if issubclass(kind, Struct):
        return pl.Struct({field.name: _dtype(field.type) for field in structs.fields(kind)})
    return {str: pl.String, int: pl.Int64, float: pl.Float64, bool: pl.Boolean}[kind]()
