"""Kernels that are limited by memory, and far from its speed.

What it finds
    Op calls whose recorded shapes say that memory traffic bounds them, and which move it at less than half of the
    device's bandwidth.

Why it is slow
    Reads that are not contiguous fetch whole sectors and use a part of each; small or narrow work leaves the memory
    idle between requests.

How it decides
    Bytes of the call (each operand once) over its device time, against the device's peak bandwidth; calls of 20 µs or
    more. 80 % of the peak is what good kernels reach, and what counts as possible. Needs recorded shapes. Products that
    compiled code leaves to the library untuned are ``autotune-overdue``'s.

What to do
    Make the tensor contiguous once (or keep the column you need as a tensor of its own), choose the layout in which
    the inner loop runs along memory, fuse with the neighbours.

Source
    Roofline model (Williams, Waterman, Patterson, 2009).
"""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from kinetoscope.analysis.profile import Profile
from kinetoscope.analysis.roofline import costed
from kinetoscope.findings import proofs
from kinetoscope.findings.model import Finding
from kinetoscope.findings.rules.autotune_overdue import slow_products, untuned
from kinetoscope.findings.scene import heaviest, scenes, severity

SHARE = 0.5
POSSIBLE = 0.8
LONG_NS = 20_000


def find(profile: Profile) -> Iterable[Finding]:
    for scene in scenes(profile):
        calls = costed(scene.trace).filter(
            pl.col("id").is_in(scene.work["id"].implode())
            & (pl.col("time_ns") >= LONG_NS)
            & (pl.col("bytes") / pl.col("peak_bandwidth") >= pl.col("flops") / pl.col("peak_flops"))
        )
        if untuned(scene):
            calls = calls.join(slow_products(scene), on="id", how="anti")
        calls = calls.with_columns(
            (pl.col("bytes") / pl.col("time_ns") * 1e9 / pl.col("peak_bandwidth")).alias("share")
        ).filter(pl.col("share") < SHARE)
        calls = calls.with_columns((pl.col("time_ns") * (1 - pl.col("share") / POSSIBLE)).alias("saved_ns"))
        for group in heaviest(calls, "name", "op_name"):
            name, op = str(group["name"][0]), str(group["op_name"][0])
            saving = scene.device_saving(group, "the same bytes at 80 % of the device's bandwidth")
            level = severity(saving, at_most="medium")
            if level in (None, "info"):  # one kernel of many, beside the critical path
                continue
            first = group.sort("saved_ns", descending=True).row(0, named=True)
            shown = scene.trace.device_events[group["id"].sort()]
            yield Finding(
                subject=f"{name} {op}",
                title=f"{op} moves its bytes at {first['bytes'] / first['time_ns'] / 1000:.2f} TB/s, {first['share']:.0%} of the "
                f"device's bandwidth",
                severity=level,
                saving=saving,
                evidence=[scene.evidence(f"{len(group)} calls, inputs {first['shapes']}", shown)],
                advice="Look at the strides of its inputs: contiguous memory is read several times as fast.",
                snippet="column = x[:, 3].contiguous()  # once, outside of the loop",
                source=scene.source(shown["op"]),
                proof=proofs.bench(scene, name),
                rank=scene.rank,
            )
