"""The host stops to wait for the device, and the device then waits for the host.

What it finds
    Calls inside the steps that need a value from the device: ``.item()``, ``.cpu()``, ``bool(tensor)``,
    ``nonzero``, indexing with a mask, ``print`` of a tensor, ``torch.cuda.synchronize()``. And checks of all
    values of a tensor, such as those that ``torch.distributions`` makes of its arguments.

Why it is slow
    The host cannot launch ahead while it waits. When the value arrives the queue is empty, and the device
    idles until the host has launched the next work.

How it decides
    Idle time whose cause is ``synchronization``: the device ran dry while its launching thread sat in a
    synchronising call, or between that and the next launch. The op around the call shows what requested
    it. The flush at the end of the recording does not count, nor does what ends a copy from pageable
    memory to the device (``pageable-copy``). A check is ``aten::_is_all_true`` or ``aten::all`` whose result
    ``aten::is_nonzero`` reads next; the comparisons directly before go with it. Loops over results are
    ``results-on-host``'s.

What to do
    Keep the value on the device (``torch.where`` for a branch, accumulate the loss as a tensor), read it some
    steps later or every hundredth step, copy with ``non_blocking=True`` into pinned memory and read it after
    the next step. Once a program with distributions runs: ``Distribution.set_default_validate_args(False)``.

Source
    PyTorch performance tuning guide, "Avoid unnecessary CPU-GPU synchronization"; torch.distributions,
    ``validate_args``.
"""

from msgspec import Struct

from kinetoscope.analysis.events.torch_names import NOT_AN_ANNOTATION, SYNCHRONIZATION
from kinetoscope.analysis.serving.steps import marks
from kinetoscope.findings.rule import *
from kinetoscope.findings.rules.pageable_copy import waits_of_uploads
from kinetoscope.findings.rules.results_on_host import waits_of_loops


class SyncCall(Struct, frozen=True):
    """The meaning of the op around a synchronising call in the user's program, and what to write instead."""

    meaning: str
    advice: str = "Keep the value on the device, or read it later, after the next step has been launched."
    snippet: str | None = "running_loss += loss.detach()  # and .item() once every hundred steps"


_VALUE = SyncCall(".item(), float(t), int(t) or bool(t)")
_COPY = SyncCall(
    "a copy between host and device that blocks",
    "Copy with non_blocking=True, from or into page-locked memory, and read what it brings later.",
    "x = x.to(device, non_blocking=True)",
)
_SENT = SyncCall(
    "a small tensor of the CPU (indices, a value of a schedule) that is sent to the device",
    "Send it with non_blocking=True: so few bytes are taken over at once. Or keep it on the device, as a "
    "buffer of the module, and index it there.",
    "x = x.to(device, non_blocking=True)",
)
_FIXED_SIZE = "Keep the size fixed: torch.where or a product with the mask; or find the indices once."


def _of_unknown_size(call: str, snippet: str | None = None) -> SyncCall:
    return SyncCall(f"{call}: the result's size is only known on the device", _FIXED_SIZE, snippet)


MASKED = _of_unknown_size("nonzero() or indexing with a mask", "x = torch.where(mask, x, 0)")
CALLS = {
    "aten::_local_scalar_dense": _VALUE,
    "aten::item": _VALUE,
    "aten::nonzero": MASKED,
    "aten::masked_select": _of_unknown_size("masked_select()", "x = torch.where(mask, x, 0)"),
    "aten::unique2": _of_unknown_size("unique()"),
    "aten::_unique2": _of_unknown_size("unique()"),
    "aten::equal": SyncCall("torch.equal(), which returns a Python bool"),
    "aten::is_nonzero": SyncCall("bool(tensor), as in `if tensor:`"),
    "aten::copy_": _COPY,
    "aten::_to_copy": _COPY,
}


# `torch._is_all_true` is what torch.distributions asks of its constraints, and hardly anything else.
VALIDATED = r"^aten::_is_all_true$"
ALL = rf"{VALIDATED}|^aten::all$"
NONZERO = "^aten::is_nonzero$"
COMPARES = (
    rf"{ALL}|^aten::(eq|ne|ge|gt|le|lt|isfinite|isnan|remainder|reshape|view|__and__|__or__"
    r"|(bitwise|logical)_(and|or|not))$"
)
APART_NS = 100_000  # Python between two ops of one check


def find(view: RankView) -> Findings:
    validated = checks(view)
    if len(validated):
        yield from _checks(view, validated)
    uploads = waits_of_uploads(view)  # another rule's: page-locked memory is what fixes them
    others = pl.concat([uploads, _waits_in(view, validated), waits_of_loops(view)])
    idle = view.idle("synchronization").filter(
        pl.col("host_event").is_not_null(), ~pl.col("host_event").is_in(others.implode())
    )
    if idle.is_empty():
        return
    host = view.trace.host_events
    callers = host["parent"].gather(idle["host_event"])
    sends = host["parent"].gather(view.kernels(r"HtoD.*Pageable")["launch"].drop_nulls())
    idle = idle.with_columns(
        op=callers,
        caller=_plain(host["name"].gather(callers).cast(pl.String)),
        call=host["name"].gather(idle["host_event"]).cast(pl.String),
        sends=callers.is_in(sends.drop_nulls().implode()).fill_null(False),
    )
    for (caller, call, sent), group in idle.group_by("caller", "call", "sends", maintain_order=True):
        times = view.per_step(group["host_event"].n_unique())
        us = view.us_of(group, "idle_ns")
        longest = group.sort("idle_ns", descending=True).head(3)
        known = _SENT if sent else CALLS.get(str(caller))
        remedy = known or (SyncCall("", snippet=None) if marks(view.trace).found_by else SyncCall(""))
        yield Finding(
            subject=f"{caller} {call}" + (" sends" if sent else ""),
            title=f"{caller} waits for the device {_often(times)} per {view.unit} ({call})",
            affected_us=us,
            saving=savings.of(view, no_wait(group["host_event"]), "the steps without these waits"),
            evidence=evidence.of_gaps(view, longest),
            advice=(f"This is {known.meaning}. " if known else "") + remedy.advice,
            snippet=remedy.snippet,
            source=evidence.source(view, longest["op"]),
        )


def _plain(callers: pl.Series) -> pl.Series:
    """The callers by name: the program, where nothing but a step's annotation is around the call."""
    return pl.select(
        pl.when(callers.str.contains(NOT_AN_ANNOTATION).fill_null(True))
        .then(pl.lit("the program"))
        .otherwise(callers)
    ).to_series()


def checks(view: RankView) -> pl.DataFrame:
    """The ops (rows of ``host_events``) of checks whether all values of a tensor pass; ``check`` numbers the
    checks, and ``validated`` says that it is one of torch.distributions."""
    ops = view.called
    if not matching(ops, "name", NONZERO).any():
        return ops.clear()
    ops = ops.filter(matching(ops, "category", "(?i)^(cpu_op|operator)$"))
    part, asks = matching(ops, "name", COMPARES), matching(ops, "name", ALL)
    ends = matching(ops, "name", NONZERO) & asks.shift(1, fill_value=False)
    validated = matching(ops, "name", VALIDATED).shift(1)
    ops = ops.with_columns(
        check=ends.cast(pl.UInt32).cum_sum(reverse=True), run=(~(part | ends)).cum_sum(), ends=ends
    ).filter(part | ends)
    last = ops.filter("ends").select("check", "run", validated=validated.filter(ends))
    return ops.join(last, on=["check", "run"], maintain_order="left")


def _waits_in(view: RankView, ops: pl.DataFrame) -> pl.Series:
    """The synchronising calls inside of these ops."""
    host = view.trace.host_events
    if ops.is_empty():
        return host["id"].clear()
    inside = view.inside_of(ops["id"]).is_not_null()
    return host["id"].filter(inside & matching(host, "name", SYNCHRONIZATION))


def _checks(view: RankView, ops: pl.DataFrame) -> Findings:
    for (validated,), group in ops.group_by("validated", maintain_order=True):
        waits = _waits_in(view, group)
        if waits.is_empty():  # tensors of the CPU
            continue
        number = group["check"].n_unique()
        what = (
            "torch.distributions checks its arguments"
            if validated
            else "The program checks all values of a tensor"
        )
        yield Finding(
            subject="validate_args" if validated else "checks",
            title=f"{what} {_often(view.per_step(number))} per {view.unit}, and waits for the answer",
            saving=savings.of(
                view, without_host(in_a_row(group, APART_NS)) | no_wait(waits), "the checks' ops and waits"
            ),
            evidence=[evidence.of(view, f"{numbers.count(number, 'check')}", group)],
            advice="Once the program is known to be right, leave them out."
            if validated
            else "Check every hundredth step, or add what fails up on the device and look at it later.",
            snippet="torch.distributions.Distribution.set_default_validate_args(False)"
            if validated
            else None,
            source=evidence.source(view, group.filter("ends")["id"]),
        )


def _often(times: float) -> str:
    return "once" if round(times) == 1 else f"{times:,.0f} times" if times >= 1 else f"{times:.2g} times"
