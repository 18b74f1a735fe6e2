"""Steps of serving engines, as rows of the document."""

from __future__ import annotations

import msgspec

from kinetoscope.sources.client import ClientTimes


class LayerKernel(msgspec.Struct, frozen=True, kw_only=True):
    """One kernel of a layer: means over its repetitions."""

    kernel: str
    short_name: str
    # module, op, shapes, line: where it came from; empty where that was not recorded
    module: str
    op: str
    shapes: str
    line: str
    part: str  # what it is for, as in ``ServingPart``
    us: float  # its device time
    # memory_share, compute_share: of the device's peaks, of the op call that it is the longest kernel of;
    # null where the call's cost is not known
    memory_share: float | None
    compute_share: float | None


class ServingLayer(msgspec.Struct, frozen=True, kw_only=True):
    """The layers of one step: ``head_us + repeats * us + tail_us + elsewhere_us`` is its device time."""

    repeats: int  # how many groups of so many (unlike) ``layers`` follow each other
    layers: int
    us: float  # device time of one, at the mean; ``kernels`` are its rows, in order
    # head_us, tail_us: device time before the first and behind the last
    head_us: float
    tail_us: float
    elsewhere_us: float  # on other streams meanwhile
    device_us: float  # of the step, which is the one of median length
    kernels: list[LayerKernel]


class ClientRow(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a token's time."""

    # ``busy`` and ``idle`` of the device in steps that generate, ``other steps`` meanwhile (prefill),
    # ``between`` steps, and ``outside`` the steps: queueing, detokenising, HTTP
    part: str
    us: float
    share: float  # of the client's time for a token


class ServingClient(msgspec.Struct, frozen=True, kw_only=True):
    """A client's times, and what of them the recorded steps are; ``parts`` sum to the client's time."""

    measured: ClientTimes
    # from one step that generates to the next, at the mean; null where one alone was recorded
    recorded_token_us: float | None = None
    # what a request waits for its next token, at the mean over requests: those that came in between wait only
    # since their own prefill. Null where the engine does not say how many came
    request_token_us: float | None = None
    # by the recorded steps; null where the engine does not say their requests
    recorded_tokens_per_s: float | None = None
    # of the client's time what is beyond ``request_token_us``, or else ``recorded_token_us``; negative where
    # the recording slowed the steps down
    outside_us: float | None = None
    parts: list[ClientRow] = []


class ServingPart(msgspec.Struct, frozen=True, kw_only=True):
    """One part of a step's device time."""

    category: str
    us: float  # time per step in which nothing else ran: what the step would lose without it, at most
    device_us: float  # the sum of its durations per step
    launches: float  # per step
    # device time per step of the calls of which it is known what they move and compute: ``bytes`` and
    # ``flops``; ``memory_share`` and ``compute_share`` are of the device's peaks
    costed_us: float = 0.0
    bytes: float = 0.0
    flops: float = 0.0
    memory_share: float | None = None
    compute_share: float | None = None


class ServingIdle(msgspec.Struct, frozen=True, kw_only=True):
    """Idle time per step of one cause, within the step's work (``between`` is false) or before the next's.
    ``activity``: what the host did meanwhile: schedule, prepare inputs, sample, detokenise, copies, waiting
    for a rank, or other."""

    cause: str
    idle_us: float
    between: bool = False
    activity: str = "other"


class ServingPeriod(msgspec.Struct, frozen=True, kw_only=True):
    """From one step's first work to the next step's: median and ninth decile."""

    median: float
    p90: float


class ServingRow(msgspec.Struct, frozen=True, kw_only=True):
    """Steps of one phase, batch and graph mode; means per step unless it says otherwise."""

    rank: int
    engine: str
    phase: str
    batch: int | None  # requests (decode) or tokens (prefill) up to this power of two
    # ``full`` where one replay holds nine tenths of a step's work or more, ``piecewise`` where replays hold
    # less or are several, ``eager``
    graph_mode: str
    # n, warmup: steady steps, of which the figures are, and those that were still warming up
    n: int
    warmup: int
    # context_requests, generation_requests, requests, query_tokens, kv_tokens: medians, where the engine says
    # them
    context_requests: float | None
    generation_requests: float | None
    requests: float | None
    query_tokens: float | None
    kv_tokens: float | None
    # the batch that was computed, if it is known and larger than the one that was asked for
    padded_to: float | None
    period_us: ServingPeriod | None  # None where no step follows
    # span_us, busy_us: from the first work to the end of the last; when its own work ran: medians
    span_us: float
    busy_us: float
    between_us: float | None  # from the end of a step's work to the next step's first: median
    exposed_idle_us: float  # waiting of the device within the step and before the next one
    kernels: float
    launches: float
    # new tokens of all requests in a second, by the period, else by the span; decode alone
    tokens_per_s: float | None
    idle: list[ServingIdle]
    exposed: list[ServingPart]
    # what a client measured for a token; None where no client's times were given
    client_token_us: float | None = None
    read_tokens_per_s: float | None = None  # the same of the tokens that prefill and mixed steps compute
    layer: ServingLayer | None = None  # what a step of median length repeats; null where no layers are seen


class ServingFinding(msgspec.Struct, frozen=True, kw_only=True):
    """A finding in the steps of one phase: one change, and what it saves there."""

    phase: str
    # rule, subject, severity, title, advice: of the finding, which may be about other phases too
    rule: str
    subject: str
    severity: str
    title: str
    advice: str
    steps: int  # of this phase, as recorded
    saving_us: float  # per step of this phase; 0 where nothing is promised
    saving_us_per_s: float  # of each second of the whole


class Serving(msgspec.Struct, frozen=True, kw_only=True):
    """The steps of a server (``vllm``, ``sglang``, ``tensorrt-llm``, ``atom``, ``xdit``, ``transformers``,
    ``diffusers``, ``unknown``).

    ``found_by``: ``annotation`` of the engine, ``calls`` of the model, ``graphs`` or ``kernels`` whose
    launches recur. ``phases_by``: ``annotation``, ``shapes`` of what steps compute, or ``names`` of the
    program's ranges and functions; empty where nothing tells their phases. ``client``: what a client
    measured, where that was given. ``findings``: what to change, by phase; of the last stage alone where
    prefill and decode were recorded apart. ``on_host``: no device was recorded; all times are of ops of the
    host, by its clock, ``kernels`` and ``launches`` say how many, ``exposed_idle_us`` is what lies between.
    """

    engine: str
    steps: list[ServingRow]
    found_by: str = "annotation"
    phases_by: str = "annotation"
    client: ServingClient | None = None
    findings: list[ServingFinding] = []
    on_host: bool = False


class GraphReplays(msgspec.Struct, frozen=True, kw_only=True):
    """Device events of replayed graphs, and what is known of them."""

    captured: int  # launches that recorded captures put into graphs
    replayed: int  # device events that ran inside replays
    # joined, verified: those whose op is known by a capture; nothing is joined that was not verified
    joined: int
    verified: int
    by: str  # ``order`` or ``none``
    why: str = ""  # what keeps the others from it; empty where none is left
