"""Dynamo cut the function in pieces.

What it finds
    Graph breaks in the compile log: a call that Dynamo cannot trace (print, a library, a data-dependent
    branch).

Why it is slow
    Nothing is fused across the break, and the rest of the function is entered anew: guards, prologue and
    wrapper once more for each piece, on the host.

How it decides
    The breaks of the compile log, one finding for each place. The saving is the host time of the resumed
    pieces' entries in the recording (their regions' own time, before and after what they launch), and of the
    broken function's own where other compiled code calls it: whole, it is part of its caller, which is then
    entered once. Without a recording none is claimed. The evidence counts the launches that the break adds;
    they are not in the saving.

What to do
    Follow the log's hint: move the call out of the compiled function, wrap it in a custom op, use
    ``torch.cond`` or ``torch.where`` for the branch, ``torch._dynamo.config.capture_scalar_outputs`` for
    ``.item()``. With ``fullgraph=True`` a break is an error instead of a silence.

Source
    torch.compile troubleshooting, "Graph breaks"; ``kinetoscope graphs``.
"""

from kinetoscope.analysis.compiled.join import join
from kinetoscope.analysis.compiled.regions import entry_costs, region_around
from kinetoscope.compilation.breaks import RESUMED
from kinetoscope.compilation.model import CompiledProgram, GraphBreak
from kinetoscope.findings.rule import *


def find(view: RankView) -> Findings:
    joined = join(view.run) if view.first else None
    if joined is None:
        return
    gave_up = {failure.function for failure in blocked(view)}
    for number, row in enumerate(joined.compilation.graph_breaks):
        if row.skipped_frame and row.function in gave_up:
            continue  # no break, but the end of it: `frame-not-compiled`
        resumed = _resumed(view, joined.compilation, row)
        needless = pl.concat([resumed, _calling(view, joined.compilation, resumed)])
        place = evidence.at_line(row.file, row.line)
        entries = [f"{len(resumed)} entries of what follows"] if len(resumed) else []
        shown = "; ".join([row.explanation or row.reason, *entries, *_launches(row)])
        yield Finding(
            subject=f"{place} {number}",
            title=f"Graph break in {row.function or 'a compiled function'}: {row.reason.rstrip('.')}"
            + (f" ({row.count} times)" if row.count > 1 else ""),
            saving=_saving(view, needless),
            at_least="low",
            evidence=[evidence.of(view, shown, resumed)],
            advice=" ".join(["Take the call out of the compiled function.", *row.hints[:1]]),
            snippet="torch.compile(model, fullgraph=True)  # makes every break an error",
            source=place,
        )


def _launches(row: GraphBreak) -> Iterable[str]:
    """The launches that the break adds, over the recording."""
    kinds = (
        (row.eager_launches, "launched by Python between the pieces"),
        (row.graph_launches, "of one CUDA graph more"),
        (row.fusable_launches, "of kernels on either side that could have been one"),
    )
    added = [f"{number} {what}" for number, what in kinds if number]
    if added:
        yield f"{row.extra_launches} extra launches: {', '.join(added)}"


def _resumed(view: RankView, compilation: CompiledProgram, row: GraphBreak) -> pl.DataFrame:
    """The recorded entries of what follows the break, with ``cost_ns``."""
    rests = ((frame.compile_id, RESUMED.match(frame.function or "")) for frame in compilation.frames)
    marks = [compile_id for compile_id, rest in rests if rest and int(rest["line"]) == row.line]
    return view.inside(entry_costs(view.trace)).filter(pl.col("compile_id").is_in(marks))


def _calling(view: RankView, compilation: CompiledProgram, resumed: pl.DataFrame) -> pl.DataFrame:
    """The broken function's own entries, those that what follows was entered from, where other compiled code
    called them: it would hold the function if that were whole. All but the first of each call of that code,
    which is then entered for them."""
    around = region_around(view.trace).gather(view.trace.host_events["parent"])
    rests = [frame.compile_id for frame in compilation.frames if RESUMED.match(frame.function or "")]
    own = entry_costs(view.trace).with_columns(caller=around.gather(entry_costs(view.trace)["id"]))
    own = own.filter(
        pl.col("id").is_in(around.gather(resumed["id"]).implode()),
        pl.col("caller").is_not_null() & ~pl.col("compile_id").is_in(rests),
    )
    return own.filter(pl.int_range(pl.len()).over("caller") > 0).drop("caller")


def _saving(view: RankView, entries: pl.DataFrame) -> Saving:
    if entries.is_empty():
        return savings.nothing("not known: the recording shows no entry of what follows the break")
    share = (pl.col("cost_ns") / pl.col("duration_ns")).clip(0, 1)
    return savings.host(view, entries.with_columns(share=share), "host time of entering the pieces")
