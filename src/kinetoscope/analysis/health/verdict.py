"""How far a recording can be trusted, and what each weakness of it does to the numbers.

A check looks at one trace for one weakness and says how grave it is: ``info`` (worth knowing, the numbers
stand), ``degraded`` (some numbers miss a part that matters) or ``unreliable`` (the main ones may be wrong).
The gravest note gives the verdict. To add one, write a function and put it into ``CHECKS``; its limits stand
next to it with their reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec
import polars as pl

from kinetoscope import numbers
from kinetoscope.analysis.collectives.recorded import world_size
from kinetoscope.analysis.collectives.waiting import waiting
from kinetoscope.analysis.events import torch_names
from kinetoscope.analysis.events.makers import maker
from kinetoscope.analysis.events.rows import END, matching
from kinetoscope.analysis.health.rows import Health, Note
from kinetoscope.analysis.kernels import taxonomy
from kinetoscope.analysis.kernels.names import short_name
from kinetoscope.analysis.kernels.work import work
from kinetoscope.analysis.memo import remembered
from kinetoscope.analysis.passes.as_it_runs import as_it_runs
from kinetoscope.analysis.passes.samples import SampleTree
from kinetoscope.analysis.passes.whole_run import whole_run
from kinetoscope.analysis.time import intervals
from kinetoscope.analysis.time.busy import unanswered_launches
from kinetoscope.analysis.time.window import window
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.captures import is_capture
from kinetoscope.trace.damage import UNREADABLE_BYTES, counts_bytes, is_loss
from kinetoscope.trace.model import JOINED, RECORDER, Damage, JoinedExport, Trace
from kinetoscope.trace.schema import whole

INFO, DEGRADED, UNRELIABLE = "info", "degraded", "unreliable"
GRAVITY = [INFO, DEGRADED, UNRELIABLE]
NEVER = float("inf")
# Ops that no CPU has: aten::cudnn_is_acceptable is called for tensors of the CPU, too.
GPU_OPS = (
    r"^aten::(_cudnn_\w+|cudnn_(convolution|batch_norm|affine_grid|grid_sampler)\w*|miopen_\w+"
    r"|_thnn_fused_\w+|_(flash|efficient)_attention_\w+|_scaled_dot_product_(efficient|cudnn)_attention\w*"
    r"|_scaled_dot_product_flash_attention(_backward)?)$"
)
NOT_A_NAME = re.compile(r"[^0-9A-Za-z_]+")


def gravity(value: float, degraded: float, unreliable: float) -> str:
    return UNRELIABLE if value >= unreliable else DEGRADED if value >= degraded else INFO


def share_of(trace: Trace, rows: pl.DataFrame) -> float:
    """The part of the trace's device time that these device events have."""
    whole = int(trace.device_events["duration_ns"].sum())
    return int(rows["duration_ns"].sum()) / whole if whole > 0 else 0.0


DIED = "died-while-recording"
CAPTURE = "capture"
# Slow steps over quick ones, p90 over p10: beyond it the median says little of what a change would save.
UNEVEN = 1.5
TWOFOLD = 2.0  # from there on steps differ by so many times, not by percent


def of_the_run(run: LoadedRun) -> list[Note]:
    return [
        *_died(run),
        *_in_other_processes(run),
        *_ended(run),
        *_ranks_absent(run),
        *_first_collective(run),
        *_inflation(run),
        *_timed_otherwise(run),
        *_busy_machine(run),
        *_phases_not_recorded(run),
    ]


def _died(run: LoadedRun) -> list[Note]:
    """A process that a fault ended while the recorder was at work in it."""
    deaths = ((record.rank, record.died_recording()) for record in run.records)
    return [Note(DIED, DEGRADED, text, rank=rank) for rank, text in deaths if text is not None]


def _ended(run: LoadedRun) -> Iterable[Note]:
    """A program that was killed, or failed, or was over before it had settled, or never settled. One that was
    recorded whole and ended as it was to is as it was to be."""
    for record in run.records:
        how = "" if record.exit == "ok" else f" ({record.exit})"
        as_a_whole = record.steps.found_by in ("whole", "program")
        if record.trace is None or (as_a_whole and not how):
            continue
        if as_a_whole:
            text = f"the program ended before its time{how}: this is what it did until then"
            yield Note("ended", DEGRADED if record.steps.cold else INFO, text, rank=record.rank)
        elif record.steps.cold:
            text = (
                f"the program ended{how} before its steps had settled: these are its first, start-up and all"
            )
            yield Note("cold", DEGRADED, text, rank=record.rank)
        elif how:
            text = f"the program ended before its time{how}, after these steps had been recorded"
            yield Note("ended", INFO, text, rank=record.rank)
        if (passed := len(record.steps.warmup_s)) and not (record.steps.settled or record.steps.cold):
            text = (
                f"the time of a step had not settled after {passed} of them: these were recorded all the same"
            )
            yield Note("unsettled", INFO, text, rank=record.rank)


# The program's own time of which a process waits for others: then what it does itself is the lesser part.
WAITS_FOR_OTHERS = 0.5


def _in_other_processes(run: LoadedRun) -> Iterable[Note]:
    """A process that mostly waits, and has started others by multiprocessing: the work may be theirs."""
    for record in run.records:
        watched = run.watched.get(record.rank) if record.spawned else None
        if watched is None or record.steps.found_by == "request":  # a server waits for requests
            continue
        tree = SampleTree(watched)
        waiting_s = sum(
            sum(node.seconds) for number, node in enumerate(tree.nodes) if tree.does(number) == "waiting"
        )
        share = waiting_s / max(1e-9, watched.earlier_s + sum(sum(node.seconds) for node in tree.nodes))
        if share >= WAITS_FOR_OTHERS:
            text = (
                f"the program waits for {share:.0%} of its time, and has started processes by "
                "multiprocessing, which are not recorded: start them with torchrun, or put "
                "`with kinetoscope.profile():` around what they run"
            )
            yield Note("other-processes", DEGRADED, text, rank=record.rank)


# Of the run after its setup: a phase that takes so much is as worth a look as most findings.
LARGE_PHASE = 0.2
LESSER_PART = 0.5
LONGEST_NAME = 80


def _phases_not_recorded(run: LoadedRun) -> Iterable[Note]:
    """Parts of the whole run that the recorded steps say nothing of."""
    found = whole_run(run)
    if found is None:
        return
    setup = ("importing", "compiling", "setup")
    after_setup = 1 - sum(row.share for row in found.phases if row.kind in setup)
    lesser = found.steps_share_after_setup < LESSER_PART
    for row in found.phases:
        share = row.share / after_setup if after_setup > 0 else 0.0
        if row.kind == "other-steps" and share >= LARGE_PHASE:
            text = (
                f"{share:.0%} of the run after its setup is {_cut(row.title)}, of which none was recorded "
                "(`--warmup N` says after how many steps to record)"
            )
            yield Note("phase-not-recorded", DEGRADED if lesser else INFO, text, rank=found.rank)
        if row.kind == "phase" and share >= LARGE_PHASE:
            function = "" if row.first_line is not None else row.name.rpartition(".")[2]
            name = NOT_A_NAME.sub("_", function)[:40] or "part"
            mostly = f", mostly in {_cut(row.mostly_in)}" if row.mostly_in else ""
            text = (
                f"{share:.0%} of the run after its setup is in {_cut(row.title)}{mostly}, which is part of "
                f'no step: put it into torch.profiler.record_function("{name}") and record it with '
                f"`kinetoscope run --range {name} …`"
            )
            # The recorded steps' figures stand; what they promise is promised to a lesser part of the run.
            yield Note("phase-not-recorded", DEGRADED if lesser else INFO, text, rank=found.rank)
    if found.first_optimizer_after is not None:
        text = (
            f"an optimizer first stepped in {_cut(found.first_optimizer_after)}, after all was recorded: the "
            "recorded steps are none of training (`--warmup N` records later ones)"
        )
        yield Note("optimizer-not-recorded", DEGRADED, text, rank=found.rank)


def _cut(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}…"


def _ranks_absent(run: LoadedRun) -> list[Note]:
    size = max((world_size(trace) or 1 for trace in run.traces), default=1)
    if size <= len(run.traces):
        return []
    text = f"{len(run.traces)} of {size} ranks are here: how long collectives waited is an estimate"
    return [Note("ranks-absent", INFO, text)]


def _first_collective(run: LoadedRun) -> Iterable[Note]:
    """The first collective of a recording waits until every other rank's profiler has started."""
    for trace in run.traces:
        collectives = waiting(run).filter(pl.col("rank") == trace.rank).sort("start_ns")
        first, length = collectives.head(1), window(trace).length_ns
        waited = int(first["waiting_ns"].sum())
        # It must wait for ten times longer than the others do on average to be the profiler's doing.
        usual = whole(collectives["waiting_ns"].slice(1).mean())
        share = waited / max(length, 1)
        if len(collectives) < 3 or share < 0.01 or waited <= 10 * usual:
            continue
        text = (
            f"the first collective waited {waited / 1e6:,.2f} ms ({share:.1%} of the window), far longer "
            "than the others: the other ranks' profilers had not started; communication is overstated by it"
        )
        how = gravity(share, 0.05, 0.5)
        yield Note("first-collective-skew", how, text, share_of(trace, first), trace.rank)


def _inflation(run: LoadedRun) -> Iterable[Note]:
    for rank, own in as_it_runs(run).items():
        if own.inflation is None or own.recorded_us is None:
            continue
        factor = own.inflation
        longer = f"{factor - 1:+.0%}" if factor <= 2 else f"{factor:,.1f} times as long"
        text = (
            f"a step took {numbers.time(own.recorded_us)} with the profiler and {numbers.time(own.step_us)} "
            f"without ({longer}): host times and idle time are inflated, device times are not"
        )
        # Profiling an eager program costs 10 to 30 %; above a quarter, idle time says more of the profiler.
        if factor > 1.05:
            yield Note("profiling-inflation", gravity(factor, 1.25, NEVER), text, rank=rank)


def _timed_otherwise(run: LoadedRun) -> list[Note]:
    """The recorder's own remarks on how steps were timed: `kinetoscope run` said the same at its end."""
    return [
        Note("timed-otherwise", DEGRADED, text, rank=record.rank)
        for record in run.records
        for text in record.steps.notes
    ]


def _busy_machine(run: LoadedRun) -> list[Note]:
    """More that wanted to run than there are cores: what takes turns with the program is not in its trace."""
    environment = run.manifest.environment if run.manifest else None
    if environment is None or not environment.busy:
        return []
    load, cores = environment.load_average or 0.0, environment.cpu_count
    times = [own.timed.step for own in as_it_runs(run).values()]
    uneven = max((step.p90 / step.p10 for step in times), default=1.0)
    text = f"the machine was busy: a load of {load:.1f} on {cores} cores when the program began"
    if uneven > UNEVEN:
        apart = f"by {uneven - 1:.0%}" if uneven < TWOFOLD else f"up to {uneven:.0f}-fold"
        text += f"; its steps differ {apart}, and host times by as much"
    # The load is the whole machine's, the cores those the program may use: even steps show that it had them.
    return [Note("busy-machine", gravity(uneven, UNEVEN, NEVER), text)]


LISTED = 5  # names of unknown kernels, the longest
# A launch that has to put work on a device, as a copy of no bytes has not.
WORK_LAUNCH = f"{torch_names.KERNEL_LAUNCH}|{torch_names.GRAPH_LAUNCH}"


@remembered
def health(run: LoadedRun) -> Health:
    notes = [
        msgspec.structs.replace(note, rank=trace.rank)
        for trace in run.traces
        for check in CHECKS
        for note in check(trace)
    ]
    notes += of_the_run(run)
    gravest = max((note.gravity for note in notes), key=GRAVITY.index, default=INFO)
    # Above all that a weakness does to the numbers: the program itself was lost, perhaps because of us.
    notes.sort(key=lambda note: (note.code != DIED, -GRAVITY.index(note.gravity), -note.share_of_device_time))
    return Health("good" if gravest == INFO else gravest, notes)


def _damages(trace: Trace) -> list[Note]:
    return [Note(damage.code, _damage_gravity(trace, damage), damage.text) for damage in trace.source.damages]


def _damage_gravity(trace: Trace, damage: Damage) -> str:
    if damage.code in ("truncated", "missing-head", "several-traces"):  # how much is wrong cannot be known
        return DEGRADED
    if damage.code == UNREADABLE_BYTES:
        share = max(trace.source.lost_share, trace.source.lost_ns / max(window(trace).length_ns, 1))
    else:
        whole = trace.source.bytes if counts_bytes(damage.code) else trace.source.events
        share = damage.count / max(whole, 1)
    # Of what is lost, a part in a thousand changes no figure that is printed, and a part in twenty can turn a
    # ranking round. What was fixed is there.
    return gravity(share, 0.001, 0.05) if is_loss(damage.code) else gravity(share, 0.05, NEVER)


def _nothing_on_device(trace: Trace) -> list[Note]:
    if len(trace.device_events):
        return []
    host = trace.host_events
    if trace.source.events and any(damage.code == "truncated" for damage in trace.source.damages):
        text = "the file ends before any device work: whether there was some is not known"
        return [Note("no-device-events", UNRELIABLE, text)]
    if trace.source.events and matching(host, "category", "^(trace|overhead)$").all():
        text = "neither device work nor a host op or call was recorded: there is nothing to measure"
        return [Note("nothing-recorded", UNRELIABLE, text)]
    calls = int(matching(host, "name", WORK_LAUNCH).sum())
    if calls:
        text = f"no device event was recorded, though {calls:,} calls launched work: no device time is known"
        return [Note("no-device-events", UNRELIABLE, text)]
    of_gpus = host["name"].filter(matching(host, "name", GPU_OPS)).cast(pl.String)
    if len(of_gpus):
        text = (
            f"the GPU was not recorded, though {numbers.count(len(of_gpus), 'op')} that need one were called "
            f"(as {of_gpus[0]}): times are of calling ops, not of what they compute; record with "
            "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"
        )
        return [Note("no-device-events", UNRELIABLE, text)]
    return [Note("no-device-events", INFO, "nothing was launched on a device while this was recorded")]


def _no_host(trace: Trace) -> list[Note]:
    if not len(trace.device_events) or len(trace.host_events):
        return []
    text = (
        "no host event was recorded: device times stand, but no op, step or cause of idle time can be named"
    )
    return [Note("no-host-events", DEGRADED, text)]


def _unlaunched(trace: Trace) -> list[Note]:
    rows = trace.device_events.filter(
        pl.col("launch").is_null() & ~matching(trace.device_events, "name", torch_names.DMA)
    )
    if rows.is_empty() or trace.host_events.is_empty():
        return []
    first = trace.device_events["start_ns"].filter(trace.device_events["launch"].is_not_null()).min()
    before = rows.clear() if first is None else rows.filter(pl.col("start_ns") < first)
    origin = f", {len(before):,} of them before recording began" if len(before) else ""
    share = share_of(trace, rows)
    events, counts = numbers.count(len(rows), "device event"), "it counts" if len(rows) == 1 else "they count"
    how = "launched before recording began"
    if len(before) < len(rows):
        how = f"without a recorded launch{origin}"
    text = f"{events} ({share:.1%} of GPU time) {how}: {counts} as busy, but cannot be linked to an op"
    # A hundredth is what a table of ops rounds to; beyond a half, the tables by op speak of the lesser part.
    return [Note("device-work-without-launch", gravity(share, 0.01, 0.5), text, share)]


def _unanswered(trace: Trace) -> list[Note]:
    calls = unanswered_launches(trace)
    calls = calls.filter(matching(calls, "name", WORK_LAUNCH))
    if calls.is_empty() or not len(trace.device_events):
        return []
    launches = int(matching(trace.host_events, "name", WORK_LAUNCH).sum())
    share = len(calls) / launches
    text = (
        f"{len(calls):,} of {launches:,} kernel launches left no device event ({share:.1%}): buffers were "
        "dropped, or the recording ended before they ran; device time and busy time miss them"
    )
    # A few launches at a recording's end often have no kernel; a twentieth of them is missing device time.
    return [Note("launches-without-kernel", gravity(share, 0.001, 0.05), text)]


def _ambiguous(trace: Trace) -> list[Note]:
    """Ids that join launches to device work, and do not tell the launches of one process apart."""
    host = trace.host_events
    calls = host.select("lane", "correlation")
    calls = calls.filter((host["correlation"] != 0) & matching(host, "name", WORK_LAUNCH))
    if calls["correlation"].n_unique() == len(calls):
        return []
    of_process = calls.join(trace.lanes.select("pid", lane="id"), on="lane")
    shared = int(of_process.select(pl.struct("pid", "correlation").is_duplicated()).to_series().sum())
    if not shared or trace.device_events.is_empty():
        return []
    share = shared / len(calls)
    text = (
        f"{shared:,} of {len(calls):,} kernel launches share their correlation id with another launch of "
        f"their process ({share:.1%}): which op, module and step their kernels are of is a guess"
    )
    # No profiler writes one: a thousandth moves nothing in a table by op, a twentieth can turn it round.
    return [Note("ambiguous-launches", gravity(share, 0.001, 0.05), text)]


def _early(trace: Trace) -> list[Note]:
    called = trace.host_events["start_ns"][trace.device_events["launch"]]
    rows = trace.device_events.filter(trace.device_events["start_ns"] < called)
    if rows.is_empty():
        return []
    worst = whole((called - trace.device_events["start_ns"]).max())
    share = len(rows) / len(trace.device_events)
    text = (
        f"{len(rows):,} device events ({share:.1%}) start before their launch, by up to {worst / 1000:,.1f} "
        "µs: the clocks of host and device disagree, so launch latencies and causes of idle time are off by "
        "as much"
    )
    return [Note("early-kernels", gravity(share, 0.001, 0.05), text, share_of(trace, rows))]


def _unseen_before(trace: Trace) -> list[Note]:
    """Streams whose first recorded work, long launched, did not start though the device seems idle."""
    host, device, within = trace.host_events, trace.device_events, window(trace)
    firsts = device.unique(["device", "stream"], keep="first", maintain_order=True)
    returned = (host["start_ns"] + host["duration_ns"])[firsts["launch"]]
    waits = firsts.select("device", "name", pl.Series("from_ns", returned), to_ns="start_ns").drop_nulls()
    bounds = waits.select("device", start_ns="from_ns", end_ns="to_ns")
    bounds = bounds.with_columns(pl.col("start_ns", "end_ns").clip(within.start_ns, within.end_ns))
    busy = intervals.covered(intervals.union(work(trace), ["device"]), bounds, ["device"])
    idle = bounds["end_ns"] - bounds["start_ns"] - busy
    waits = waits.with_columns(share=idle / max(within.length_ns, 1)).filter(pl.col("share") >= 0.05)
    of_devices = waits.partition_by("device", maintain_order=True)
    return [note for own in of_devices for note in _of_waits(int(own["device"][0]), own)]


def _of_waits(number: int, waits: pl.DataFrame) -> Iterator[Note]:
    """A note on each of the longest waits of a device's streams."""
    for _, name, start, end, share in waits.top_k(LISTED, by="share").iter_rows():
        text = (
            f"device {number} started {short_name(name)}, the first work of its stream, "
            f"{(end - start) / 1e6:,.1f} ms after its launch and did nothing else that is recorded "
            f"({share:.1%} of the window): work from before the recording, or the profiler's own start, most "
            "probably kept it; busy time misses that"
        )
        # Kernels and ops stand; a twentieth of the window is more than busy time is read to.
        yield Note("unseen-work-before", DEGRADED, text)
    if len(waits) > LISTED:
        text = f"{len(waits) - LISTED:,} more streams of device {number} began as late"
        yield Note("unseen-work-before", DEGRADED, text)


def _impossible(trace: Trace) -> list[Note]:
    """Device events that last longer than everything else that was recorded, host and device together."""
    host = trace.host_events
    if host.is_empty() or trace.device_events.is_empty():
        return []
    length = whole((host["start_ns"] + host["duration_ns"]).max()) - whole(host["start_ns"].min())
    rows = trace.device_events.filter((pl.col("duration_ns") > length) | (pl.col("duration_ns") < 0))
    if rows.is_empty():
        return []
    share = share_of(trace, rows)
    text = (
        f"{len(rows):,} device events last longer than the recording: every figure that holds them is wrong"
    )
    return [Note("impossible-duration", UNRELIABLE, text, share)]


def _empty_steps(trace: Trace) -> list[Note]:
    if not len(trace.steps) or trace.device_events.is_empty():
        return []
    full = trace.device_events["step"].drop_nulls().unique()
    # The profiler leaves a sliver of a last step behind when it stops: a tenth of a step is none.
    sliver = pl.col("duration_ns") < 0.1 * pl.col("duration_ns").median()
    empty = trace.steps.filter(~pl.col("id").is_in(full.implode()) & ~sliver)
    if empty.is_empty() or full.is_empty():
        return []
    names = ", ".join(empty["name"].head(5).to_list())
    text = (
        f"{len(empty)} of {len(trace.steps)} steps have no device event ({names}): they idle in every figure "
        "of the window; the profiler most probably lost them"
    )
    return [Note("empty-steps", DEGRADED, text)]


def _profiler_overhead(trace: Trace) -> list[Note]:
    within = window(trace)
    host = trace.host_events
    events = host.select("name", "start_ns", END).filter(
        matching(host, "category", "^overhead$") & ~matching(host, "name", torch_names.NOT_OF_THE_PROFILER)
    )
    inside = intervals.clip(events, within.start_ns, within.end_ns)
    if inside.is_empty() or within.length_ns == 0:
        return []
    spent = intervals.total(intervals.union(inside))
    names = inside.group_by(pl.col("name").cast(pl.String)).len().sort("name").rows()
    listed = ", ".join(f"{count} × {name}" for name, count in names)
    share = spent / within.length_ns
    text = (
        f"the profiler itself stopped the host for {spent / 1e6:,.2f} ms of the window ({share:.1%}; "
        f"{listed}): idle time includes it"
    )
    # A run without the profiler does not have it: a twentieth of the window is more than most findings save.
    return [Note("profiler-overhead", gravity(share, 0.05, NEVER), text)]


def _overlap(trace: Trace) -> list[Note]:
    by = ["device", "stream"]
    table = work(trace).select(*by, "start_ns", "end_ns", "duration_ns")
    if table.is_empty():
        return []
    reached = pl.col("end_ns").cum_max().shift(1).over(by)
    rows = (
        table.sort(*by, "start_ns")
        .with_columns(both_ns=reached.clip(upper_bound="end_ns") - pl.col("start_ns"))
        .filter(pl.col("both_ns") > 0)
    )
    if len(rows) < 0.01 * len(table):  # the odd 32 ns is the clock's
        return []
    share = int(rows["both_ns"].sum()) / max(int(table["duration_ns"].sum()), 1)
    why = "programmatic dependent launch" if maker(trace) == "NVIDIA" else "its units work side by side"
    text = (
        f"{len(rows):,} device events start before the one ahead of them in their stream has ended ({why}); "
        f"{share:.2%} of device time is counted twice in sums, never in busy time"
    )
    return [Note("same-stream-overlap", gravity(share, 0.02, NEVER), text, share_of(trace, rows))]


def _unknown_families(trace: Trace) -> list[Note]:
    table = work(trace)
    rows = table.filter(matching(table, "category", f"^{taxonomy.OTHER}$"))
    if rows.is_empty():
        return []
    share = share_of(trace, rows)
    names = rows.group_by(pl.col("name").cast(pl.String)).agg(pl.col("duration_ns").sum())
    longest = names.sort("duration_ns", "name", descending=[True, False])["name"]
    listed = ", ".join(map(short_name, longest.head(LISTED)))
    more = f" and {len(longest) - LISTED} more" if len(longest) > LISTED else ""
    text = (
        f"{share:.1%} of device time is in kernels of an unknown family ({listed}{more}): they count as "
        f"compute, of category {taxonomy.OTHER}, and no advice is given on them"
    )
    return [Note("unknown-kernels", INFO, text, share)]


def _coarse_clock(trace: Trace) -> list[Note]:
    durations = trace.device_events["duration_ns"]
    # By chance, twenty events of a nanosecond clock all fall on whole microseconds once in 10^60 recordings.
    if len(durations) < 20 or bool((durations % 1000 != 0).any()):
        return []
    nothing = int((durations == 0).sum())
    text = (
        f"times are whole microseconds: {nothing:,} of {len(durations):,} device events last 0, short ones "
        "are off"
    )
    return [Note("coarse-clock", INFO, text)]


def _no_steps(trace: Trace) -> list[Note]:
    if len(trace.steps) or trace.host_events.is_empty():
        return []
    return [
        Note("no-steps", INFO, "no steps were recorded: the window is the whole recording, warm-up included")
    ]


def _of_nsys(trace: Trace) -> list[Note]:
    """Which process of an export of Nsight Systems it is, and what torch's profiler would add."""
    match trace.metadata.get(RECORDER):
        case {
            "name": str(name),
            "schema": str(schema),
            "lacks": str(lacks),
            "pid": int(pid),
            "processes": int(processes),
        }:
            pass
        case _:
            return []
    ops = "" if matching(trace.host_events, "category", "^cpu_op$").any() else "ops, "
    of = (
        f", one of {processes} that used a device: ranks are numbered by their devices"
        if processes > 1
        else ""
    )
    text = (
        f"recorded by {name} (process {pid}{of}): a trace of torch.profiler of the same program, "
        f"named in addition, adds {ops}modules, lines, the allocator's memory and FLOPs"
    )
    notes = [Note("recorded-by-nsys", INFO, text)]
    if lacks:
        text = (
            f"the export (schema {schema or 'unknown'}) has no {lacks}: that layout is not known, and what "
            "these columns would say is missing below"
        )
        notes.append(Note("unknown-export", UNRELIABLE, text))
    return notes


def _joined(trace: Trace) -> list[Note]:
    """How far what was recorded by Nsight Systems is of the same work."""
    found = trace.metadata.get(JOINED)
    if not isinstance(found, JoinedExport):
        return []
    text = (
        f"joined with {found.path}: {found.matched:,} of {found.compared:,} pieces of device work "
        f"({found.matched / found.compared:.1%}) are the same in the same order, and their starts agree to "
        f"{numbers.time(found.apart_ns / 1000)} (median) once the clocks are fitted; it adds "
        f"{found.graph_nodes:,} nodes of graphs and {found.ranges:,} NVTX ranges"
    )
    return [Note("joined-with-nsys", INFO, text)]


def _of_a_capture(trace: Trace) -> list[Note]:
    if not is_capture(trace):
        return []
    text = (
        "this is a recording of CUDA graphs being captured and of what warmed up to it, and holds no steps. "
        "Record steps after the graphs are captured, and read both together: this one names what runs "
        "inside the graphs there"
    )
    return [Note(CAPTURE, UNRELIABLE, text)]


CHECKS: tuple[Callable[[Trace], list[Note]], ...] = (
    _of_nsys,
    _joined,
    _of_a_capture,
    _damages,
    _nothing_on_device,
    _no_host,
    _unlaunched,
    _unanswered,
    _ambiguous,
    _early,
    _unseen_before,
    _impossible,
    _empty_steps,
    _profiler_overhead,
    _overlap,
    _unknown_families,
    _coarse_clock,
    _no_steps,
)


# Notes that say that device work was launched and is not in the recording.
OF_DEVICE_WORK = ("no-device-events", "launches-without-kernel")
# Damages of compile logs that take records away.
OF_LOGS = {
    "cut": "the compile log ends within a record",
    "bad-json": "records of the compile log are damaged",
}


def losses(run: LoadedRun) -> tuple[str, ...]:
    """Sentences on what was lost, the traces' own damage first; empty where nothing is known to be."""
    damages = ((trace.source, damage) for trace in run.traces for damage in trace.source.damages)
    found = [f"{Path(one.path).name}: {damage.text}" for one, damage in damages if is_loss(damage.code)]
    notes = (note for note in health(run).notes if note.code in OF_DEVICE_WORK)
    found += [note.text for note in notes if note.gravity != INFO]
    found += run.lost
    for log in run.compilation.sources if run.compilation else ():
        words = (text for code, text in OF_LOGS.items() if code in log.damages)
        found += [f"{Path(log.path).name}: {text}" for text in words]
    return tuple(dict.fromkeys(found))
