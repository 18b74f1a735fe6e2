"""The device waits between two steps of a server for the host.

What it finds
    Idle time of the device between a step that generates tokens and the next one, and behind logits that went
    to the host to be sampled there, by what the host does meanwhile: schedule, prepare inputs, sample,
    detokenise, copy.

Why it is slow
    Each token takes as long as from one step to the next. What the host does between two steps, all requests
    of the batch wait for, however fast the kernels are.

How it decides
    Gaps of the device between the last work of a step and the first of the next, of steps that a serving
    engine marks (or that calls or launches tell) as decode, mixed or verify, without waiting for other ranks.
    The host's scopes, functions and ops say what it did. A copy to the host of more than a kilobyte a
    request is of logits, not of tokens.

What to do
    Let the host do its work for the next step while the device works: asynchronous scheduling
    (vLLM ``--async-scheduling``; SGLang's and TensorRT-LLM's overlap scheduler, which are on unless they are
    switched off). Sample on the device and copy tokens alone. Detokenise in another process, or every few
    tokens. Of a server of one's own: launch the next step before the tokens of the last are read.

Source
    vLLM, ``--async-scheduling``; SGLang, "zero-overhead batch scheduler"; TensorRT-LLM, overlap scheduler.
"""

from kinetoscope.analysis.serving.client import GENERATES
from kinetoscope.analysis.serving.host import OTHER, waiting
from kinetoscope.analysis.serving.steps import marks, own, steps
from kinetoscope.analysis.serving.worked import on_host
from kinetoscope.findings.rule import *
from kinetoscope.trace.engines import engine_step

# Of these the host has no part, or another rule has them.
NOT_THE_HOST = ["start-or-end", "between-kernels", "waiting-for-rank", "unexplained"]
LOGITS = 1024  # bytes of a copy to the host, a request: tokens are eight
BASIS = "the idle time between steps, or the device's work if that is less: the host does this meanwhile"
ADVICE = {
    "schedule": "Schedule the next step while the device works on this one{}.",
    "prepare inputs": "Keep the inputs in buffers on the device and update what changes; prepare them while "
    "the device works on the step before.",
    "sample": "Sample on the device and copy the tokens alone; penalties and grammars too.",
    "detokenise": "Detokenise in another process or thread, while the device works on the next step.",
    "copies": "Copy the tokens into page-locked memory without blocking, and read them one step later.",
    OTHER: "Launch the next step before the results of this one are handled: its tokens can stay on the "
    "device{}.",
}
DOES = {
    "schedule": "it schedules",
    "prepare inputs": "it prepares inputs",
    "sample": "it samples",
    "detokenise": "it detokenises",
    "copies": "it copies",
    OTHER: "its scopes do not say what it does",
}
OVERLAPPED = {
    "vLLM": "--async-scheduling",
    "SGLang": "without --disable-overlap-schedule",
    "TensorRT-LLM": "without disable_overlap_scheduler",
}


def find(view: RankView) -> Findings:
    if on_host(view.trace) or marks(view.trace).table.is_empty():
        return
    table = steps(view.trace).filter(pl.col("phase").is_in(GENERATES) & ~pl.col("warming"))
    phase = table.select("step", "phase")
    if table.is_empty():
        return
    idle = waiting(view.run).filter(
        pl.col("rank") == view.rank,
        pl.col("step").is_in(table["step"].implode()),
        ~pl.col("cause").is_in(NOT_THE_HOST) | pl.col("silent"),
    )
    sampled = _behind_logits(view, table, idle)
    idle = idle.with_columns(activity=pl.when(sampled).then(pl.lit("sample")).otherwise("activity"))
    idle = idle.filter(pl.col("between") | sampled).join(phase, on="step", maintain_order="left")
    for (activity,), group in idle.group_by("activity", maintain_order=True):
        each = int(group["idle_ns"].sum()) / 1000 / len(table)
        longest = group.sort("idle_ns", descending=True).head(3)
        phases = group.group_by("phase", maintain_order=True).agg(pl.col("idle_ns").sum())
        yield Finding(
            subject=str(activity),
            title=f"Between two steps the device waits {numbers.time(each)} for the host: "
            + DOES[str(activity)],
            affected_us=view.us_of(group, "idle_ns"),
            saving=_saving(view, str(activity), group),
            evidence=[
                Evidence(
                    f"idle {numbers.time(ns / 1000)} ({cause})", start / 1000, end / 1000
                )
                for start, end, ns, cause in longest.select(
                    "start_ns", "end_ns", "idle_ns", "cause"
                ).iter_rows()
            ],
            advice=ADVICE[str(activity)].format(asked(view, OVERLAPPED)),
            by_phase={phase: ns / whole(group["idle_ns"].sum()) for phase, ns in phases.iter_rows()},
        )  # fmt: skip


def _saving(view: RankView, activity: str, idle: pl.DataFrame) -> Saving:
    """All of it where the work goes away; where the device works meanwhile, no more than that takes."""
    names = view.trace.steps["name"]
    if names.is_empty() or engine_step(names[0]) is None:
        return savings.idle(view, idle, BASIS)
    # What is between an engine's steps is of none of those that a replay takes.
    us = view.us_of(idle, "idle_ns")
    if activity == "sample":
        return savings.unreplayed(view, us, "the idle time, if the device samples")
    return savings.unreplayed(view, min(us, view.busy_us), BASIS)


def _behind_logits(view: RankView, table: pl.DataFrame, idle: pl.DataFrame) -> pl.Series:
    """Which idle time follows a copy of logits to the host, with no work between."""
    work = own(view.trace).join(table.select("step", "requests"), on="step", how="left")
    large = pl.col("bytes") >= LOGITS * pl.col("requests").fill_null(1)
    ends = work.select(
        "end_ns",
        logits=(matching(work, "name", "DtoH") & work.select(large).to_series()).fill_null(False),
    ).sort("end_ns")
    found = idle.select("start_ns").with_row_index("row").sort("start_ns")
    found = found.join_asof(ends, left_on="start_ns", right_on="end_ns", check_sortedness=False)
    return found.sort("row")["logits"].fill_null(False)
