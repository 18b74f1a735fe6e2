"""Buffers of generated code, by the line that allocates them: of a real compile log."""

from __future__ import annotations

from pathlib import Path, PurePath

from kinetoscope.analysis.memory.peak import devices, holders
from kinetoscope.analysis.memory.traced import buffers
from kinetoscope.snapshot.read import read
from kinetoscope.sources.run import load
from snapshots import MAIN, MIB, SITE, Allocator, dump, frames

LOG = Path(__file__).resolve().parents[2] / "fixtures" / "h200_modes" / "compile.log.gz"


def test_every_buffer_that_a_module_allocates_has_its_line():
    run = load(LOG)
    assert run.compilation is not None
    found = buffers(run)
    assert not found.is_duplicated().any()
    for graph in run.compilation.graphs:
        lines = run.compilation.modules[graph.index].read().splitlines()
        stem = PurePath(str(graph.module)).stem
        here = {line: name for key, line, name in found.iter_rows() if key == stem}
        allocated = [n for n, line in enumerate(lines, 1) if "= empty_strided_cuda(" in line]
        assert set(allocated) <= set(here)
        assert all(here[n].split(": ")[1] == lines[n - 1].split()[0] for n in allocated)


def test_memory_of_generated_code_is_its_graph_s_buffer(tmp_path: Path):
    run = load(LOG)
    made = buffers(run)
    (stem, line, name) = made.row(0)
    allocator = Allocator()
    allocator.alloc(3 * MIB, frames(f"/tmp/t/{stem[1:3]}/{stem}.py:{line}:call", f"{SITE}x.py:1:f", *MAIN))
    (history,) = devices(read(dump(tmp_path / "x.pickle", allocator)), None, made)
    assert holders(history)["owner"].to_list() == [f"graph {name}"]
