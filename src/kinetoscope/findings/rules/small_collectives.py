"""Many collectives of little data each.

What it finds
    Twenty or more collectives per step whose messages are small.

Why it is slow
    A collective costs 10 to 30 µs before the first byte moves, and a launch on every rank. Below about a
    megabyte that is most of its time.

How it decides
    Collectives with a recorded message of at most 256 KiB. All of their time but one collective's
    (waiting for other ranks left out), and the time that
    the device idles while the host issues them, counts as saved.

What to do
    Put them into one buffer (``torch._utils._flatten_dense_tensors``, ``dist.all_reduce_coalesced``,
    ``bucket_cap_mb``), or send less often.

Source
    NCCL documentation, "Group calls"; PyTorch DDP's buckets.
"""

from kinetoscope.findings.rule import *

MANY = 20
SMALL = 256 * 1024
BYTES = {
    "Double": 8, "Long": 8, "Float": 4, "Int": 4, "Half": 2, "BFloat16": 2, "Short": 2,
    "Byte": 1, "Char": 1, "Bool": 1,
}  # fmt: skip


def find(view: RankView) -> Findings:
    arguments = pl.col("collective").cast(pl.String).str
    elements = arguments.json_path_match("$['In msg nelems']").cast(pl.Int64, strict=False)
    size = arguments.json_path_match("$.dtype").replace_strict(BYTES, default=4, return_dtype=pl.Int64)
    small = (
        view.work.filter(pl.col("collective").is_not_null())
        .with_columns(message=elements * size)
        .filter(pl.col("message") <= SMALL)
    )
    if len(small) < MANY * view.steps:
        return
    kept = 1 - view.steps / len(small)
    # The median: what takes longer waits for another rank.
    saved = pl.min_horizontal("duration_ns", pl.col("duration_ns").median()) * kept
    calls = view.inside(view.host(r"^(c10d::|nccl:)"))
    issued = without_host(calls, kept) | without_idle(view.trace, view.idle_during(calls), kept)
    basis = "all but one collective's time, and issuing them"
    saving = savings.device(view, small, basis, saved, issued)
    if saving.share < MEDIUM:
        return
    # Replayed together, ranks wait no longer than they must: all but the first collective are gone.
    gone = small.filter(pl.int_range(pl.len()).over("step") > 0)
    fewer = shorten(gone["id"], gone["duration_ns"])
    saving = replace(saving, together={view.rank: fewer | issued})
    message, each = small.select(pl.median("message", "duration_ns")).row(0)
    yield Finding(
        title=f"{view.per_step(len(small)):,.0f} collectives per {view.unit} of {message / 1024:,.0f} KiB, "
        f"{numbers.time(each / 1000)} each",
        saving=saving,
        evidence=[evidence.of(view, "small collectives", small)],
        advice="Put them into one buffer and send that.",
        snippet="flat = torch.cat([g.flatten() for g in gradients])\ndist.all_reduce(flat)",
        source=evidence.source(view, small["op"]),
    )
