"""The public API: ``load`` gives a ``Run``, which answers what the command line's verbs answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, get_args, get_origin

from msgspec import Struct, structs, to_builtins

from kinetoscope import document, numbers
from kinetoscope.analysis import run as runs
from kinetoscope.document import difference as differences
from kinetoscope.document.compilation import Compilation
from kinetoscope.errors import UsageError

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True, eq=False, repr=False)
class Run(runs.Run):
    """One run of a program as it was recorded: every rank's trace, and whatever else is known of it.

    Methods that give tables give Polars frames. Their columns are those of the report's JSON, with the units
    in their names: ``_us`` is microseconds, ``share_of_…`` and ``…_fraction`` are fractions of one. What is
    computed for one answer is kept for the next.

    Args:
        traces: the tables as the files have them (``kinetoscope.trace.schema``), in integer nanoseconds.
        manifest: what a recording says of its program; None for a bare trace.
        compilation: the compile log, None without one. ``compilation.texts[0, "dynamo"].read()`` is a large
            text of frame 0: its graphs, guards, bytecode.
        folder: the recording; None for a bare trace.
        unread: what stands in a folder of traces and is none, and why.
        inputs: the paths as they were given.
    """

    inputs: tuple[str, ...] = ()

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
        from kinetoscope.views.page import render

        return framed(render(self._document(".html"), self.inputs), scripts=True)

    def show(self) -> None:
        """Print the report, as ``kinetoscope report`` does."""
        from kinetoscope.render.terminal import standard_output
        from kinetoscope.views import overview

        overview.show(self.report(), self.inputs, standard_output())

    def to_html(self, path: str | Path) -> Path:
        """Write the report as one HTML page that needs no network, and give its path.

        Raises:
            UsageError: a file cannot be written there, or it would overwrite an input.
        """
        return self._write(path, ".html")

    def to_json(self, path: str | Path) -> Path:
        """Write the report as JSON, numbers not rounded; otherwise as ``to_html``."""
        return self._write(path, ".json")

    def to_markdown(self, path: str | Path) -> Path:
        """Write the report as Markdown; otherwise as ``to_html``."""
        return self._write(path, ".md")

    def kernels(self, by: str = "kernel", category: str | None = None) -> pl.DataFrame:
        """Device time, most first: launches, sum, share and quantiles.

        Args:
            by: what it is summed by: kernel, category, op, graph, step, stream, annotation, module.
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
            raise UsageError(f"the report has no table {name!r}", mend=f"one of: {', '.join(tables)}")
        return _frame(getattr(self.report(), name), tables[name])

    def findings(self, after: runs.Run | None = None) -> list[document.FindingRow]:
        """What is slow, why, and what to change: those that save most first.

        Args:
            after: a run of the program with a change: what it saved then stands beside what was predicted.

        Raises:
            InputError: one of them lacks what only recordings have: the time of steps without the profiler.
        """
        from kinetoscope.document.collect.findings import listing

        return listing(self, after).findings

    def graphs(self) -> Compilation | None:
        """What torch.compile did, each piece with its time on the device; None without a compile log.

        Rows: ``frames``, ``graph_breaks``, ``recompilations``, ``failures``, ``graphs``, ``kernels``,
        ``source_lines``, … Device columns are null where no trace stands beside the log. Without a log,
        ``table("graphs")`` has what the trace shows of compiled graphs.
        """
        if self.compilation is None:
            return None
        from kinetoscope.analysis.compiled.join import join
        from kinetoscope.document.collect.compilation import as_document

        has_events = any(trace.source.events for trace in self.traces)
        return as_document(self.compilation, join(self) if has_events else None)

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

    def _document(self, suffix: str) -> document.Report:
        if suffix != ".html":
            return self._report
        from kinetoscope.document.collect.page import with_page

        return with_page(self, self._report)

    def _write(self, path: str | Path, suffix: str) -> Path:
        from kinetoscope.render import destination
        from kinetoscope.render.formats import FORMATS
        from kinetoscope.views import overview, page

        target = destination.check(Path(path), self.inputs)
        report = self._document(suffix)
        view = overview.view(report, self.inputs, lambda: page.render(report, self.inputs))
        destination.write(target, FORMATS[suffix](view).encode())
        return target


class Difference(differences.Difference, frozen=True, kw_only=True):
    """Two runs beside each other, as ``kinetoscope diff --json`` has them; a notebook shows its page."""

    def _repr_html_(self) -> str:
        from kinetoscope.render.html import framed
        from kinetoscope.views.difference_page import render

        return framed(render(self), scripts=False)

    def __repr__(self) -> str:
        from kinetoscope.views.difference import headline

        return f"<{headline(self)}>"

    def show(self) -> None:
        """Print it, as ``kinetoscope diff`` does."""
        from kinetoscope.render.terminal import standard_output
        from kinetoscope.views import difference

        difference.show(self, standard_output())


def diff(
    base: runs.Run | str | Path, new: runs.Run | str | Path, *, fail_on: Sequence[str] = ()
) -> Difference:
    """What changed from one run to another, by how much, because of what.

    Args:
        base, new: runs, or paths as ``kinetoscope diff`` takes them: folders of repeated recordings too.
        fail_on: gates, as in ``"launches > 0"``; those that fail are in ``failed``.

    Raises:
        InputError: a path cannot be used.
        UsageError: an expression is no gate.
    """
    from kinetoscope.comparison.gates import parse
    from kinetoscope.document.collect.difference import compared

    found = compared(base, new, [parse(text) for text in fail_on], page=True)
    return Difference(**{field: getattr(found, field) for field in found.__struct_fields__})


def load(*paths: str | Path, progress: runs.Progress | None = None) -> Run:
    """Read recordings, traces, compile logs or folders of them: together they are one run.

    Compile logs are joined to whatever traces stand beside them; alone they make a run whose trace is empty.
    Several recordings are taken for one run of several hosts: its ranks are those of all of them, its
    command, environment and measurements those of the first.

    Args:
        progress: called now and then with a trace's path, the bytes of it read so far, and its size.

    Raises:
        UsageError: no path is given.
        InputError: an input cannot be used; the message says why, and what to do.
    """
    if not paths:
        raise UsageError("there is nothing to load", mend='kinetoscope.load("trace.json.gz")')
    run = runs.load(*paths, progress=progress)
    known = {field.name: getattr(run, field.name) for field in fields(run)}
    return Run(**known, inputs=tuple(map(str, paths)))


def _frame(rows: Sequence[Struct], kind: type[Struct]) -> pl.DataFrame:
    """Rows of a document as a frame, whose columns have their types even where there is no row."""
    import polars as pl

    return pl.DataFrame(to_builtins(rows), {field.name: _dtype(field.type) for field in structs.fields(kind)})


def _dtype(kind: Any) -> pl.DataType:
    """What holds values of a type that rows of a document are declared with."""
    import polars as pl

    if isinstance(kind, UnionType):
        (kind,) = set(get_args(kind)) - {NoneType}
    if get_origin(kind) in (list, tuple):
        return pl.List(_dtype(get_args(kind)[0]))
    if issubclass(kind, Struct):
        return pl.Struct({field.name: _dtype(field.type) for field in structs.fields(kind)})
    return {str: pl.String, int: pl.Int64, float: pl.Float64, bool: pl.Boolean}[kind]()
