"""Ops that are known by their sizes, which one step has: where they are in all steps, and their work."""

from __future__ import annotations

import polars as pl

from kinetoscope.analysis.events.backward import without_gradients
from kinetoscope.analysis.events.rows import matching
from kinetoscope.analysis.events.torch_names import AUTOGRAD_NODE
from kinetoscope.findings.program_lines import VERIFIED
from kinetoscope.findings.rank_view import RankView
from kinetoscope.trace.model import Trace


def noted_sizes(view: RankView) -> tuple[Trace, pl.Series] | None:
    """The trace that has sizes, and which of its rows each row of ``host_events`` is."""
    if view.trace.host_arguments["input_dims"].count():
        return view.trace, view.trace.host_events["id"]
    if view.lines is None or view.lines.verified < VERIFIED:
        return None
    return view.run.lines[view.rank], view.lines.rows["noted"]


def work_and_gradients(view: RankView, ops: pl.DataFrame) -> pl.DataFrame:
    """The work that ops launch, and their nodes in the backward pass."""
    host = view.trace.host_events
    inside = view.inside_of(ops["id"]).is_not_null()
    # An op without a node has the number of the next one.
    numbers_of_nodes = host["sequence"].filter(inside & ~without_gradients(view.trace)).drop_nulls()
    is_node = matching(host, "name", AUTOGRAD_NODE) & host["sequence"].is_in(numbers_of_nodes.implode())
    own = inside | view.inside_of(host["id"].filter(is_node)).is_not_null()
    return view.computed.filter(pl.col("op").is_in(host["id"].filter(own).implode()))
