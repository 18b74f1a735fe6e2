"""Pairs of real recordings: the parts sum to the difference, and the first is what was changed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cache

import pytest
from _pytest.mark import ParameterSet

from cases.recorded import cases, recorded
from kinetoscope.comparison.account import Account, account
from kinetoscope.comparison.changes import Change, changes, ranked
from kinetoscope.comparison.compiler import claimed, facts
from kinetoscope.comparison.counts import counts
from kinetoscope.comparison.difference import gathered

# What stands first where `before` became `after`: its kind, a part of its name. Pairs whose sides differ in
# what the profiler did, or in a few steps' luck, have no such thing.
FIRST = {
    "allocator-churn": ("idle", "allocator: cudaFree"),
    "autotune-overdue": ("kernel", "triton_tem_fused_bmm"),
    "collective-imbalance": ("kernel", "SendRecv"),
    "compile-tax": ("graph_calls", "called once per step, not 40"),
    "copies-inside-ops": ("kernel", "direct_copy"),
    "cudagraph-input-copy": ("kernel", "multi_tensor_apply<Copy"),
    "data-loading-stall": ("idle", "data-loading"),
    "dtype-casts": ("kernel", "vectorized_elementwise<bfloat16"),
    "eager-remainder": ("kernel", "→ triton_red_fused"),
    "frame-not-compiled": ("graph_break", "1 graph break removed"),
    "gc-pause": ("idle", "collect"),
    "graph-break": ("graph_break", "1 graph break removed"),
    "hidden-device-copy": ("kernel", "Memcpy DtoD"),
    "host-op-stall": ("idle", "aten::sort"),
    "hotspot": ("kernel", "tensor_kernel_scan"),
    "launch-gap": ("compiled", "compiled graphs, called 3 times per step"),
    "layout-conversion": ("layout", "layout conversions per step removed"),
    "low-bandwidth": ("kernel", "→ vectorized_elementwise<Abs"),
    "low-occupancy": ("kernel", "softplus"),
    "many-tiny-kernels": ("kernel", "→ multi_tensor_apply<Lerp"),
    "misaligned-shapes": ("kernel", "align1 → nvjet"),
    "no-tensor-cores": ("kernel", "xmma_gemm_f32_nn_256x128x8 → xmma_gemm_tf32_nn_128x256x32"),
    "optimizer-not-fused": ("kernel", "→ multi_tensor_apply<FusedAdam"),
    "overhead-bound": ("idle", "launch-bound"),
    "pageable-copy": ("kernel", "Pageable -> Device) → Memcpy HtoD (Pinned"),
    "python-overhead": ("idle", "bookkeeping"),
    "recompilation": ("recompilation", "recompilation removed"),
    "recompile-limit": ("compile_failure", "recompile limit"),
    "small-collectives": ("kernel", "AllReduce"),
    "small-grid": ("kernel", "tensor_kernel_scan"),
    "sync-in-step": ("sync", "_local_scalar_dense"),
    "unfused-attention": ("kernel", "softmax_warp_forward"),
    "unfused-elementwise": ("compiled", "in place of eager code"),
}

# In the suite: idle time, kernels, the compiler's doing. The others are asked by hand (-m slow).
IN_THE_SUITE = {
    "graph-break", "low-bandwidth", "recompile-limit", "sync-in-step",
}  # fmt: skip


def _some_slow(names: Iterable[str]) -> list[ParameterSet]:
    return [pytest.param(name, marks=() if name in IN_THE_SUITE else pytest.mark.slow) for name in names]


def _sides(case: str) -> tuple[Account, Account]:
    found = [account(run) if (run := recorded(case, side)) else None for side in ("before", "after")]
    if found[0] is None or found[1] is None:
        pytest.skip("only one side was recorded")
    return found[0], found[1]


@cache
def _changes(case: str) -> list[Change]:
    base, new = _sides(case)
    counted = counts(base.run), counts(new.run)
    compiled = claimed(changes(base, new), facts(base.run, new.run, *counted))
    return ranked(gathered(compiled, base, new))


@pytest.mark.parametrize("case", _some_slow(cases()))
def test_an_account_is_the_whole_step(case: str) -> None:
    for own in _sides(case):
        waiting = float(own.launches["idle_us"].sum()) + float(own.idle["us"].sum())
        assert math.isclose(own.busy_us + waiting, own.step_us, rel_tol=1e-9)
        assert own.launches["us"].min() is None or own.launches["us"].min() >= 0


@pytest.mark.parametrize("case", _some_slow(cases()))
def test_the_parts_sum_to_the_difference(case: str) -> None:
    base, new = _sides(case)
    found = _changes(case)
    largest = max(base.step_us, new.step_us)
    assert math.isclose(
        sum(change.delta_us for change in found), new.step_us - base.step_us, abs_tol=1e-9 * largest
    )
    for change in found:
        assert math.isclose(change.delta_us, change.busy_us + change.waiting_us, abs_tol=1e-9 * largest), (
            change.name
        )


@pytest.mark.parametrize("case", _some_slow(FIRST))
def test_what_was_changed_stands_first(case: str) -> None:
    kind, words = FIRST[case]
    first = _changes(case)[0]
    assert (first.kind, words in first.name) == (kind, True), first.name
    base, new = _sides(case)
    assert first.delta_us * (new.step_us - base.step_us) > 0
