"""Snapshots of one H200 against what torch counted there, and promises against what the changes freed."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from msgspec.structs import replace

import traces
from kinetoscope.analysis.memory.growth import growth
from kinetoscope.analysis.memory.headroom import fits
from kinetoscope.analysis.memory.peak import RankHistory, devices, histories, holders, split
from kinetoscope.findings.registry import find
from kinetoscope.sources.run import LoadedRun, MemoryFiles

HOME = Path(__file__).resolve().parents[1] / "fixtures" / "h200_memory"
COUNTED: dict[str, Any] = json.loads((HOME / "counted.json").read_text())
MOST: dict[str, dict[str, int]] = COUNTED["most"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("held")

    @cache
    def run(name: str) -> LoadedRun:
        held = folder / f"{name}.json"
        held.write_bytes(gzip.decompress((HOME / f"{name}.json.gz").read_bytes()))
        memory = (MemoryFiles(0, HOME / f"{name}.pickle.gz", held),)
        return LoadedRun((traces.trace(traces.step(1, 0, 100)),), snapshots=memory)

    return run


def only(run: LoadedRun) -> RankHistory:
    (one,) = histories(run).found
    return one


@pytest.mark.parametrize("name", COUNTED["peaks"])
def test_every_byte_of_the_peak_is_torch_s_own_count_and_has_its_owner(runs: Any, name: str) -> None:
    history = only(runs(name)).history
    assert {"requested": history.requested, "reserved": history.reserved} == COUNTED["peaks"][name]
    assert split(history)["bytes"].sum() == history.reserved
    assert split(history)["bytes"].min() >= 0
    assert holders(history)["bytes"].sum() == history.requested


@pytest.mark.parametrize("name", COUNTED["peaks"])
def test_what_multiplies_has_a_workspace_in_each_thread_that_does(runs: Any, name: str) -> None:
    """32 MiB for cuBLAS and 1 MiB for cuBLASLt; nothing is left of which nobody knows what it is."""
    parts = dict(split(only(runs(name)).history).select("part", "bytes").iter_rows())
    threads, lt = (1 if name == "generate" else 2), (2 if name == "checkpoint" else 1)
    assert parts["workspace"] == threads * (32 << 20) + lt * (1 << 20)
    assert "before" not in parts


@pytest.mark.parametrize("name", ["train", "generate"])
def test_without_the_program_s_account_modules_own_the_parameters(runs: Any, name: str) -> None:
    one = only(runs(name))
    (unsaid,) = devices(one.history.snapshot, None)
    said, found = (split(history).filter(part="parameter") for history in (one.history, unsaid))
    assert found.equals(said)


# What was recorded, what was counted with the change, the rule that promises, and what it promises of.
CHANGES = (
    ("train", "train checkpoint", "activation-memory", "allocated"),
    ("train", "train logits", "float32-logits", "allocated"),
    ("keeps", "keeps none", "gradients-kept", "allocated"),
    ("pairwise", "pairwise cdist", "one-temporary", "allocated"),
    ("ragged", "ragged expandable", "memory-fragmentation", "reserved"),
)


@pytest.mark.parametrize(("before", "after", "rule", "kind"), CHANGES, ids=[rule for *_, rule, _ in CHANGES])
def test_what_a_change_was_promised_to_free_it_freed(
    runs: Any, before: str, after: str, rule: str, kind: str
) -> None:
    (promise,) = (one for one in find(runs(before)) if one.rule == rule)
    freed = MOST[before][kind] - MOST[after][kind]
    assert promise.saving_bytes == pytest.approx(freed, rel=0.1)
    assert promise.saving_bytes_at_most == (before == "ragged")  # it has its peaks counted anew in each step
    assert promise.saving_bytes >= freed or not promise.saving_bytes_at_most


def test_what_was_measured_to_free_nothing_is_not_promised(runs: Any) -> None:
    # The fused optimizer's temporaries are not at the peak of this program, and nothing has holes.
    assert abs(MOST["train fused"]["allocated"] - MOST["train"]["allocated"]) < 1 << 20
    found = [one.rule for one in find(runs("train")) if one.saving_bytes]
    assert found == ["float32-logits", "activation-memory"]  # what frees most comes first
    assert not [one for one in find(runs("generate")) if one.saving_bytes]
    for steady in ("compiled", "checkpoint", "leak", "full", "keeps"):
        assert "memory-fragmentation" not in {one.rule for one in find(runs(steady))}
    assert "activation-memory" not in {one.rule for one in find(runs("checkpoint"))}


def test_a_leak_grows_by_what_it_was_measured_to_grow(runs: Any) -> None:
    one = only(runs("leak"))
    assert one.held is not None
    (row,) = growth(one.history, one.held.boundaries_ns).iter_rows(named=True)
    steps = 24
    leaked = MOST["leak"]["requested"] - MOST["leak leak"]["requested"]
    assert (row["line"], row["bytes_per_step"] * steps) == ("memory.py:91", leaked)


@pytest.mark.parametrize(("name", "times"), [("train 4", 0.5), ("train 16", 2.0)])
def test_the_peak_of_another_batch_is_foreseen(runs: Any, name: str, times: float) -> None:
    room = fits(only(runs("train")).history)
    assert room is not None
    foreseen = room.fixed_bytes + times * room.scaling_bytes
    assert foreseen == pytest.approx(MOST[name]["requested"], rel=0.001)


def test_what_would_free_most_is_said_of_the_moment_that_failed(runs: Any) -> None:
    """Of five times the batch that was recorded: each layer's activations are five times as large."""
    settled = {one.rule: one.saving_bytes for one in find(runs("full"))}
    failed = find(replace(runs("full"), snapshots=runs("full").snapshots + runs("full-failed").snapshots))
    fits = [(one.rule, one.saving_bytes) for one in failed if one.saving_bytes]
    assert [rule for rule, _ in fits] == ["float32-logits", "activation-memory", "memory-fragmentation"]
    assert dict(fits)["activation-memory"] == pytest.approx(5 * settled["activation-memory"], rel=0.01)
    # Three of the four tensors are there by then: of the first all, of two the half.
    assert dict(fits)["float32-logits"] == pytest.approx(2 * 2_621_440_000, rel=0.01)


def test_what_leaked_before_the_history_is_known_by_its_variable(runs: Any) -> None:
    kept = only(runs("leak")).history.at_peak.filter(pl.col("role") == "kept")
    (leak,) = (one for one in find(runs("leak")) if one.rule == "memory-leak")
    assert kept["bytes"].unique().to_list() == [4_194_304]
    assert leak.saving_bytes == (len(kept) + 1) * 4_194_304  # and the one of this step
    assert "is used up after 3" in leak.evidence[0].text


def test_the_batch_that_failed_is_just_too_large(runs: Any) -> None:
    settled, failed = only(runs("full")).history, only(runs("full-failed")).history
    assert "gradient" not in split(failed)["part"]  # the backward pass had just begun
    room, before = fits(failed, failed), fits(settled, failed)
    assert room is not None
    assert before is not None
    assert 0.95 < room.high < 1
    assert 4.5 < before.high < 5  # five times the first batch, 40 sequences, is what failed


@pytest.mark.parametrize("name", ["train", "full", "full-failed", "checkpoint", "compiled", "ragged", "leak"])
def test_a_bare_snapshot_has_the_roles_that_the_program_gave(runs: Any, name: str) -> None:
    """But for what was there before the history, of which nothing else knows."""
    told = only(runs(name)).history
    bare = devices(told.snapshot, None)[0].known.select("allocation", bare="role")
    both = told.at_peak.join(bare, on="allocation").filter(pl.col("bare") != "before")
    assert both.filter(pl.col("role") != pl.col("bare")).select("role", "bare", "line").rows() == []
    assert both["bytes"].sum() > 0.9 * told.requested


def test_a_bare_snapshot_of_a_failure_has_its_advice_its_batch_and_its_severity(runs: Any) -> None:
    told = runs("full-failed")
    bare = replace(told, snapshots=(MemoryFiles(0, told.snapshots[0].path),))
    said = [
        [(one.rule, one.severity, one.saving_bytes) for one in find(run) if one.saving_bytes]
        for run in (told, bare)
    ]
    assert said[0] == said[1]
    assert {severity for _, severity, _ in said[0]} == {"high"}
    one = only(bare)
    room = fits(one.history, one.history)
    assert room is not None
    assert room.low < room.high <= 1
