"""Op calls that are far from what the device can do: what the rules on bandwidth and on arithmetic share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import polars as pl

from kinetoscope.findings.model import Finding, Saving, Severity
from kinetoscope.findings.proof import commands as proofs
from kinetoscope.findings.scene import Scene, heaviest, severity


@dataclass(frozen=True)
class SlowCalls:
    """The slow calls of one op that one kernel does; ``worst`` is the call that would save most (a row of
    ``analysis.roofline.costed`` with ``share``, the part of the device's peak that it reaches)."""

    scene: Scene
    calls: pl.DataFrame
    worst: dict[str, Any]
    saving: Saving
    severity: Severity

    def finding(self, title: str, evidence: str, advice: str, snippet: str) -> Finding:
        kernel = str(self.worst["name"])
        shown = self.scene.trace.device_events[self.calls["id"].sort()]
        return Finding(
            subject=f"{kernel} {self.worst['op_name']}",
            title=title,
            severity=self.severity,
            saving=self.saving,
            evidence=[self.scene.evidence(evidence, shown)],
            advice=advice,
            snippet=snippet,
            source=self.scene.source(shown["op"]),
            proof=proofs.bench(self.scene, kernel),
            rank=self.scene.rank,
        )


def slow_calls(
    scene: Scene, calls: pl.DataFrame, share: pl.Expr, *, below: float, possible: float, basis: str
) -> Iterator[SlowCalls]:
    """Those of ``calls`` whose ``share`` of the peak is below a limit, by kernel and op, where it is worth a line that
    they would run at ``possible`` of the peak; ``basis`` says that in words."""
    slow = calls.with_columns(share.alias("share")).filter(pl.col("share") < below)
    slow = slow.with_columns((pl.col("time_ns") * (1 - pl.col("share") / possible)).alias("saved_ns"))
    for group in heaviest(slow, "name", "op_name"):
        saving = scene.device_saving(group, basis)
        level = severity(saving, at_most="medium")
        if level is None or level == "info":  # one kernel of many, beside the critical path
            continue
        worst = group.sort("saved_ns", descending=True).row(0, named=True)
        yield SlowCalls(scene, group, worst, saving, level)
