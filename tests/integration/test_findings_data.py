"""What the founding documents' cases give, and that every alarm on the shared recordings was looked at."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec
import pytest

from cases.recorded import HERE
from kinetoscope.findings.model import Finding
from kinetoscope.findings.rank_view import views
from kinetoscope.findings.registry import find
from kinetoscope.sources.run import load

REVIEWED: dict[str, dict[str, str]] = msgspec.json.decode((HERE / "reviewed.json").read_bytes())


@cache
def found_in(folder: Path, name: str) -> tuple[list[Finding], float]:
    """The findings of a recording, and its step in µs."""
    run = load(*files(folder, name))
    return find(run), max(view.own_step_us for view in views(run))


def files(folder: Path, name: str) -> list[Path]:
    """A recording, all ranks in a folder, or two ranks (``ddp_rank0+1``)."""
    if name.endswith("rank0+1"):
        return [folder / f"{name.removesuffix('0+1')}{rank}.json.gz" for rank in (0, 1)]
    if name.endswith(".gz"):
        return [folder / name]
    path = folder / name
    return sorted(path.glob("*.gz")) if path.is_dir() else [folder / f"{name}.json.gz"]


@pytest.mark.parametrize(
    ("name", "there", "absent"),
    [
        ("h200/mm_64_cold_eager.json.gz", {"overhead-bound", "cold-start-step", "final-sync"}, set()),
        ("h200/mm_4096_warm_eager.json.gz", set(), {"overhead-bound", "cold-start-step"}),
        ("h200/mm_4096_warm_compile.json.gz", {"hidden-device-copy"}, set()),
        ("h200/mm_4096_warm_compile_reduce-overhead.json.gz", {"cudagraph-input-copy"}, set()),
        ("h200/mm_4096_warm_compile_max-autotune.json.gz", {"cudagraph-input-copy"}, set()),
        ("h200/forum_noreturn_second.json.gz", {"nothing-ran"}, {"profiled-compilation"}),
        ("h200/forum_noreturn_first.json.gz", {"profiled-compilation"}, set()),
        ("h200/forum_return_first.json.gz", {"profiled-compilation"}, set()),
        ("h200/llama_generate_eager.json.gz", {"overhead-bound"}, set()),
        ("h200/densenet121_infer_bs1_compile.json.gz", {"overhead-bound"}, set()),
        ("h200/mixnet_l_train_bs128_compile.json.gz", {"copies-inside-ops", "misaligned-shapes"}, set()),
        ("h200-dist/ddp_straggler_rank0", {"straggler"}, set()),
        ("h200-dist/ddp_straggler_rank0+1", {"straggler"}, set()),
    ],
)
def test_the_founding_cases(shared_data: Path, name: str, there: set[str], absent: set[str]) -> None:
    found = {finding.rule for finding in found_in(shared_data, name)[0]}
    assert there <= found
    assert not absent & found


def test_a_straggler_is_shown_with_what_the_late_rank_did(shared_data: Path) -> None:
    """Rank 1 slept 20 ms per step."""
    found, _ = found_in(shared_data, "h200-dist/ddp_straggler_rank0+1")
    (finding,) = [finding for finding in found if finding.rule == "straggler"]
    assert finding.remaining.saving_us == pytest.approx(20_000, rel=0.15)
    shown = finding.evidence[-1]
    assert shown.text.startswith("rank 1 was idle 20")
    assert "the launching thread recorded nothing" in shown.text
    assert 20_000 < shown.end_us - shown.start_us < 21_000


@pytest.mark.parametrize("name", [name for name in REVIEWED if "backward_module" not in name])
def test_every_alarm_was_looked_at(shared_data: Path, name: str) -> None:
    found, step_us = found_in(shared_data, name)
    assert {finding.rule for finding in found} == set(REVIEWED[name])
    first = [rule for rule, judgement in REVIEWED[name].items() if judgement.startswith("first, ")]
    assert not first or found[0].rule == first[0]
    assert sum(finding.remaining.saving_us for finding in found) <= 1.0001 * step_us
