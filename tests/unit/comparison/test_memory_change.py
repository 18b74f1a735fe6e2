"""Peaks of two runs compared: every byte of the difference is in one row."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command import ROOT
from kinetoscope.cli import main
from kinetoscope.comparison.memory import MemoryChange, memory_change
from kinetoscope.sources.run import load
from snapshots import MAIN, MIB, Allocator, dump, frames

HOME = ROOT / "tests" / "fixtures" / "h200_memory"


def sums(found: MemoryChange) -> list[int]:
    return [
        sum(row.new_bytes - row.base_bytes for row in rows)
        for rows in (found.owners, found.lines, found.parts)
    ]


@pytest.mark.parametrize(
    ("base", "new"), [("train", "leak"), ("train", "full-failed"), ("checkpoint", "compiled")]
)
def test_owners_and_lines_sum_to_the_difference_of_the_peaks_and_parts_to_that_of_what_was_reserved(
    base: str, new: str
):
    found = memory_change(*(load(HOME / f"{name}.pickle.gz") for name in (base, new)))
    assert found is not None
    allocated, reserved = (now - before for before, now in (found.requested_bytes, found.reserved_bytes))
    assert sums(found) == [allocated, allocated, reserved]
    again = memory_change(*(load(HOME / f"{name}.pickle.gz") for name in (new, base)))
    assert again is not None
    assert sums(again) == [-one for one in sums(found)]


def snapshot(path: Path, line: int, *sizes: int) -> Path:
    allocator = Allocator()
    allocator.begin()
    for number, size in enumerate(sizes):
        allocator.alloc(size * MIB, frames(f"/home/u/model.py:{line + number}:embed", *MAIN))
    return dump(path, allocator)


def test_a_line_that_has_shifted_is_the_same_owner(tmp_path: Path):
    """The second has grown; the last is new."""
    paths = snapshot(tmp_path / "a.pickle", 10, 4, 2), snapshot(tmp_path / "b.pickle", 13, 4, 3, 1)
    found = memory_change(*map(load, paths))
    assert found is not None
    rows = {row.line: (row.base_bytes // MIB, row.new_bytes // MIB, row.allocations) for row in found.owners}
    assert rows == {
        "model.py:13": (4, 4, (1, 1)),
        "model.py:14": (2, 3, (1, 1)),
        "model.py:15": (0, 1, (0, 1)),
    }


def test_a_peak_that_grew_fails_its_gate_and_names_who_grew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    paths = [str(snapshot(tmp_path / f"{size}.pickle", 10, 4, size)) for size in (2, 9)]
    assert main(["diff", *paths, "--fail-on", "peak_memory > 2%"]) == 1
    printed = " ".join(capsys.readouterr().out.split())
    assert "peak of memory: 6.29 MB → 13.6 MB allocated, +7.34 MB, 116.7 % more" in printed
    assert "names neither its device nor its software" in printed
    assert "embed (cache), 2.10 MB → 9.44 MB (model.py:11)" in printed
    assert main(["diff", *paths, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["memory"]["requested_bytes"] == [6 * MIB, 13 * MIB]
    assert main(["diff", paths[0], paths[0], "--fail-on", "peak_memory > 2%"]) == 0
    assert "allocated, the same" in capsys.readouterr().out


def test_memory_from_before_the_history_is_a_culprit_by_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    kept = tmp_path / "kept.json"
    train, leak = (str(HOME / f"{name}.pickle.gz") for name in ("train", "leak"))
    assert main(["check", train, "--against", str(kept), "--update"]) == 0
    assert main(["check", leak, "--against", str(kept)]) == 1
    assert "\n        allocated before the history, 0 B → 96.5 MB in all" in capsys.readouterr().out


def test_a_leak_older_than_the_history_is_named_with_the_line_that_goes_on(
    capsys: pytest.CaptureFixture[str],
):
    paths = [str(HOME / f"{name}.pickle.gz") for name in ("train", "leak")]
    assert main(["diff", *paths, "--fail-on", "peak_memory > 2%", "--json"]) == 1
    (gate,) = json.loads(capsys.readouterr().out)["gates"]
    assert gate["source"] == "memory.py:91"
    assert gate["culprit"] == (
        "allocated before the history (before), 0 B → 96.5 MB; step (before), 0 B → 25.2 MB"
    )


def test_rows_of_one_size_are_always_in_one_order():
    home = ROOT / "tests" / "cases" / "optimizer-memory"
    base, new = (load(home / f"{which}.memory.pickle.gz") for which in ("before", "after"))
    found = memory_change(base, new)
    assert found is not None
    assert all(memory_change(base, new) == found for _ in range(20))
