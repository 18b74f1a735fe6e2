"""From which line of the program each op was called: another step's ops, with their lines, laid over it.

Lines are noted in a step of their own (``LoadedRun.lines``). Where a recorded step calls the same ops in the
same order on a thread, each op is the one that stands at its place there; what differs has no line. Nothing
else is compared: the same ops called from elsewhere in the same order have the same lines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import polars as pl
from msgspec import Struct

from kinetoscope.analysis.events.enclosing import nearest, outermost
from kinetoscope.analysis.events.rows import END, matching
from kinetoscope.analysis.events.torch_names import CLOCK, LIBRARY_FRAME, MODULE
from kinetoscope.analysis.memo import remembered
from kinetoscope.analysis.passes.match import SIMILAR, aligned
from kinetoscope.analysis.time import intervals
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.model import Trace

# Between what Python's trace function notes and the op that follows lies more than this: two calls.
EXACT_NS = 500
SILENT_NS = 50_000  # without an op for so long, it is noted in which line the time passed
AGREE = 0.9  # of the events that both clocks timed
WITHIN = " › "  # a module of another
FRAME = r"^(.*)\((\d+)\): (.*)$"  # train.py(12): step


class OpLines(Struct, frozen=True, eq=False):
    """The lines of one rank's ops."""

    # one row for each of ``host_events``: ``line`` (``train.py:12``), ``function`` (``step``) and ``module``
    # (the class), of the innermost op around it; ``modules``, the classes of all modules around it (``GPT ›
    # Layer › Attention``); ``before``, the line in which most of the time passed since the thread's last op
    # (``train.py:10 step``), where that is 50 µs or more; ``noted``, the row of the step with lines that it
    # stands for; null where they are not known
    rows: pl.DataFrame
    verified: float  # the share of the recorded steps' ops that stand at their place in the step with lines

    def line(self, row: int | None) -> str | None:
        """The line from which the op around a row of ``host_events`` was called."""
        return None if row is None else self.rows["line"][row]

    @property
    def texts(self) -> pl.DataFrame:
        """``line`` (as ``train.py:12 step``), ``module`` and ``modules`` of each of ``host_events``."""
        return self.rows.select(
            pl.concat_str("line", "function", separator=" ").alias("line"), "module", "modules"
        )


@remembered
def op_lines(run: LoadedRun) -> Mapping[int, OpLines]:
    return {
        trace.rank: found
        for trace in run.traces
        if (noted := run.lines.get(trace.rank)) is not None and (found := _laid_over(trace, noted))
    }


def lines_by_stack(trace: Trace) -> pl.Series:
    """The innermost line of the program around each row of ``host_events`` (``train.py:12 step``), where
    Python's functions were recorded with the ops; null elsewhere."""
    host = trace.host_events
    own = matching(host, "category", "^python_function$") & matching(host, "name", FRAME)
    own &= ~matching(host, "name", LIBRARY_FRAME)
    if not own.any():
        return pl.Series([None], dtype=pl.String).new_from_index(0, len(host))
    return texts_of_frames(host["name"][nearest(host, own)])


def texts_of_frames(names: pl.Series) -> pl.Series:
    """``train.py:12 step`` of frames ``src/train.py(12): step``."""
    frame = names.cast(pl.String).str.extract_groups(FRAME).struct
    file = frame.field("1").str.split("/").list.last()
    return pl.select(pl.format("{}:{} {}", file, frame.field("2"), frame.field("3"))).to_series()


def _laid_over(trace: Trace, noted: Trace) -> OpLines | None:
    """The lines of a step laid over the recorded ones; None where their clock cannot be trusted."""
    if not _clocks_agree(noted):
        return None
    host, around = noted.host_events, _ops_in_steps(noted)
    is_python = matching(host, "category", "^python_function$")
    is_module = is_python & matching(host, "name", f"^{MODULE}")
    lines = host.filter(is_python & ~is_module & ~matching(host, "name", f"^{CLOCK}"))
    rows = {"line_row": _open_at(host, lines), "module_row": nearest(host, is_module)}
    known = pl.DataFrame(
        _pairs(_ops_in_steps(trace), around), {"id": pl.UInt32, "noted": pl.UInt32}, orient="row"
    )
    name = host["name"].cast(pl.String)
    frame = name.gather(rows["line_row"]).str.extract_groups(FRAME).struct
    called = pl.DataFrame(
        {
            "line": pl.select(pl.concat_str(frame.field("1"), frame.field("2"), separator=":")).to_series(),
            "function": frame.field("3"),
            "module": name.gather(rows["module_row"]).str.strip_prefix(MODULE),
            "modules": _nested(host, is_module).gather(rows["module_row"]),
        }
    ).with_row_index("noted")
    called = called.join(_before(around, host, lines), on="noted", how="left", maintain_order="left")
    own = trace.host_events.select("id").join(known, on="id", how="left", maintain_order="left")
    own = own.join(called, on="noted", how="left", maintain_order="left").drop("id")
    innermost = nearest(trace.host_events, matching(trace.host_events, "category", "^cpu_op$"))
    return OpLines(own.select(pl.all().gather(innermost)), len(known) / max(len(_ops_in_steps(trace)), 1))


def _open_at(host: pl.DataFrame, lines: pl.DataFrame) -> pl.Series:
    """The line that each event begins in. Lines follow each other, and annotations cross them."""
    began = host.select("id", "lane", "start_ns").sort("start_ns")
    lines = lines.select("lane", "start_ns", line_row="id", ends=END).sort("start_ns")
    found = began.join_asof(lines, on="start_ns", by="lane", check_sortedness=False)
    is_open = pl.col("ends") > pl.col("start_ns")
    return found.select("id", line_row=pl.when(is_open).then("line_row")).sort("id")["line_row"]


def _nested(host: pl.DataFrame, is_module: pl.Series) -> pl.Series:
    """Classes of all modules around each module's call and its own, the outermost first; null for others."""
    around = nearest(host, is_module).gather(host["parent"])
    own = host["name"].cast(pl.String).str.strip_prefix(MODULE)
    modules = pl.DataFrame({"path": own, "around": around}).select(
        pl.when(is_module).then(column).alias(column) for column in ("path", "around")
    )
    path, around = modules["path"], modules["around"]
    while around.count():
        outer = own.gather(around)
        path = pl.select(pl.coalesce(pl.concat_str(outer, path, separator=WITHIN), path)).to_series()
        around = modules["around"].gather(around)
    return path


def _before(ops: pl.DataFrame, host: pl.DataFrame, lines: pl.DataFrame) -> pl.DataFrame:
    """The line in which most of a pause before an op passed, for it and those inside it: (noted, before)."""
    times = host.select("id", "start_ns", ends=pl.col("start_ns") + pl.col("duration_ns"))
    ops = ops.join(times, on="id", maintain_order="left").with_columns(
        outermost=pl.when("is_outermost").then("id").forward_fill().over("lane")
    )
    pauses = (
        ops.filter("is_outermost")
        .with_columns(since=pl.col("ends").shift(1).over("lane"))
        .filter(pl.col("start_ns") - pl.col("since") >= SILENT_NS)
        .select("outermost", "lane", "since", until="start_ns")
    )
    frame = pl.col("name").cast(pl.String).str.extract_groups(FRAME).struct
    spent = pl.min_horizontal("ends", "until") - pl.max_horizontal("start_ns", "since")
    longest = (
        pauses.join(lines.select("lane", "start_ns", "name", ends=END), on="lane")
        .filter(pl.col("start_ns") < pl.col("until"), pl.col("ends") > pl.col("since"))
        .group_by("outermost", "name")
        .agg(spent=spent.sum())
        .sort("spent", "name", descending=[True, False])
        .unique("outermost", keep="first", maintain_order=True)
        .select("outermost", before=pl.format("{}:{} {}", *(frame.field(str(at)) for at in (1, 2, 3))))
    )
    return ops.join(longest, on="outermost").select("before", noted="id")


def _clocks_agree(noted: Trace) -> bool:
    """Whether events that Python's clock and the profiler's timed are where both say."""
    clock = noted.host_events.filter(matching(noted.host_events, "name", f"^{CLOCK}")).sort("start_ns")
    is_python = matching(clock, "category", "^python_function$")
    outer, inner = clock.filter(is_python), clock.filter(~is_python)
    if len(outer) != len(inner) or outer.is_empty():
        return False
    early = outer["start_ns"] - EXACT_NS
    late = outer["start_ns"] + outer["duration_ns"] + EXACT_NS
    inside = (inner["start_ns"] >= early) & (inner["start_ns"] <= late)
    return inside.sum() >= AGREE * len(inside)


def _ops_in_steps(trace: Trace) -> pl.DataFrame:
    """Ops that begin in a step: (id, lane, step, name, is_outermost), each thread's in order."""
    host = trace.host_events
    is_op = matching(host, "category", "^cpu_op$")
    ops = host.select("id", "lane", "start_ns", "name", is_outermost=outermost(host, is_op)).filter(is_op)
    found = intervals.beginning_in(ops, trace.steps.select("start_ns", END, step="id")).sort("lane", "id")
    return found.select("id", "lane", "step", pl.col("name").cast(pl.String), "is_outermost")


def _pairs(ours: pl.DataFrame, noted: pl.DataFrame) -> Iterator[tuple[int, int]]:
    """Ops of the recorded steps, and the op of the step with lines that each is."""
    codes: dict[tuple[str, ...], int] = {}
    threads = [_OutermostOps(*thread, codes) for thread in _by_thread(noted)]
    for thread in _by_thread(ours):
        own = _OutermostOps(*thread, codes)
        other = own.most_similar(threads)
        if other is None:
            continue
        for place, there in aligned(own.codes, other.codes):
            same = own.ids[slice(*own.ranges[place])], other.ids[slice(*other.ranges[there])]
            yield from zip(*same, strict=True)


def _by_thread(ops: pl.DataFrame) -> list[tuple[list[int], list[str], list[bool]]]:
    grouped = ops.group_by("step", "lane", maintain_order=True).agg("id", "name", "is_outermost")
    return grouped.select("id", "name", "is_outermost").rows()


class _OutermostOps:
    """One thread's outermost ops in one step."""

    def __init__(
        self,
        ids: Sequence[int],
        names: Sequence[str],
        outermost: Sequence[bool],
        codes: dict[tuple[str, ...], int],
    ) -> None:
        self.ids = ids  # rows of ``host_events`` of all its ops
        starts = [place for place, is_outermost in enumerate(outermost) if is_outermost]
        # from which of ``ids`` to which each outermost op and those inside of it are
        self.ranges = list(zip(starts, [*starts[1:], len(names)], strict=True))
        # a number for each outermost op; the same for the same name and the same names inside of it
        self.codes = tuple(codes.setdefault(tuple(names[a:b]), len(codes)) for a, b in self.ranges)

    def most_similar(self, threads: Sequence[_OutermostOps]) -> _OutermostOps | None:
        """The thread that has most of these ops; None where none has enough of them."""
        counted = Counter(self.codes)
        shares = [(counted & Counter(other.codes)).total() for other in threads]
        most = max(shares, default=0)
        return threads[shares.index(most)] if most >= SIMILAR * max(len(self.codes), 1) else None
