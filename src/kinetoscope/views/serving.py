"""Steps of serving engines: by phase, batch and graph mode, and what each step's time went to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kinetoscope import numbers
from kinetoscope.document import Serving, ServingRow
from kinetoscope.render.blocks import Block, Column, Heading, Prose, Table, field, table

# A step whose device is busy for less is not hidden from the host.
HIDDEN = 0.97
GRAPHS = {"full": "one graph", "piecewise": "pieces", "eager": "no graph"}
ENGINES = {"vllm": "vLLM", "sglang": "SGLang", "tensorrt-llm": "TensorRT-LLM", "atom": "ATOM", "xdit": "xDiT"}
PARTS = {
    "moe": "experts and routing",
    "kv-cache": "writing the KV cache",
    "matmul": "matrix products",
    "normalization": "norms, rotary, quantization",
    "copy": "copies",
}


def section(found: Serving | None, most: int) -> Iterable[Block]:
    """The table of an engine's steps, and a sentence on each phase."""
    if found is None:
        return
    rows = found.steps
    many, followed = len({row.rank for row in rows}) > 1, any(row.period_us for row in rows)
    yield Heading(f"Steps of {ENGINES[found.engine]}", "medians; work counted with the step that launched it")
    yield table(
        rows,
        field("rank", "count", "rank") if many else None,
        field("phase", "text", "phase"),
        field("batch", "text", _batch),
        field("graph", "text", lambda row: GRAPHS[row.graph_mode]),
        field("steps", "text", _steps),
        field("period", "time", lambda row: row.period_us and row.period_us.median) if followed else None,
        field("p90", "time", lambda row: row.period_us and row.period_us.p90) if followed else None,
        field("work", "time", "span_us"),
        field("busy", "share", lambda row: row.busy_us / row.span_us if row.span_us else 0.0),
        field("idle", "time", lambda row: _idle(row, between=False)),
        field("between", "time", lambda row: _idle(row, between=True)) if followed else None,
        field("kernels", "count", lambda row: round(row.kernels)),
        field("launches", "count", lambda row: round(row.launches)),
        field("tokens/s", "count", _rate),
        most=most,
        noun="kind of step",
    )
    yield Prose(" ".join(map(sentence, rows[: most or len(rows)])))
    yield from parts(rows[: most or len(rows)])


def parts(rows: Sequence[ServingRow]) -> Iterable[Block]:
    """The parts of each kind of step's device time, a row a part."""
    listed = [(row, part) for row in rows for part in row.exposed]
    several = len(rows) > 1
    yield Heading("What a step's work is", "exposed: nothing else ran meanwhile")
    yield Table(
        (
            *([Column("steps", "text")] if several else []),
            Column("part", "text"),
            Column("exposed", "time"),
            Column("of the step", "share"),
            Column("device time", "time"),
            Column("launches", "number"),
        ),
        [
            (
                *([f"{row.phase} {_batch(row)}"] if several else []),
                PARTS.get(part.category, part.category),
                part.us,
                part.us / row.span_us if row.span_us else 0.0,
                part.device_us,
                f"{part.launches:,.0f}",
            )
            for row, part in listed
        ],
        0,
        "part",
    )


def sentence(row: ServingRow) -> str:
    """How busy one kind of step keeps the device, what takes most of it, and whether the host is hidden."""
    busy = row.busy_us / row.span_us if row.span_us else 0.0
    said = f"{row.phase.capitalize()} at {_batch(row)} is {numbers.percent(busy)} busy"
    if row.exposed and row.span_us:
        most = row.exposed[0]
        said += f"; {numbers.percent(most.us / row.span_us)} of it {PARTS.get(most.category, most.category)}"
    between = _idle(row, between=True)
    if row.period_us and between > (1 - HIDDEN) * row.period_us.median:
        cause = max((one for one in row.idle if one.between), key=lambda one: one.idle_us).cause
        return f"{said}; between two steps the device waits {numbers.time(between)}, mostly {cause}."
    if busy >= HIDDEN:
        return f"{said}; the host is hidden."
    return f"{said}; it waits {numbers.time(_idle(row, between=False))}, mostly {row.idle[0].cause}."


def _batch(row: ServingRow) -> str:
    if row.requests is None and row.batch is None:
        return "unknown batch"
    if row.phase in ("prefill", "mixed") and row.query_tokens is not None:
        return f"{numbers.count(round(row.query_tokens))} tokens"
    size = row.requests if row.requests is not None else row.batch
    padded = f" of {row.padded_to:,.0f}" if row.padded_to and row.padded_to != size else ""
    return f"batch {size:,.0f}{padded}"


def _steps(row: ServingRow) -> str:
    return numbers.count(row.n) + (f" (+{row.warmup} warming up)" if row.warmup else "")


def _idle(row: ServingRow, *, between: bool) -> float:
    """Microseconds per step that the device waits within the step's work, or before the next step's."""
    return sum(one.idle_us for one in row.idle if one.between == between)


def _rate(row: ServingRow) -> int | None:
    return None if row.tokens_per_s is None else round(row.tokens_per_s)
