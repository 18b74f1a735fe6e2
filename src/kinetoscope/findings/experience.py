"""Savings predicted and measured: how far a rule's predictions were from what following its advice saved."""

from __future__ import annotations

UNKNOWN = (0.5, 1.5)  # rules that were not measured
# Measured over predicted saving: the least and the most of the pairs recorded (docs/evidence/findings.md) and
# of the everyday programs whose step was found (docs/evidence/everyday.md), a fifth wider, and with what was
# predicted. Where it begins below 0, following the advice has cost time.
MEASURED: dict[str, tuple[float, float]] = {
    "allocator-churn": (0.9, 1.3),
    "autotune-overdue": (1.0, 1.7),
    "cold-start-step": (0.8, 1.2),
    "collective-imbalance": (0.9, 1.3),
    "compile-tax": (1.0, 1.6),
    "copies-inside-ops": (0.9, 1.3),
    "cudagraph-anew": (0.9, 1.4),
    "cudagraph-input-copy": (0.8, 1.2),
    "cudagraph-skipped": (-4.1, 1.0),
    "data-in-memory": (0.8, 1.8),
    "data-loading-stall": (0.2, 1.7),
    "decode-gap": (0.6, 1.0),
    "dense-embedding-gradients": (0.7, 2.0),
    "deterministic-algorithms": (0.8, 1.3),
    "double-precision": (0.4, 1.3),
    "dtype-casts": (0.7, 1.1),
    "eager-remainder": (0.8, 1.2),
    "exposed-communication": (0.2, 1.0),
    "fft-length": (0.8, 1.3),
    "frame-not-compiled": (0.9, 1.3),
    "gc-pause": (0.8, 1.2),
    "graph-break": (0.8, 1.3),
    "hidden-device-copy": (1.0, 1.4),
    "host-op-stall": (0.8, 1.2),
    "index-backward": (0.6, 2.0),
    "kernel-variance": (0.6, 1.0),
    "kv-gather": (0.9, 1.3),
    "launch-gap": (0.7, 2.3),
    "layout-conversion": (0.8, 3.6),
    "low-bandwidth": (0.8, 1.2),
    "low-flops": (0.6, 1.0),
    "low-occupancy": (0.9, 1.4),
    "made-on-host": (0.9, 1.3),
    "many-tiny-kernels": (0.9, 2.9),
    "masked-attention": (1.0, 1.8),
    "merged-adapters": (0.6, 1.0),
    "misaligned-shapes": (0.8, 1.2),
    "needless-checkpointing": (1.0, 1.6),
    "needless-scaler": (1.0, 3.0),
    "new-shapes": (0.7, 1.8),
    "no-tensor-cores": (0.2, 2.0),
    "normalized-weights": (0.9, 1.3),
    "optimizer-not-fused": (0.4, 2.8),
    "overhead-bound": (0.5, 1.9),
    "padded-batch": (0.7, 1.0),
    "padded-tokens": (0.8, 1.2),
    "pageable-copy": (0.9, 1.5),
    "pairwise-differences": (0.4, 1.2),
    "profiled-compilation": (0.8, 1.2),
    "python-overhead": (0.8, 1.2),
    "rare-long-steps": (0.6, 1.3),
    "recompilation": (0.9, 1.3),
    "recompile-limit": (0.7, 1.1),
    "repeated-work": (0.8, 1.2),
    "results-on-host": (0.6, 1.9),
    "scoring-in-loop": (0.7, 1.6),
    "small-collectives": (1.0, 1.6),
    "small-grid": (0.8, 1.2),
    "sparse-transpose": (1.0, 2.1),
    "split-batches": (0.9, 1.9),
    "straggler": (0.8, 1.2),
    "sync-in-step": (0.6, 2.3),
    "tensors-of-lists": (0.8, 1.2),
    "unexplained-idle": (0.8, 1.8),
    "unfused-attention": (0.8, 1.3),
    "unfused-elementwise": (0.4, 1.4),
    "unfused-in-graph": (1.0, 1.8),
    "unused-graph": (0.5, 2.0),
}


def interval(rule: str) -> tuple[float, float]:
    """The least and the most that a saving may turn out to be, as multiples of the prediction."""
    return MEASURED.get(rule, UNKNOWN)


def helps(rule: str) -> bool:
    """Whether following the advice has always saved something."""
    return interval(rule)[0] > 0
