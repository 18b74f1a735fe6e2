"""Op calls that are far from what the device can do: what the rules on bandwidth and on arithmetic share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl

from kinetoscope.findings import evidence, savings
from kinetoscope.findings.model import Finding, Proof, Saving
from kinetoscope.findings.rank_view import RankView


@dataclass(frozen=True)
class SlowCalls:
    """The slow calls of one op that one kernel does, that first which would save most: rows of
    ``analysis.roofline.costed`` with ``share``, the part of the device's peak that they reach."""

    view: RankView
    calls: pl.DataFrame
    saving: Saving

    @property
    def kernel(self) -> str:
        return str(self.calls["name"][0])

    def finding(
        self, *, title: str, shown: str, advice: str, snippet: str | None, proof: Proof | None
    ) -> Finding:
        events = self.view.trace.device_events[self.calls["id"].sort()]
        return Finding(
            subject=f"{self.kernel} {self.calls['op_name'][0]}",
            title=title,
            saving=self.saving,
            at_most="medium",
            evidence=[evidence.of(self.view, shown, events)],
            advice=advice,
            snippet=snippet,
            source=evidence.source(self.view, events["op"]),
            proof=proof,
        )


def slow_calls(
    view: RankView, calls: pl.DataFrame, share: pl.Expr, *, below: float, possible: float, basis: str
) -> Iterator[SlowCalls]:
    """Those of ``calls`` whose ``share`` of the peak is below a limit, by kernel and op, where it is worth a
    line that they would run at ``possible`` of the peak; ``basis`` says that in words."""
    slow = calls.with_columns(share.alias("share")).filter(pl.col("share") < below)
    slow = slow.with_columns((pl.col("time_ns") * (1 - pl.col("share") / possible)).alias("saved_ns"))
    for group, saving in savings.heaviest(view, slow, "name", "op_name", basis=basis):
        yield SlowCalls(view, group.sort("saved_ns", descending=True), saving)
