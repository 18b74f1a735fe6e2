"""The program works on the device's results on the CPU, and the device waits for it.

What it finds
    Results that are read from the device, and what Python, NumPy or another library does with them before the
    program launches again: metrics, word error rates, decoding of heat maps, logging, a loop over elements
    that reads each of them by itself; a state that is saved, tensor by tensor.

Why it is slow
    Reading a result empties the device's queue. Whatever the program computes of it then comes on top of the
    step, in one thread of the CPU.

How it decides
    Reads are copies from the device. Four or more in a row, with no more than a few short kernels in between,
    are a loop, unless it could compute all at once (``looped-ops``). After any other read, silences of the
    launching thread of 50 µs or more count until anything is launched again; after a megabyte or more all
    time until then, and the copy. A silence that ends with 64 KiB or more copied to the device is
    ``unexplained-idle``'s, unless the program's source shows that its lines work on what was read. Of a loop
    in training all goes, elsewhere all but its first read; of silences, from 3 % of the step on. A thread of
    a program that does not train may as well wait for requests: then nothing is promised, unless it is the
    main one or samples show that it never waits.

What to do
    Compute it on the device and copy what comes out (64 × 17 coordinates, not the heat maps); read all
    results with one copy and loop over that; score and log every fiftieth step; answer requests with bytes,
    not with lists of numbers; or hand the copy to another thread and launch the next step first. Record with
    ``--stacks`` to see which line it is.

Source
    PyTorch performance tuning guide, "Avoid unnecessary CPU-GPU synchronization".
"""

from kinetoscope.analysis.events.enclosing import running
from kinetoscope.analysis.events.rows import END
from kinetoscope.analysis.events.torch_names import (
    BARRIER,
    COMPILATION,
    DATA_LOADER,
    DATA_LOADER_FRAME,
    GARBAGE_COLLECTION,
    OPTIMIZER,
    SYNCHRONIZATION,
)
from kinetoscope.analysis.memo import remembered
from kinetoscope.analysis.origins.results import result_lines
from kinetoscope.findings.in_force import trains
from kinetoscope.findings.program_lines import never_waits, waits_at
from kinetoscope.findings.rule import *
from kinetoscope.findings.rules.anomaly_detection import in_checks
from kinetoscope.findings.rules.looped_ops import LoopedOps, looped, outside_of_loops
from kinetoscope.findings.rules.pageable_copy import travelling

LOOP = 4  # reads in a row
# The most that is launched between two reads of a loop: what a read computes first, and no pass of a model.
BETWEEN, BETWEEN_NS = 8, 50_000
SILENCE_NS = 50_000  # eager Python takes 5 to 30 µs between two ops
LARGE = 1 << 20  # bytes: results that the device should work on
PREPARED = 1 << 16  # bytes: more than a few environments' states, of which the program asks for each in turn
NOTED = {"read": "start_ns", "after": "end_ns", "next": "start_ns", "sender": "start_ns"}
ASKS = r"^aten::(item|_local_scalar_dense|is_nonzero|equal|to|_to_copy|copy_|clone)$"
LBFGS = r"^Optimizer\.step#LBFGS"
OTHERS = "|".join((DATA_LOADER, DATA_LOADER_FRAME, OPTIMIZER, COMPILATION, BARRIER, GARBAGE_COLLECTION))
A_STATE = 16 << 20  # bytes that a loop reads: no results, but what a checkpoint holds
SCORE_RARELY = "If it scores or logs, do it every fiftieth step; at the least read all with one copy."
SAVE_RARELY = "Save less often and into one file, or in another thread, from a copy of the state."
HISTORY = "L-BFGS reads a factor for each pair of its history: make that shorter (history_size=10)."
ONE_COPY = "values = torch.stack(values).tolist()  # one copy of all"
STACKS = " Record with --stacks: it names the line."


def find(view: RankView) -> Findings:
    yield from _looped(view)
    yield from _silent(view)


def _looped(view: RankView) -> Findings:
    loops = _own(view)
    if loops.is_empty():
        return
    host, device = view.trace.host_events, view.trace.device_events
    launched = host.select("id", "lane", "start_ns")[device["launch"].drop_nulls().unique().sort()]
    gone = device.filter(device["launch"].is_in(_inside(launched, loops).implode()))
    change = without_host(loops) | no_wait(_waits_in(view, loops)) | shorten(gone["id"], gone["duration_ns"])
    saving = savings.of(view, change, "the steps without these loops, as most are where they run rarely")
    reads, size = int(loops["reads"].sum()), int(loops["bytes"].sum())
    saves = size >= A_STATE * len(loops)
    longest = loops.sort("reads", descending=True)
    source = evidence.source(view, longest["read"])
    around = view.around(LBFGS).gather(longest["read"].head(1))
    rarely = SAVE_RARELY if saves else HISTORY if around.is_not_null().all() else SCORE_RARELY
    row = f"{reads / len(loops):.0f} in a row"
    took = numbers.time(view.us_of(loops, "loop_ns"))
    takes = f"{took} per {view.unit} in which the device does next to nothing"
    yield Finding(
        subject="loop",
        title=f"The program copies {numbers.size(view.per_step(size))} to the host by tensors, {row}, "
        f"as where it saves its state: {takes}"
        if saves
        else f"The program reads results one by one, {row}: {takes}",
        saving=saving,
        evidence=[evidence.of(view, f"{reads} reads in a row", host[longest["read"].head(1)])],
        advice=rarely + ("" if source else STACKS),
        snippet=ONE_COPY if rarely == SCORE_RARELY else None,
        source=source,
    )


def _own(view: RankView) -> pl.DataFrame:
    """The loops over results that are not ``looped-ops``'s; all of those that it knows in some steps alone,
    because what their passes call differs from step to step."""
    marks = view.trace.steps.select("start_ns", step="id").sort("start_ns")
    loops = _loops(view).sort("start_ns").join_asof(marks, on="start_ns", check_sortedness=False)
    loops = loops.with_columns(place=pl.int_range(pl.len()).over("step"))
    own = outside_of_loops(view, loops)
    if loops.group_by("step").len()["len"].n_unique() > 1:
        return own
    return loops.filter(pl.col("place").is_in(own["place"].implode()))


def _silent(view: RankView) -> Findings:
    quiet = worked_on(view).with_row_index("id")
    # A loop over results is a part where more time passes after it.
    of_loops = pl.col("id").is_in(_inside(quiet, _loops(view)).implode())
    sign = pl.when(of_loops).then(-1).otherwise(1)
    quiet = quiet.filter((sign * pl.col("duration_ns")).sum().over("lane", "turn") > 0)
    if view.us_of(quiet) / view.step_us < MEDIUM:
        return
    copies = _copied(view, quiet)
    change = without_host(quiet) | shorten(copies["id"], copies["duration_ns"] - FIXED_NS)
    loops = _filling(view, copies)
    for one in loops:
        change |= one.saving.change
    basis = "the steps without the silence after reading results"
    saving = savings.of(view, change, basis if copies.is_empty() else f"{basis}, and without copying them")
    if saving.share < MEDIUM:
        return
    host = view.trace.host_events
    longest = quiet.sort("duration_ns", descending=True)
    source = _line(view, longest.head(1))
    serves = not (trains(view) or on_the_main_thread(view, longest["read"]) or never_waits(view))
    if serves := serves or waits_at(view, source) is not None:
        saving = savings.not_predicted(saving, "the thread may wait for requests")
    size, op = int(longest["bytes"][0]), host["name"][longest["read"][0]]
    what = f"{numbers.size(size)} that {op} copied" if size >= LARGE else f"what {op} read"
    copying = f", after {numbers.time(view.us_of(copies))} of copying"
    also = f" (what the loop at {loops[0].line} does, at once)" if loops else ""
    where = copying if len(copies) else " in Python, NumPy or another library"
    yield Finding(
        subject="silence",
        title=f"The device waits while the program works on {what} from it: "
        f"{numbers.time(view.us_of(quiet))} per {view.unit}{where}"
        + (", or waits for requests" if serves else ""),
        saving=saving,
        at_least="info",
        evidence=[evidence.of(view, f"after {op}, which read results", host[longest["read"].head(3)])],
        advice=(
            "If it waits in a queue for more requests, answer those that are there; if it computes, do that "
            "in another thread."
            if serves
            else f"Compute it on the device{also}, and copy what comes out."
            if size >= LARGE
            else "If it scores or logs, do it every fiftieth step, on the device, or in another thread; "
            + (
                ""
                if trains(view)
                else "if it answers requests, do so with bytes, not with lists of numbers; "
            )
            + "step several environments at once."
        )
        + ("" if source else STACKS),
        source=source,
    )


def _copied(view: RankView, worked_on: pl.DataFrame) -> pl.DataFrame:
    """The copies of the large results that the program then works on."""
    large = worked_on.filter(pl.col("bytes") >= LARGE)
    reads = _calls(view).filter("read", "asks").join(large, on=["lane", "turn"], how="semi")
    work = view.launched_during(reads.with_columns(duration_ns=pl.col("end_ns") - pl.col("start_ns")))
    return work.filter(matching(work, "name", "^Memcpy DtoH"))


def _filling(view: RankView, copies: pl.DataFrame) -> list[LoopedOps]:
    """The loops of small kernels that ``looped-ops`` knows which fill what these copies bring."""
    known, lines = result_lines(view.run).get(view.rank), view.lines
    if known is None or lines is None:
        return []
    reads = lines.rows["line"].gather(copies["op"].drop_nulls()).unique().drop_nulls()
    return [
        one for one in looped(view) if any(known.fills(line, read) for line in one.lines for read in reads)
    ]


def _line(view: RankView, silence: pl.DataFrame) -> str | None:
    """The line of the program in which a silence passes."""
    host = view.trace.host_events
    ends = silence.select("lane", pl.col("start_ns") + pl.col("duration_ns"))
    following = running(host, ends)[0]
    if view.lines is not None and following is not None and (line := view.lines.rows["before"][following]):
        return str(line).split(" ")[0]
    middle = silence.select("lane", pl.col("start_ns") + pl.col("duration_ns") // 2)
    return evidence.source(view, running(host, middle))


def on_the_main_thread(view: RankView, ops: pl.Series) -> bool:
    """Whether most of these (rows of ``host_events``) are of the thread with the process's number."""
    lanes = view.trace.host_events["lane"].gather(ops.drop_nulls())
    if lanes.is_empty():
        return True
    lane = view.trace.lanes.row(whole(lanes.mode().min()), named=True)
    return bool(lane["pid"] == lane["tid"])


@remembered
def worked_on(view: RankView) -> pl.DataFrame:
    """The ``silences`` in which the program works on what it read: those that end with a copy to the device
    where its lines say so, and the copy sends nothing that was made of it, unless it was large."""
    silent, prepares = silences(view), pl.col("sends") >= PREPARED
    results, ahead = silent.filter(~prepares), silent.filter(prepares)
    known, lines = result_lines(view.run).get(view.rank), view.lines
    if known is None or lines is None:
        return results
    noted = view.run.lines[view.rank].host_events.select("start_ns", END)
    read, after, following, sender = (
        noted[column].gather(lines.rows["noted"].gather(ahead[call])) for call, column in NOTED.items()
    )
    works, sends = known.work(read, after, following), known.work(read, sender, sender + 1)
    return pl.concat([results, ahead.filter(works & ((ahead["bytes"] >= LARGE) | ~sends))])


@remembered
def silences(view: RankView) -> pl.DataFrame:
    """The times in which a launching thread ran no op between a read and the next launch, or after much that
    it read launched nothing: ``lane``, ``start_ns``, ``duration_ns``; the op that read (row of
    ``host_events``), the ``turn`` of reads that it is one of, and their ``bytes`` until then; the calls
    ``after`` which it was and the ``next``; and how many bytes the thread ``sends`` to the device before it
    launches anything else, from which call on (``sender``)."""
    calls, asked = _calls(view), pl.col("read") & pl.col("asks")
    ends = calls.filter(~asked & (pl.col("launches") | pl.col("read"))).select(ended_ns="start_ns")
    read = pl.when(asked).then("bytes").otherwise(0).cum_sum().over("lane", "turn")
    last = [
        pl.when(asked).then(column).forward_fill().over("lane").alias(name)
        for name, column in (("by", "id"), ("read_ns", "end_ns"), ("of", read))
    ]
    # Of what follows much that was read ops take the host as well.
    since = pl.when(~asked & (pl.col("of") >= LARGE)).then("start_ns").otherwise("end_ns")
    return (
        calls.with_columns(
            *last, next=pl.col("id").shift(-1).over("lane"), next_ns=pl.col("start_ns").shift(-1).over("lane")
        )
        .drop_nulls(["by", "next_ns"])
        .sort("read_ns")
        .join_asof(ends.sort("ended_ns"), left_on="read_ns", right_on="ended_ns", strategy="forward")
        .with_columns(until_ns=pl.min_horizontal("next_ns", "ended_ns"), since_ns=since)
        .select(
            "lane",
            "turn",
            start_ns="since_ns",
            duration_ns=pl.col("until_ns") - pl.col("since_ns"),
            read="by",
            bytes="of",
            after="id",
            next="next",
        )
        .filter(pl.col("duration_ns") >= pl.when(pl.col("bytes") >= LARGE).then(1).otherwise(SILENCE_NS))
        .sort("start_ns")
        .join_asof(_sent(view), on="start_ns", by="lane", strategy="forward", check_sortedness=False)
        .with_columns(pl.col("sends").fill_null(0))
    )


def _sent(view: RankView) -> pl.DataFrame:
    """Each launch of the threads (``lane``, ``start_ns``; ``sender``) with the bytes that it and those after
    it copy to the device until something else is launched (``sends``)."""
    host = view.trace.host_events
    sends = matching(view.work, "name", "^Memcpy HtoD").alias("copies")
    launches = view.work.select("launch", "bytes", sends).drop_nulls("launch")
    launches = host.select("lane", "start_ns")[launches["launch"]].hstack(launches).sort("lane", "start_ns")
    run = pl.struct("lane", "copies").rle_id().alias("run")
    sent = pl.when("copies").then(pl.col("bytes").fill_null(0)).otherwise(0)
    return (
        launches.with_columns(run)
        .select("lane", "start_ns", sender="launch", sends=sent.cum_sum(reverse=True).over("run"))
        .sort("start_ns")
    )


@remembered
def _calls(view: RankView) -> pl.DataFrame:
    """``view.called``, and what other rules are about, with what each call does: whether it is a ``read``,
    one that a program ``asks`` for, and ``launches`` anything else; the ``bytes`` that it reads; the number
    (``work``) and time (``work_ns``) of what it launches; reads of one ``turn`` have no other launch between
    them."""
    host = view.trace.host_events
    reads = matching(view.work, "name", "^Memcpy DtoH").alias("read")
    reads &= ~in_checks(view.trace).gather(view.work["launch"]).fill_null(False)
    reads &= ~view.work["id"].is_in(travelling(view)["id"].implode())
    work = view.work.select("launch", "duration_ns", "bytes", reads).drop_nulls("launch")
    called = view.called if work["read"].any() else host.clear().with_columns(END)  # nothing read, no loop
    calls = called.select("id", "lane", "start_ns", "end_ns", asks=matching(called, "name", ASKS))
    each = host.select("lane", "start_ns")[work["launch"]].hstack(work.drop("launch")).sort("start_ns")
    begun = calls.select("lane", "start_ns", "id").sort("start_ns")
    found = each.join_asof(begun, on="start_ns", by="lane", check_sortedness=False)
    other = ~pl.col("read")
    by_call = found.drop_nulls("id").group_by("id").agg(
        pl.col("read").any(),
        launches=other.any(),
        bytes=pl.col("bytes").filter("read").sum(),
        work=other.sum(),
        work_ns=pl.col("duration_ns").filter(other).sum(),
    )  # fmt: skip
    calls = calls.join(by_call, on="id", how="left").with_columns(
        pl.col("read", "launches").fill_null(False), pl.col("bytes", "work", "work_ns").fill_null(0)
    )
    others = view.inside(view.host(OTHERS))
    others = others.filter(pl.col("lane").is_in(calls["lane"].unique().implode())).select(
        "id",
        "lane",
        "start_ns",
        END,
        asks=False,
        read=False,
        launches=True,
        work=pl.lit(BETWEEN + 1, pl.UInt32),
    )
    return (
        pl.concat([calls, others], how="diagonal")
        .with_columns(pl.col("bytes", "work_ns").fill_null(0))
        .sort("lane", "start_ns")
        .with_columns(turn=(pl.col("launches") & ~pl.col("read")).cum_sum().over("lane"))
    )


@remembered
def _loops(view: RankView) -> pl.DataFrame:
    """Each loop over results: ``lane``, ``start_ns``, ``end_ns``, ``duration_ns``, what it takes after its
    first read, which waits for all that was launched before (``loop_ns``), how many ``reads`` it makes, of
    how many ``bytes``, and the first (``read``, row of ``host_events``). Whoever serves has to read: there, a
    loop begins after its first read."""
    # Autograd launches a backward from a thread of its own: what all threads launch is between two reads.
    until = pl.col("work", "work_ns").cum_sum() - pl.col("work", "work_ns")
    reads = _calls(view).sort("start_ns").with_columns(until).filter("read").sort("lane", "start_ns")
    reads = reads.with_columns(pl.col("work", "work_ns").diff().over("lane"))
    near = (pl.col("work") <= BETWEEN) & (pl.col("work_ns") <= BETWEEN_NS)
    return (
        reads.with_columns(loop=(~near.fill_null(False)).cum_sum())
        .group_by("lane", "loop", maintain_order=True)
        .agg(
            (pl.col("start_ns") if trains(view) else pl.col("end_ns").alias("start_ns")).first(),
            pl.col("end_ns").last(),
            loop_ns=pl.col("end_ns").last() - pl.col("end_ns").first(),
            reads=pl.len(),
            read=pl.col("id").first(),
            bytes=pl.col("bytes").sum(),
        )
        .filter(pl.col("reads") >= LOOP)
        .with_columns(duration_ns=pl.col("end_ns") - pl.col("start_ns"))
    )


def waits_of_loops(view: RankView) -> pl.Series:
    """The synchronising calls (rows of ``host_events``) of loops over results."""
    return _waits_in(view, _loops(view))


def _waits_in(view: RankView, loops: pl.DataFrame) -> pl.Series:
    host = view.trace.host_events
    waits = host.select("id", "lane", "start_ns").filter(matching(host, "name", SYNCHRONIZATION))
    return _inside(waits, loops)


def _inside(events: pl.DataFrame, loops: pl.DataFrame) -> pl.Series:
    """The events (``id``, ``lane``, ``start_ns``) that begin in a loop."""
    bounds = loops.select("lane", "start_ns", "end_ns")
    return intervals.beginning_in(events.select("id", "lane", "start_ns"), bounds, ["lane"])["id"]
