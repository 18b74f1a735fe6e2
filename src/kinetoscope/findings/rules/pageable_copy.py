"""Copies between ordinary host memory and the device.

What it finds
    ``Memcpy HtoD (Pageable -> Device)`` and ``DtoH (Device -> Pageable)`` in the steps.

Why it is slow
    The device can only reach page-locked memory. A copy from ordinary memory is staged through a small locked
    buffer, at a third of the link's speed, and the host waits for it.

How it decides
    Pageable copies of 64 KiB and more, and others of the same batch, whose bytes at the link's speed for
    page-locked memory would take less time: that of large pinned copies in the recording, else what the
    device's generation reaches in practice. Smaller ones are staged at once; their waits are
    ``sync-in-step``'s. Where eight and more per step, of 16 MB in all, go to the device and as many of the
    same sizes come back, they are parts of a model that are kept on the host, and all of their time goes.
    With a copy to the device go its call and the wait that ends it.

What to do
    ``DataLoader(pin_memory=True)`` or ``tensor.pin_memory()``, and ``tensor.to(device, non_blocking=True)``.
    To the host: copy less, what comes out of the computation; or into one page-locked tensor that is kept.
    Parts of a model: keep them on the device where its memory has room, as it has for all parts of most.

Source
    NVIDIA, "How to Optimize Data Transfers in CUDA C/C++"; PyTorch tutorial on pinned memory and
    non_blocking.
"""

from typing import NamedTuple

from kinetoscope.analysis.memo import remembered
from kinetoscope.findings.rule import *
from kinetoscope.findings.rules.made_on_host import made, waits_of_copies

# Bytes per nanosecond (GB/s) that pinned copies reach, by compute capability: PCIe 5 from Hopper on (55 GB/s
# measured on an H200), PCIe 4 for Ampere, PCIe 3 before. Other vendors' current parts have PCIe 5.
PINNED = {9: 55.0, 10: 55.0, 12: 55.0, 8: 24.0, 7: 12.0, 6: 12.0}
OTHERWISE = 50.0
LARGE = 1 << 20  # smaller copies measure the latency, not the link
STAGED = 1 << 16  # smaller ones are staged at once: page-locked memory brings nothing …
SENT = r"^Memcpy HtoD"
TO_DEVICE = "Keep the batch in page-locked memory and let the copy run while the host goes on."
TO_HOST = (
    "Compute on the device what is made of it, and copy what comes out; or copy it into page-locked memory "
    "that is kept, and wait before it is read."
)
AND_PIN = ", in page-locked memory (pin_memory=True), for which the copy does not hold up the host either"
LETS_GO = ", non_blocking=True"
PARTS, PARTS_BYTES = 8, 16 << 20  # per step, that travel to the device and back
A_BATCH_NS = 1_000_000  # … but where they are parts of a batch, so near to a large one


def find(view: RankView) -> Findings:
    copies = batches(view.kernels(r"Pageable")).filter(~pl.col("id").is_in(made(view)["id"].implode()))
    parts = travelling(view)
    if len(parts):
        yield from _parts(view, parts)
        copies = copies.join(parts, on="id", how="anti")
    if copies.is_empty():
        return
    size, time = int(copies["bytes"].sum()), int(copies["duration_ns"].sum())
    to_host = 2 * view.us_of(copies.filter(matching(copies, "name", "DtoH"))) > view.us_of(copies)
    longest = copies.sort("duration_ns", descending=True)
    saving = pinned(view, copies)
    if saving.share < LOW:  # they go on next to work that takes longer
        return
    yield Finding(
        title=f"{view.counted(len(copies), 'copy')} per {view.unit} from or to pageable memory: "
        f"{view.per_step(size) / 1e6:.1f} MB at {size / max(time, 1):.1f} GB/s",
        saving=saving,
        evidence=[evidence.of(view, "the longest copies", longest.head(8))],
        advice=TO_HOST if to_host else TO_DEVICE,
        snippet=f"kept.copy_(x{LETS_GO})  # once: kept = torch.empty_like(x, device='cpu', pin_memory=True)"
        if to_host
        else f"x = x.pin_memory().to(device{LETS_GO})",
        source=evidence.source(view, longest["op"]),
    )


def _parts(view: RankView, copies: pl.DataFrame) -> Findings:
    size = int(copies["bytes"].sum()) // 2
    longest = copies.sort("duration_ns", descending=True)
    memory = view.peak_and_room
    basis, meanwhile, gone = "the copies and their calls", _on_the_host(view, copies), copies["id"]
    if not meanwhile.is_empty():
        basis += ", and what the host does to them in between"
        # It may read others of the same size for that, such as the weights of gradients.
        read = view.kernels(r"DtoH.*Pageable")
        gone = pl.concat([gone, read["id"].filter(read["bytes"].is_in(copies["bytes"].implode()))])
    copied = view.work.filter(pl.col("id").is_in(gone.implode()))
    change = no_wait(copied["launch"].drop_nulls()) | without_host(meanwhile)
    saving = savings.device(view, copied, basis, "duration_ns", change)
    if memory is None or memory[0] + size // view.steps > memory[1]:
        saving = savings.if_so(saving, "all parts fit into the device's memory")
    room = "" if memory is None else f": {numbers.size(max(0, memory[1] - memory[0]))} of its memory are free"
    yield Finding(
        subject="parts",
        title=f"{view.per_step(len(copies) / 2):,.0f} tensors travel to the device and back per {view.unit}: "
        f"{numbers.size(view.per_step(size))} each way at {2 * size / copies['duration_ns'].sum():.1f} GB/s",
        saving=saving,
        evidence=[evidence.of(view, "the longest copies", longest.head(8))],
        advice=f"Keep them on the device{room}, and let it do what the host does to them."
        if len(meanwhile)
        else f"Keep the parts of the model on the device{room}. Where they do not fit, keep their copies "
        "on the host in page-locked memory: only one way is left, and it can run ahead.",
        snippet="gradient.mul_(mask)  # not gradient.cpu().numpy(), and torch.from_numpy(…).to(device)"
        if len(meanwhile)
        else "model.to(device)  # once, without model.to('cpu') and without CPU offloading",
        source=evidence.source(view, longest["op"]),
    )


def _on_the_host(view: RankView, copies: pl.DataFrame) -> pl.DataFrame:
    """The time from the copy of a tensor to the host until the copy back that follows it on the thread, of as
    many bytes: ``lane``, ``start_ns``, ``duration_ns``. None where the device computes in between, as with
    the parts of a model that it needs one after the other."""
    called = view.called.select("lane", "start_ns", "end_ns", op="id")
    of = view.inside_of(called["op"]).gather(copies["launch"])
    sent = copies.select("up", "bytes", op=of).drop_nulls("op").join(called, on="op").sort("lane", "start_ns")
    before = sent.select(pl.all().shift())
    comes_back = (
        sent["up"] & ~before["up"] & (sent["bytes"] == before["bytes"]) & (sent["lane"] == before["lane"])
    )
    until = (sent["start_ns"] - before["end_ns"]).clip(0)
    between = before.select("lane", start_ns="end_ns", duration_ns=until).filter(comes_back)
    computes = (view.launched_during(between)["kind"] == "kernel").any()
    return between.clear() if computes else between


@remembered
def travelling(view: RankView) -> pl.DataFrame:
    """The pageable copies of tensors that go to the device and come back in the same steps; not of what is
    sent twice as often as it comes back, as weights that are read to the device and put into a new model."""
    copies = view.kernels(r"Pageable").filter(pl.col("bytes") > 0)
    copies = copies.with_columns(up=matching(copies, "name", "HtoD"))
    up, down = (one.sum().over("step", "bytes") for one in (pl.col("up"), ~pl.col("up")))
    number = pl.int_range(pl.len()).over("step", "bytes", "up")
    copies = copies.filter(number < pl.min_horizontal(up, down), up < 2 * down)
    large = copies["bytes"].sum() >= 2 * PARTS_BYTES * view.steps
    return copies if large and len(copies) >= 2 * PARTS * view.steps else copies.clear()


def pinned(view: RankView, copies: pl.DataFrame, more: ReplayChange = NOTHING) -> Saving:
    """The saving if these copies are from and to page-locked memory, and ``more``. Copies to the device go on
    by themselves; who copies from it wants to read what it brings."""
    speed = _pinned_speed(view)
    beyond = (pl.col("duration_ns") - pl.col("bytes") / speed).clip(lower_bound=0)
    basis = f"the same bytes at {speed:.0f} GB/s, as from pinned memory"
    copied = copies["launch"].filter(matching(copies, "name", "HtoD")).drop_nulls()
    if len(copied):
        more |= no_wait(pl.concat([copied, waits_of_uploads(view)]))
        more |= without_host(view.trace.host_events[copied.unique().sort()])
        basis += ", for which the host no longer waits"
    return savings.device(view, copies, basis, beyond, more)


def batches(copies: pl.DataFrame) -> pl.DataFrame:
    """The copies that are worth page-locked memory: large ones, and small ones next to them."""
    if not (copies["bytes"] >= STAGED).any():
        return copies.clear()
    large = copies.filter(pl.col("bytes") >= STAGED).select(near="end_ns").sort("near")
    copies = copies.sort("start_ns").join_asof(
        large, left_on="start_ns", right_on="near", strategy="nearest", tolerance=A_BATCH_NS, coalesce=False
    )
    return copies.filter(pl.col("bytes") > 0, (pl.col("bytes") >= STAGED) | pl.col("near").is_not_null())


class Preparation(NamedTuple):
    """Idle time in which the host does something, taken as what it may prepare."""

    saving: Saving
    is_sent: bool  # whether most of it ends with copies to the device
    advice: str  # what is to be said of page-locked memory


def prepared(view: RankView, idle: pl.DataFrame, basis: str, other: str) -> Preparation:
    """The saving if the host keeps the device no longer waiting in this idle time (rows of ``view.gaps``).
    Where most of it ends with copies to the device, one thing makes what is sent: with that of the ``other``
    cause before the same copies, and with what page-locked memory saves of them, each if it takes less."""
    us, saving = view.us_of(idle, "idle_ns"), savings.idle(view, idle, basis)
    ends = idle.filter(matching(view.trace.device_events, "name", SENT).gather(idle["next"]))
    is_sent = 2 * view.us_of(ends, "idle_ns") > us
    if not is_sent or saving.share < LOW:
        return Preparation(saving, is_sent, "")
    others = view.idle(other).join(ends, on="next", how="semi")
    if 0 < view.us_of(others, "idle_ns") <= us:
        both = pl.concat([one.select("start_ns", "end_ns") for one in (idle, others)])
        saving = savings.idle(view, both, basis)
    copies = batches(view.kernels(r"HtoD.*Pageable")).join(ends, left_on="id", right_on="next", how="semi")
    if copies.is_empty() or view.us_of(copies) > us:
        return Preparation(saving, True, "")
    change = saving.change | without_host(freeing(view, copies["launch"]))
    return Preparation(savings.warm(view, pinned(view, copies, change)), True, AND_PIN)


def freeing(view: RankView, launches: pl.Series) -> pl.DataFrame:
    """The silences after ops that make these ``launches`` in which their line gives the memory back."""
    until = pl.col("start_ns").shift(-1).over("lane") - pl.col("end_ns")
    calls = view.called.select("id", "lane", start_ns="end_ns", duration_ns=until)
    if view.lines is None:
        return calls.clear()
    following = calls["id"].shift(-1)
    goes_on = view.lines.rows["before"].gather(following) == view.lines.texts["line"].gather(calls["id"])
    copying = view.inside_of(calls["id"]).gather(launches.drop_nulls()).unique()
    return calls.filter(goes_on, pl.col("id").is_in(copying.implode()), pl.col("duration_ns") > 0)


def waits_of_uploads(view: RankView) -> pl.Series:
    """The synchronising calls (rows of ``host_events``) with which ``aten::copy_`` ends a copy from pageable
    memory to the device: those directly in the same op as the copy. Small copies alone are left out, unless
    what they send was made on the CPU."""
    copies = batches(view.kernels(r"HtoD.*Pageable"))["launch"]
    return waits_of_copies(view, pl.concat([copies, made(view)["launch"]]))


def _pinned_speed(view: RankView) -> float:
    pinned = view.kernels(r"Pinned").filter(pl.col("bytes") >= LARGE)
    if len(pinned):
        return pinned.select((pl.col("bytes") / pl.col("duration_ns")).median()).item() or OTHERWISE
    capability = view.device.compute_capability if view.device else None
    return PINNED.get(capability[0], OTHERWISE) if capability else OTHERWISE
