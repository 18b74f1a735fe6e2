"""Many collectives of little data each.

What it finds
    Twenty or more collectives a step whose messages are small.

Why it is slow
    A collective costs 10 to 30 µs before the first byte moves, and a launch on every rank. Below about a megabyte
    that is most of its time.

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

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from kinetoscope import numbers
from kinetoscope.analysis.run import Run
from kinetoscope.analysis.time import intervals
from kinetoscope.findings.model import Finding
from kinetoscope.findings.scene import MEDIUM, scenes, severity

MANY = 20
SMALL = 256 * 1024
BYTES = {
    "Float": 4, "Double": 8, "Half": 2, "BFloat16": 2, "Long": 8, "Int": 4, "Short": 2, "Byte": 1, "Char": 1, "Bool": 1,
}  # fmt: skip


def find(run: Run) -> Iterable[Finding]:
    for scene in scenes(run):
        arguments = pl.col("collective").cast(pl.String).str
        small = (
            scene.work.filter(pl.col("collective").is_not_null())
            .with_columns(
                (
                    arguments.json_path_match("$['In msg nelems']").cast(pl.Int64, strict=False)
                    * arguments.json_path_match("$.dtype").replace_strict(
                        BYTES, default=4, return_dtype=pl.Int64
                    )
                ).alias("message")
            )
            .filter(pl.col("message") <= SMALL)
        )
        if len(small) < MANY * scene.steps:
            continue
        kept = 1 - scene.steps / len(small)
        device = scene.device_saving(
            # The median: what takes longer waits for another rank.
            small.with_columns(
                (pl.min_horizontal("duration_ns", pl.col("duration_ns").median()) * kept).alias("saved_ns")
            ),
            "all but one collective's time",
        )
        calls = scene.inside(scene.host(r"^(c10d::|nccl:)")).with_columns(
            (pl.col("start_ns") + pl.col("duration_ns")).alias("end_ns")
        )
        idle = intervals.total(intervals.intersect(calls, scene.gaps)) / scene.steps / 1000 * kept
        host = scene.idle_saving(idle, "idle time while they are issued")
        saving = scene.both(device, host)
        level = severity(saving)
        if level is None or saving.share < MEDIUM:
            continue
        yield Finding(
            title=f"{scene.per_step(len(small)):.0f} collectives a {scene.unit} of {float(small['message'].median() or 0) / 1024:.0f} KiB, "  # type: ignore[arg-type]
            f"{numbers.time(float(small['duration_ns'].median() or 0) / 1000)} each",  # type: ignore[arg-type]
            severity=level,
            saving=saving,
            evidence=[scene.evidence("small collectives", small)],
            advice="Put them into one buffer and send that.",
            snippet="flat = torch.cat([g.flatten() for g in gradients])\ndist.all_reduce(flat)",
            source=scene.source(small["op"]),
            rank=scene.rank,
        )
