"""Rows on what AOTAutograd's partitioner chose: kept for the backward, or computed there again."""

from __future__ import annotations

import msgspec


class SavedTensor(msgspec.Struct, frozen=True, kw_only=True):
    """``bytes`` is None where a size is a symbol; ``donated``: the backward may write over its memory, which
    nothing else aliases; None where the log does not say."""

    name: str
    dtype: str
    shape: tuple[str, ...]
    device: str
    bytes: int | None
    donated: bool | None = None


class Rematerialised(msgspec.Struct, frozen=True, kw_only=True):
    """A node of the forward that the backward computes again.

    ``spared_bytes``: what would else be saved for it; 0 of views (their base counts) and of what only other
    such nodes read; None where a size is a symbol.
    """

    name: str
    op: str
    dtype: str
    shape: tuple[str, ...]
    device: str
    bytes: int | None
    spared_bytes: int | None


class PartitionerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What min-cut was given: torch._functorch.config as the compilation's log has it, None where silent."""

    activation_memory_budget: float | None = None
    aggressive_recomputation: bool | None = None
    recompute_views: bool | None = None
    treat_parameters_as_free_to_save: bool | None = None
    max_dist_from_bw: int | None = None
    ban_recompute_used_far_apart: bool | None = None
    ban_recompute_long_fusible_chains: bool | None = None
    ban_recompute_materialized_backward: bool | None = None
    ban_recompute_not_in_allowlist: bool | None = None
    ban_recompute_reductions: bool | None = None

    def changed(self) -> dict[str, bool | float]:
        """What differs from torch's defaults."""
        default, given = msgspec.structs.asdict(DEFAULTS), msgspec.structs.asdict(self)
        return {name: value for name, value in given.items() if value is not None and value != default[name]}


DEFAULTS = PartitionerSettings(
    activation_memory_budget=1.0,
    aggressive_recomputation=False,
    recompute_views=False,
    treat_parameters_as_free_to_save=True,
    max_dist_from_bw=1000,
    ban_recompute_used_far_apart=True,
    ban_recompute_long_fusible_chains=True,
    ban_recompute_materialized_backward=True,
    ban_recompute_not_in_allowlist=True,
    ban_recompute_reductions=True,
)
