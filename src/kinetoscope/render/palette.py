"""One colour a category and a use of time, the same in every renderer; readable on light and dark."""

from __future__ import annotations

COMPUTE, COMMUNICATION, COPY, IDLE = "compute", "communication", "copy", "idle"

USES = {COMPUTE: "#4c8dd6", COMMUNICATION: "#d8576b", COPY: "#c9962f", IDLE: "#8b93a1"}

CATEGORIES = {
    "matmul": "#4c8dd6",
    "convolution": "#2fa39a",
    "attention": "#8e6fd8",
    "template": "#3f6fb5",
    "pointwise": "#e08a3c",
    "elementwise": "#d9705b",
    "reduction": "#c9a227",
    "persistent reduction": "#a98a1f",
    "normalization": "#c2559d",
    "softmax": "#a0569b",
    "embedding": "#6aa84f",
    "optimizer": "#57a05a",
    "user Triton": "#b5651d",
    "foreach": "#7fb069",
    "scan": "#5fb3c9",
    "split scan": "#4a9cb3",
    "sort": "#7a9e3a",
    "pooling": "#4fb286",
    "loss": "#b85c8f",
    "random": "#a78bd4",
    "quantization": "#c77f5a",
    "expert routing": "#5f8f8b",
    "recurrent": "#7d7fd6",
    "FFT": "#6fa3c9",
    "linear algebra": "#5574c4",
    "communication": "#d8576b",
    "copy": "#7f8fa3",
    "memset": "#9aa5b1",
}
OTHER = "#8b93a1"

# Why a device idles. Neighbours differ in lightness too, so that those who see few colours tell them apart.
CAUSES = {
    "launch-bound": "#e0a458",
    "synchronization": "#5b4b9a",
    "data-loading": "#b58bd0",
    "garbage-collection": "#a8b545",
    "host-op": "#8c5a2b",
    "allocator": "#d990b4",
    "compilation": "#2b6777",
    "waiting-for-rank": "#6fb7b0",
    "start-or-end": "#c3c9d2",
    "between-kernels": "#aab4c0",
    "unexplained": "#7d8794",
}

# Phases of one compilation, by the column that has their time: what each is called, and its colour.
PHASES = {
    "dynamo": ("Dynamo", "#4c8dd6"),
    "aot": ("AOTAutograd", "#8e6fd8"),
    "inductor": ("Inductor", "#2fa39a"),
    "codegen": ("code generation", "#6aa84f"),
    "triton": ("generated kernels", "#e08a3c"),
    "autotune": ("autotuning", "#c9a227"),
    "cudagraphs": ("CUDA graphs", "#a98a1f"),
    "backward": ("backward graph", "#c2559d"),
}

# Parts of memory; the first are those that a model must have, the last are no tensor's.
MEMORY = {
    "parameter": "#4c8dd6",
    "gradient": "#8e6fd8",
    "optimizer state": "#57a05a",
    "activation": "#e08a3c",
    "input": "#c9a227",
    "temporary": "#d9705b",
    "cache": "#2fa39a",
    "graph pool": "#5574c4",
    "communication": "#d8576b",
    "workspace": "#8a6d52",
    "kept": "#a0569b",
    "before": "#7f8fa3",
    "rounding": "#9aa5b1",
    "fragmentation": "#8b93a1",
    "cached": "#c3c9d2",
}


def memory(part: str) -> str:
    return MEMORY.get(part, OTHER)


def category(name: str) -> str:
    """The colour of a kernel category; categories without one of their own share a grey."""
    return CATEGORIES.get(name, OTHER)


VERDICTS = {
    "faster": "green",
    "slower": "red",
    "fails": "red",
    "differs": "red",
    "cannot tell": "dim",
    "confirmed": "bold green",
    "more than promised": "bold green",
    "in part": "yellow",
    "refuted": "bold red",
}


def verdict(name: str | None) -> str:
    return VERDICTS.get(name or "", "")
