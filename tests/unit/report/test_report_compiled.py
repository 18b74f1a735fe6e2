"""The page's part on torch.compile: tables of all compilations, and of each alone."""

from __future__ import annotations

from typing import Any

from compilation_sample import compilation, sample
from kinetoscope.compilation.model import (
    CompiledGraph,
    CompiledKernel,
    Frame,
    GraphBreak,
    Rematerialised,
    SavedForBackward,
)
from kinetoscope.document import Report
from kinetoscope.document.compilation import Compilation
from kinetoscope.render.blocks import Table, Text
from kinetoscope.views import compiled
from report_sample import report


def shown(facts: Compilation) -> Report:
    return report(compilation=facts)


def tables(found: list[Any]) -> list[Table]:
    return [block for block in found if isinstance(block, Table)]


def test_each_compilation_has_its_own_graphs_kernels_and_breaks() -> None:
    frames = [sample(Frame, index=index, compile_id=f"{index}/0", status="ok") for index in (0, 1)]
    facts = compilation(
        *frames,
        graphs=[sample(CompiledGraph, index=index, frame=index, compile_id=f"{index}/0") for index in (0, 1)],
        kernels=[sample(CompiledKernel, name=f"k{index}", graph=index, frame=index) for index in (0, 1)],
        graph_breaks=[sample(GraphBreak, frame=1, reason="print", file="a.py", line=3)],
    )
    found = compiled.blocks(shown(facts))
    assert ["print" in str(found[f"troubles{which}"]) for which in (" 0", " 1", "")] == [False, True, True]
    assert [len(table.rows) for table in tables(found["compiled"])] == [2, 2]
    (every,), (one,) = tables(found["troubles"]), tables(found["troubles 1"])
    assert (len(every.rows), one.rows[0][0]) == (2, Text("1/0", "", "part", "compile/1"))
    for index in (0, 1):
        graphs, kernels = tables(found[f"compiled {index}"])
        assert graphs.rows[0][0] == Text(f"{index}/0 ")
        assert kernels.rows[0][0] == (Text(f"k{index}"),)


def test_a_graph_says_what_it_saves_what_of_that_is_donated_and_what_it_computes_again() -> None:
    row = sample(
        CompiledGraph,
        saved=[
            sample(SavedForBackward, bytes=size, donated=donated)
            for size, donated in ((3_000_000, True), (5_000_000, True), (7_000_000, None))
        ],
        saved_bytes=15_000_000,
        rematerialised=[sample(Rematerialised)],
        rematerialised_bytes=4_000_000,
    )
    parts = (Text("8.00 MB donated", "dim"), Text("4.00 MB computed again", "dim"))
    assert compiled.saved(row) == (15_000_000, *parts)
    assert compiled.saved(sample(CompiledGraph, saved_bytes=None)) is None
