"""The device waits while an op computes on the CPU.

What it finds
    CPU ops (a sort, a random mask, features of a signal, a large copy) that run in a launching thread while
    the device has nothing to do, each for longer than it takes to launch an op on the device.

Why it is slow
    The launching thread computes instead of launching. The same op on the device is often a hundred times
    faster.

How it decides
    Idle time of the cause ``host-op`` whose host event is an op that calls no runtime and takes longer than
    the median op that launches. Those of one function of the program, or all where no lines were recorded,
    are one finding. An op that launches work itself is loading its kernel, which is ``cold-start-step``'s.
    Where most of the idle time ends with copies to the device, silence before the same copies is a part of
    it, and what page-locked memory saves of them (``pageable-copy``), each if it takes less.

What to do
    Make its inputs on the device (``device="cuda"``), or do it in the data loader's workers ahead of time.
    Send a batch as it is, and convert and scale it on the device: bytes are a quarter of float32.

Source
    "Profiling in PyTorch", part 1: drill into the CPU lane under the gap.
"""

from kinetoscope.analysis.idle.causes import computing
from kinetoscope.analysis.idle.launches import launching_lanes
from kinetoscope.findings.rule import *
from kinetoscope.findings.rules.pageable_copy import prepared

CONVERTS = (
    r"^aten::(to|_to_copy|copy_|float|div_?|mul_?|sub_?|add_?|true_divide|clamp_?|permute|contiguous|clone)$"
)


def find(view: RankView) -> Findings:
    host = view.trace.host_events
    ops = computing(view.trace)["host_event"]
    idle = view.idle("host-op").filter(pl.col("host_event").is_in(ops.implode()))
    idle = idle.with_columns(op=host["name"][idle["host_event"]].cast(pl.String))
    if idle.is_empty():
        return
    # What one function of the program calls is fixed at once; without lines, all of it.
    places = {op: _place(view, op) for op in idle["host_event"].unique()}
    place = pl.col("host_event").replace_strict(places, return_dtype=pl.String)
    for _, group in idle.group_by(place.alias("place"), maintain_order=True):
        by_op = group.group_by("op").agg(pl.col("idle_ns").sum()).sort("idle_ns", "op", descending=True)
        names = by_op["op"].to_list()
        us = view.us_of(group, "idle_ns")
        if 2 * us * len(launching_lanes(view.trace)) < LOW * view.own_step_us:
            continue  # all threads' time in it is too little for any severity: no replay is needed
        converts = _are_sent(view, group)
        group = group.sort("idle_ns", descending=True)
        made = prepared(view, group, "the device's idle time during them", "unexplained")
        yield Finding(
            subject=names[0],
            title=f"The device waits while {', '.join(names[:2])}"
            f"{' and others' if len(names) > 2 else ''} {'compute' if names[1:] else 'computes'} on the CPU"
            + (" what is then sent to it" if converts or made.is_sent else ""),
            affected_us=us,
            saving=made.saving,
            evidence=evidence.of_gaps(view, group.head(3)),
            advice=(
                "Send it as it is (bytes are a quarter of float32); convert and scale it on the device"
                if converts
                else "Run it on the device, or ahead of time in another thread"
            )
            + f"{made.advice}.",
            snippet="x = x.to(device, non_blocking=True).float()  # and scaled there" if converts else None,
            source=evidence.source(view, group["host_event"]),
        )


def _place(view: RankView, op: int) -> str | None:
    """The function of the program that calls an op; of the script itself, or of stacks alone, the line."""
    line = evidence.source(view, pl.Series([op]))
    function = view.lines.rows["function"][op] if view.lines is not None else None
    if line is None or function in (None, "", "<module>"):
        return line
    return f"{line.rpartition(':')[0]} {function}"


def _are_sent(view: RankView, ops: pl.DataFrame) -> bool:
    """Whether most of this idle time goes into converting what the thread sends to the device next."""
    host = view.trace.host_events
    converting = ops.filter(pl.col("op").str.contains(CONVERTS))
    sent = view.kernels(r"^Memcpy HtoD")["launch"].drop_nulls()
    following = host.select("lane", next_ns="start_ns", sends=host["id"].is_in(sent.implode()))[
        view.launched["launch"]
    ]
    found = (
        converting.select(host["lane"][converting["host_event"]], "end_ns", "idle_ns")
        .sort("end_ns")
        .join_asof(
            following.sort("next_ns"),
            left_on="end_ns", right_on="next_ns", by="lane", strategy="forward", check_sortedness=False,
        )
    )  # fmt: skip
    return 2 * found.filter(pl.col("sends"))["idle_ns"].sum() > ops["idle_ns"].sum()
