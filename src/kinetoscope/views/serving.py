"""Steps of serving engines: by phase, batch and graph mode, and what each step's time went to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kinetoscope import numbers
from kinetoscope.document import Serving, ServingClient, ServingFinding, ServingLayer, ServingPart, ServingRow
from kinetoscope.render import names
from kinetoscope.render.blocks import *

SEEN = 0.01  # waiting that is less of a step is not worth a table
KNOWN = 0.5  # a rate is said of a part where it is known of so much of its time
HIDDEN = 0.97  # a step whose device is busy for less is not hidden from the host
GRAPHS = {"full": "one graph", "piecewise": "pieces", "eager": "no graph"}
ENGINES = {
    "vllm": "vLLM", "sglang": "SGLang", "tensorrt-llm": "TensorRT-LLM", "atom": "ATOM", "xdit": "xDiT",
    "transformers": "transformers", "diffusers": "diffusers", "unknown": "a server",
}  # fmt: skip
FOUND_BY = {
    "calls": "No engine marks these steps: each is a call of the model, with what is launched until the "
    "next one.",
    "graphs": "No engine marks these steps: they are found by the launches of graphs that recur, and begin "
    "where the host pauses longest between two launches.",
    "kernels": "No engine marks these steps: they are found by the launches of kernels that recur, and begin "
    "where the host pauses longest between two of them.",
}
PHASES_BY = {
    "annotation": "",
    "shapes": "What they are, prefill or decode, the shapes of what they compute tell.",
    "names": "What they are, the names of the program's ranges and functions say.",
    "": "Whether they are prefill or decode is unknown: no shapes were recorded (--shapes) that tell.",
}
ON_HOST = "medians, by the host's clock: no device was recorded; work is PyTorch's ops"
SUBJECTS = {"mixed": "Prefill with decode", "verify": "Verification", "draft": "Drafting"}
PARTS = {
    "moe": "experts and routing",
    "matmul": "matrix products",
    "normalization": "norms, rotary, quantization",
    "copy": "copies",
}


def section(
    found: Serving | None,
    most: int,
    *,
    whole: bool = True,  # with what the host does meanwhile, and the layers
    summed: bool = True,  # with ``summary``, which nothing above it says
    of_rank: int | None = None,  # the rank whose steps these are, where there are others
) -> Iterable[Block]:
    """The table of a server's steps, a sentence on each phase, and what the steps are made of; of several
    ranks that of the first."""
    if found is None:
        return
    rows = found.steps
    shown = rows[: most or len(rows)]
    many, followed = len({row.rank for row in rows}) > 1, any(row.period_us for row in rows)
    basis = ON_HOST if found.on_host else "medians; work counted with the step that launched it"
    basis = basis if of_rank is None else f"of rank {of_rank}; {basis}"
    yield Heading(f"Steps of {ENGINES.get(found.engine, found.engine)}", basis)
    columns = [
        field("rank", "count", "rank") if many else None,
        field("phase", "text", _phase),
        field("batch", "text", _batch),
        None if found.on_host else field("graph", "text", lambda row: GRAPHS[row.graph_mode]),
        field("steps", "text", _steps),
        field("period", "time", lambda row: row.period_us and row.period_us.median) if followed else None,
        field("p90", "time", lambda row: row.period_us and row.period_us.p90) if followed else None,
        field("work", "time", "span_us"),
        field("busy", "share", lambda row: row.busy_us / row.span_us if row.span_us else 0.0),
        field("idle", "time", lambda row: _idle(row, between=False)),
        field("between", "time", lambda row: _idle(row, between=True)) if followed else None,
        field("tokens/s", "count", _rate),
        _counted(rows, "requests", "requests"),
        _counted(rows, "tokens", "query_tokens"),
        _counted(rows, "KV tokens", "kv_tokens"),
        field("ops" if found.on_host else "kernels", "count", lambda row: round(row.kernels)),
        None if found.on_host else field("launches", "count", lambda row: round(row.launches)),
    ]
    leave = ("launches", "kernels", "requests", "tokens", "p90", "KV tokens", "idle", "between")
    yield table(rows, *columns, most=most, noun="kind of step", leave=leave)
    if found.found_by in FOUND_BY:
        yield Prose(f"{FOUND_BY[found.found_by]} {PHASES_BY[found.phases_by]}", "dim")
    first = [row for row in shown if row.rank == shown[0].rank]
    if summed:
        yield Prose(summary(found, most or len(rows)))
    yield from changes(found, most)
    if found.client is not None:
        yield from client(found.client)
    yield from parts(first)
    yield from host(first) if whole else ()
    for row in first if whole else ():
        if row.layer is not None:
            yield from layer(row, row.layer, most)


def leads(found: Serving | None) -> bool:
    """Whether a report begins with ``summary``, instead of how busy its devices are: its phases are known."""
    return found is not None and bool(found.phases_by)


def summary(found: Serving, most: int) -> str:
    """A sentence on each kind of step of the first rank, those with most time first."""
    first = found.steps[0].rank
    many = any(row.rank != first for row in found.steps)
    own = [row for row in found.steps if row.rank == first][:most]
    said = (sentence(row, on_host=found.on_host) for row in own)
    return (f"Rank {first}: " if many else "") + " ".join(said)


def changes(found: Serving, most: int) -> Iterable[Block]:
    """The findings by phase, with what they save of a step and of a second."""
    if not found.findings:
        return
    yield Heading("What to change", "by phase; of a second: of the server's time, whatever phase it is in")
    yield table(
        found.findings,
        field("phase", "text", _phase),
        field("per step", "time", lambda one: one.saving_us or None),
        field("of a second", "time", lambda one: one.saving_us_per_s or None),
        field(
            "finding",
            "words",
            lambda one: (f"{names.shorten(one.title, 160)}. ", names.ended_early(one.advice, 160)),
        ),
        most=most,
        noun="change",
    )


def _counted(rows: Sequence[ServingRow], title: str, name: str) -> Field | None:
    if all(getattr(row, name) is None for row in rows):
        return None
    return field(title, "count", lambda row: None if (n := getattr(row, name)) is None else round(n))


_of_steps = field("steps", "text", lambda one: f"{_phase(one[0])} {_batch(one[0])}")


def parts(rows: Sequence[ServingRow]) -> Iterable[Block]:
    """The parts of each kind of step's device time, a row a part."""
    listed = [(row, part) for row in rows for part in row.exposed]
    several = len(rows) > 1
    moved = any(map(_moves, (part for _, part in listed)))
    basis = "exposed: nothing else ran meanwhile"
    yield Heading("What a step's work is", basis + ("; rates of what its shapes say" if moved else ""))
    yield table(
        listed,
        _of_steps if several else None,
        field("part", "text", lambda one: PARTS.get(one[1].category, one[1].category)),
        field("exposed", "time", lambda one: one[1].us),
        field("of the step", "share", lambda one: one[1].us / one[0].span_us if one[0].span_us else 0.0),
        field("moves", "bytes", lambda one: _moves(one[1])) if moved else None,
        field("of the peak", "text", lambda one: _peak_of_part(one[1])) if moved else None,
        field("device time", "time", lambda one: one[1].device_us),
        field("launches", "number", lambda one: f"{one[1].launches:,.0f}"),
        noun="part",
    )


def host(rows: Sequence[ServingRow]) -> Iterable[Block]:
    """Waiting of the device by what the host does, where that is more than a hundredth of a step."""
    listed = [
        (row, activity)
        for row in rows
        for activity in dict.fromkeys(one.activity for one in row.idle)
        if sum(one.idle_us for one in row.idle if one.activity == activity) > SEEN * row.span_us
    ]
    if not listed:
        return
    several = len(rows) > 1
    yield Heading("What the host does while the device waits", "per step, by the host's scopes and calls")
    yield table(
        listed,
        _of_steps if several else None,
        field("host", "text", lambda one: one[1]),
        field("in the step", "time", lambda one: _idle(one[0], between=False, activity=one[1])),
        field("before the next", "time", lambda one: _idle(one[0], between=True, activity=one[1])),
        field("causes", "words", lambda one: _causes(*one)),
        noun="activity",
    )


def _causes(row: ServingRow, activity: str) -> str:
    causes = dict.fromkeys(one.cause for one in row.idle if one.activity == activity)
    return ", ".join(list(causes)[:2])


def layer(row: ServingRow, found: ServingLayer, most: int) -> Iterable[Block]:
    """One layer of a step, a row a kernel, and what is outside of the layers."""
    outside = [("before them", found.head_us), ("behind them", found.tail_us)]
    outside += [("on other streams", found.elsewhere_us)] if found.elsewhere_us else []
    several = "One layer" if found.layers == 1 else f"{found.layers} layers"
    yield Heading(
        f"{several} of {_phase(row)} at {_batch(row)}, × {found.repeats}",
        f"{numbers.time(found.us)} each, at the mean",
    )
    rated = any(one.memory_share or one.compute_share for one in found.kernels)
    columns = [
        field("module", "name", "module") if any(one.module for one in found.kernels) else None,
        field("op", "name", "op"),
        field("kernel", "name", lambda one: kernel(one.kernel, one.short_name)),
        field("time", "time", "us"),
        field("share", "share", lambda one: one.us / found.us if found.us else 0.0),
        field("of the peak", "text", lambda one: _peak(one.memory_share, one.compute_share))
        if rated
        else None,
        field("shapes", "name", lambda one: one.shapes),
        field("line", "text", lambda one: place(one.line))
        if any(one.line for one in found.kernels)
        else None,
    ]
    leave = ("shapes", "line", "op", "module")
    yield table(found.kernels, *columns, most=most, noun="kernel", leave=leave)
    said = ", ".join(f"{numbers.time(us)} {where}" for where, us in outside if us)
    layers = f"{found.repeats * found.layers} layers take {numbers.time(found.repeats * found.us)}"
    whole = numbers.time(found.device_us)
    yield Prose(f"{layers} of {whole} of device time; {said or 'nothing is outside of them'}.")


def client(found: ServingClient) -> Iterable[Block]:
    """A client's time for a token, and where it goes."""
    measured = found.measured
    yield Heading("A token, as a client measured it", f"{names.plain(measured.file)}; means")
    rate = "" if measured.tokens_per_s is None else f", {numbers.rate(measured.tokens_per_s)} tokens/s"
    said = f"A token took the client {numbers.time(measured.token_us)}{rate}"
    if found.recorded_token_us is None or found.outside_us is None:
        yield Prose(
            f"{said}. Nothing can be set next to it: too few steps were recorded, or the client does not say "
            "how many drafted tokens were accepted."
        )
        return
    yield Table(
        (Column("where it goes", "text"), Column("time", "time"), Column("share", "share")),
        [(CLIENT[part.part], part.us, part.share) for part in found.parts],
        0,
        "part",
    )
    own = found.recorded_tokens_per_s
    recorded_us = found.request_token_us or found.recorded_token_us
    said += f"; by the recorded steps a request waits {numbers.time(recorded_us)} for it"
    said += "" if own is None else f", {numbers.rate(own)} tokens/s"
    if found.outside_us < 0:
        slower = "That is more than the client saw: recording slowed the steps down, or their batches differ."
        yield Prose(f"{said}. {slower}")
        return
    share = found.outside_us / measured.token_us
    yield Prose(f"{said}. {numbers.percent(share)} of the client's time is not the engine's steps.")


CLIENT = {
    "busy": "the device works in steps that generate",
    "idle": "the device waits within them",
    "other steps": "other steps meanwhile (prefill)",
    "between": "between steps",
    "outside": "not in a step: queueing, detokenising, HTTP",
}


def sentence(row: ServingRow, *, on_host: bool = False) -> str:
    """How busy one kind of step keeps the device, what takes most of it, and whether the host is hidden; with
    ``on_host`` no device was recorded, and ops of the host are its work."""
    busy = row.busy_us / row.span_us if row.span_us else 0.0
    phase = SUBJECTS.get(row.phase, _phase(row).capitalize())
    known = row.requests is not None or row.batch is not None
    subject = "A pass of the model" if row.phase == "unknown" else phase + f" at {_batch(row)}" * known
    does = "runs ops for {} of its time" if on_host else "is {} busy"
    said = f"{subject} {does.format(numbers.percent(busy))}"
    if row.exposed and row.span_us:
        said += f"; {_part(row.exposed[0], row)}"
    if on_host:
        return f"{said}; for {numbers.time(_idle(row, between=False))} Python runs between them."
    between = _idle(row, between=True)
    if row.period_us and between > (1 - HIDDEN) * row.period_us.median:
        why = _why(row, between=True)
        return f"{said}; between two steps the device waits {numbers.time(between)}, mostly {why}."
    if busy >= HIDDEN:
        return f"{said}; the host is hidden."
    return f"{said}; it waits {numbers.time(_idle(row, between=False))}, mostly {_why(row, between=False)}."


def _part(part: ServingPart, row: ServingRow) -> str:
    said = f"{numbers.percent(part.us / row.span_us)} of it {PARTS.get(part.category, part.category)}"
    if _moves(part) is None:
        return said
    memory, compute = part.memory_share or 0.0, part.compute_share or 0.0
    if not memory and not compute:
        return said
    what = "the memory's rate" if memory >= compute else "the peak of its arithmetic"
    return f"{said} at {numbers.percent(max(memory, compute))} of {what}"


def _why(row: ServingRow, *, between: bool) -> str:
    idle: dict[str, float] = {}
    for one in row.idle:
        if one.between == between:
            said = one.cause if one.activity == "other" else f"{one.activity} ({one.cause})"
            idle[said] = idle.get(said, 0.0) + one.idle_us
    return max(idle, key=lambda said: idle[said]) if idle else "unexplained"


def _peak(memory: float | None, compute: float | None) -> str:
    """The nearer of a device's two peaks: ``41 % memory``; a dash where neither is known."""
    if not memory and not compute:
        return "–"
    if (memory or 0.0) >= (compute or 0.0):
        return f"{numbers.percent(memory or 0.0)} memory"
    return f"{numbers.percent(compute or 0.0)} arithmetic"


def _peak_of_part(part: ServingPart) -> str:
    return "–" if _moves(part) is None else _peak(part.memory_share, part.compute_share)


def _moves(part: ServingPart) -> float | None:
    """Bytes that a part moves, where that is known of most of it."""
    return part.bytes if part.bytes and part.costed_us >= KNOWN * part.device_us else None


def _phase(row: ServingRow | ServingFinding) -> str:
    return "step" if row.phase == "unknown" else row.phase


def _batch(row: ServingRow) -> str:
    if row.requests is None and row.batch is None:
        return "unknown batch"
    if row.phase in ("prefill", "mixed") and row.query_tokens is not None:
        return f"{numbers.count(round(row.query_tokens))} tokens"
    size = row.requests if row.requests is not None else row.batch
    padded = f" of {row.padded_to:,.0f}" if row.padded_to and row.padded_to != row.query_tokens else ""
    return f"batch {size:,.0f}{padded}"


def _steps(row: ServingRow) -> str:
    return numbers.count(row.n) + (f" (+{row.warmup} warming up)" if row.warmup else "")


def _idle(row: ServingRow, *, between: bool, activity: str = "") -> float:
    """Microseconds per step that the device waits within the step's work, or before the next step's."""
    return sum(one.idle_us for one in row.idle if one.between == between and activity in ("", one.activity))


def _rate(row: ServingRow) -> int | None:
    """New tokens in a second; of steps that read prompts the tokens that they compute."""
    rate = row.read_tokens_per_s if row.tokens_per_s is None else row.tokens_per_s
    return None if rate is None else round(rate)
