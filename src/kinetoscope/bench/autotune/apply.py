"""Making a program use the configurations that won, and showing that it does.

Inductor looks every kernel up in ``torch._inductor.config.autotune_lookup_table`` (kernel text →
configuration) before it chooses by itself. `write` puts such a table into a file, and says what loads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from kinetoscope.bench import torch_names
from kinetoscope.bench.autotune.configurations import Tuned
from kinetoscope.bench.kernels import replica
from kinetoscope.bench.kernels.generated import Module
from kinetoscope.bench.measure import results


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    """What was written, and what Inductor did with it."""

    table: str
    lines: tuple[str, ...]
    """To put into the program before its first compiled call."""
    kernels: tuple[str, ...]
    picked_up: tuple[str, ...]
    """Kernels that Inductor, given the table, builds in the winning configuration."""


def winners(tuned: Sequence[Tuned]) -> dict[str, dict[str, int]]:
    """Kernel name → configuration, for each kernel whose winner is faster than its default."""
    return {kernel.name: kernel.winner for kernel in tuned if kernel.is_faster}


def write(folder: Path, tuned: Sequence[Tuned], modules: Mapping[str, Module]) -> Applied:
    """Write the winners as ``folder/bench/autotune_lookup_table.json`` and have Inductor read them back."""
    chosen = winners(tuned)
    table = {k.lookup_key: k.winner for k in tuned if k.name in chosen and k.lookup_key is not None}
    path = results.save(folder, "autotune_lookup_table", table)
    picked_up: list[str] = []
    with torch_names.lookup_table(table):
        for kernel in tuned:
            if kernel.name in chosen:
                source = modules[kernel.module].kernels[kernel.name].source
                configs = getattr(replica.load_source(source), kernel.name).configs
                if [torch_names.configuration(c) for c in configs] == [kernel.winner]:
                    picked_up.append(kernel.name)
    return Applied(
        table=str(path),
        lines=(
            "import json, torch._inductor.config",
            f"torch._inductor.config.autotune_lookup_table.update(json.load(open({str(path)!r})))",
        ),
        kernels=tuple(chosen),
        picked_up=tuple(picked_up),
    )
