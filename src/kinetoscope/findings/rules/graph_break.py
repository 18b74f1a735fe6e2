"""Dynamo cut the function in pieces.

What it finds
    Graph breaks in the compile log: a call that Dynamo cannot trace (print, a library, a data-dependent
    branch).

Why it is slow
    Nothing is fused across the break, and the rest of the function is entered anew: guards, prologue and
    wrapper once more for each piece, on the host.

How it decides
    The breaks of the compile log, one finding for each place. The saving is the host's time on the way into
    each piece of compiled code that follows, from the last launch before to the first in it, less what
    usually lies between two launches of one graph, and with the waiting for what the program reads there; in
    the backward pass the time of the piece's node around its launches. Without a recording none is claimed.
    The evidence counts the launches that the break adds; they are not in the saving.

What to do
    Follow the log's hint: move the call out of the compiled function, wrap it in a custom op, use
    ``torch.cond`` or ``torch.where`` for the branch. For ``.item()``, hand over a number that is known
    before: with ``torch._dynamo.config.capture_scalar_outputs`` the break goes, but the host still waits, and
    code for sizes that are not known may be slower. With ``fullgraph=True`` a break is an error instead of a
    silence.

Source
    torch.compile troubleshooting, "Graph breaks"; ``kinetoscope graphs``.
"""

from kinetoscope.analysis.compiled.break_costs import Crossing, crossing
from kinetoscope.analysis.compiled.join import join
from kinetoscope.analysis.compiled.regions import pieces
from kinetoscope.compilation.breaks import RESUMED
from kinetoscope.compilation.model import CompiledProgram, GraphBreak
from kinetoscope.findings.rule import *

OURS = "kinetoscope/capture/"  # what a recording hooks into the program, which does not have it
TAKE_OUT = "Take the call out of the compiled function."
# What the log advises of these, `capture_scalar_outputs`, takes the break away and leaves the waiting.
READS = (
    "The host reads a value from the device here, and waits for it: hand over a number that is known before, "
    "or leave what depends on it to the device (torch.where, torch.clamp)."
)


def find(view: RankView) -> Findings:
    joined = join(view.run) if view.first else None
    if joined is None:
        return
    gave_up = {failure.function for failure in blocked(view)}
    entered = _of_breaks(view, joined.compilation)
    for number, row in enumerate(joined.compilation.graph_breaks):
        if row.skipped_frame and row.function in gave_up:
            continue  # no break, but the end of it: `frame-not-compiled`
        if OURS in (row.file or ""):
            continue
        rest = entered.filter(pl.col("row") == number)
        way = crossing(view.trace, rest)
        place = evidence.at_line(row.file, row.line)
        entries = [f"{len(rest)} entries of what follows"] if len(rest) else []
        shown = "; ".join([row.explanation or row.reason, *entries, *_launches(row)])
        yield Finding(
            subject=f"{place} {number}",
            title=f"Graph break in {row.function or 'a compiled function'}: {row.reason.rstrip('.')}"
            + (f" ({row.count} times)" if row.count > 1 else ""),
            saving=_saving(view, way),
            at_least="low",
            evidence=[evidence.of(view, shown, rest)],
            advice=READS if len(way.waits) else " ".join([TAKE_OUT, *row.hints[:1]]),
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


def _of_breaks(view: RankView, compilation: CompiledProgram) -> pl.DataFrame:
    """The recorded ``pieces`` with the ``row`` of the break that each is due to. Dynamo names what follows a
    break after its line. A broken function that other compiled code calls is around what follows in it."""
    lines = {row.line: number for number, row in reversed(list(enumerate(compilation.graph_breaks)))}
    rests = {frame.compile_id: RESUMED.match(frame.function or "") for frame in compilation.frames}
    known = {
        id_: lines[int(rest["line"])] for id_, rest in rests.items() if rest and int(rest["line"]) in lines
    }
    found = view.inside(pieces(view.trace)).sort("lane", "start_ns")
    row = pl.col("compile_id").replace_strict(known, default=None, return_dtype=pl.UInt32)
    found = found.with_columns(row=row)
    inside = found.drop_nulls("row").unique("around", keep="first").select(id="around", of_rest="row")
    return found.join(inside, on="id", how="left", maintain_order="left").with_columns(
        row=pl.coalesce("row", "of_rest").forward_fill().over("lane")
    )


def _saving(view: RankView, way: Crossing) -> Saving:
    if way.host.is_empty():
        return savings.nothing("not known: the recording shows no entry of what follows the break")
    change = without_host(way.host) | no_wait(way.waits)
    return savings.warm(view, savings.of(view, change, "the host's time between the pieces"))
