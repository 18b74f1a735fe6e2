"""How much of a loader's batches is padding, by the mask that tokenizers make next to their tokens.

Batches are looked at once a loader has given them, by C code that calls the loader first: where it raises, no
frame of ours is on the program's stack. Their masks are read as bytes, so that torch runs no op for it.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Mapping
from typing import Any

from kinetoscope.capture import torch_private
from kinetoscope.recording.manifest import BatchPadding

TOKENS, MASK = "input_ids", "attention_mask"
ENOUGH = 16  # batches
MOST = 1 << 18  # tokens of a batch, which take a quarter of a millisecond


class Never:
    """Is equal to nothing, so that no batch is taken for the end."""

    def __eq__(self, _: object) -> bool:
        return False

    __hash__ = object.__hash__


class PaddingSeen:
    """The padding of the first batches that loaders give."""

    def __init__(self) -> None:
        self.batches = self.tokens = self.padding = self.beyond = 0

    @property
    def found(self) -> BatchPadding | None:
        return BatchPadding(self.tokens, self.padding, self.beyond) if self.tokens else None

    def watched(self, load: Callable[[], Any]) -> tuple[Any, ...]:
        """A function and its argument, which give what ``load`` gives, or raise what it raises."""
        return (load,) if self.batches >= ENOUGH else (next, map(self.look, iter(load, Never())))

    def look(self, batch: Any) -> Any:
        self.batches += 1
        # The program's own batch is not ours to break.
        with contextlib.suppress(Exception), torch_private.asked_in_silence():
            self._count(batch)
        return batch

    def _count(self, batch: Any) -> None:
        if not isinstance(batch, Mapping) or MASK not in batch or TOKENS not in batch:
            return
        mask, others = batch[MASK], [one for one in batch.values() if hasattr(one, "dim")]
        if mask.shape != batch[TOKENS].shape or any(one.dim() > 2 for one in others):  # pictures, say
            return
        tokens, size = mask.numel(), mask.element_size()
        is_read = mask.device.type == "cpu" and mask.is_contiguous() and not mask.is_floating_point()
        if mask.dim() != 2 or not is_read or tokens > MOST:
            return
        low = (ctypes.c_char * (tokens * size)).from_address(mask.data_ptr()).raw[::size]
        rows, width = mask.shape
        kept = [low.count(1, at, at + width) for at in range(0, tokens, width)]
        if low.count(0) + sum(kept) != tokens:  # other numbers than 0 and 1
            return
        self.tokens += tokens
        self.padding += tokens - sum(kept)
        self.beyond += rows * (width - max(kept))
