"""How much of a program's batches is padding, by the mask that tokenizers make next to their tokens.

Batches are looked at once a loader has given them, by C code that calls the loader first: where it raises, no
frame of ours is on the program's stack. Their masks are read as bytes, so that torch runs no op for it. Of a
program without such a loader the step tells in which lines are noted: what its models are called with is read
once that step is over.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from array import array
from collections.abc import Callable, Mapping, Sequence
from itertools import permutations
from types import FrameType
from typing import Any

from kinetoscope.capture import torch_private
from kinetoscope.recording.manifest import BatchPadding

TOKENS, MASK = "input_ids", "attention_mask"
IGNORED = -100  # by losses of torch, unless they are given another label
ENOUGH = 16  # batches
MOST = 1 << 18  # tokens of a batch, which take a quarter of a millisecond
MOST_LABELS = 1 << 16  # of a batch, which take some milliseconds where any is ignored


class Never:
    """Is equal to nothing, so that no batch is taken for the end."""

    def __eq__(self, _: object) -> bool:
        return False

    __hash__ = object.__hash__


class PaddingSeen:
    """The padding of the first batches that loaders give."""

    def __init__(self) -> None:
        self.batches = self.tokens = self.padding = self.beyond = self.rows = 0
        # of batches without an ignored label, which have tokens if others have padding
        self.unpadded_tokens = self.unpadded_rows = 0

    @property
    def found(self) -> BatchPadding | None:
        if not self.tokens:
            return None
        tokens, rows = self.tokens + self.unpadded_tokens, self.rows + self.unpadded_rows
        return BatchPadding(tokens, self.padding, self.beyond, rows)

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
        # Of other objects the program's own classes would be asked.
        if type(batch) in (list, tuple) and len(batch) == len(torch_private.tensors_in(batch)) == 2:
            self._by_labels(*batch)
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
        self.rows += rows

    def _by_labels(self, tokens: Any, labels: Any) -> None:
        """Count what has labels that torch's losses ignore, if those are a mask of the tokens. The search of
        all labels' bytes is what a batch without such takes: a tenth of a millisecond for 32,000."""
        if IGNORED.to_bytes(8, sys.byteorder, signed=True) not in _raw(labels):
            self.unpadded_tokens += labels.numel()
            self.unpadded_rows += len(labels)
            return
        numbers = [array("q", _raw(table)).tolist() for table in (labels, tokens)]
        rows, width = tokens.shape
        by_row = [[table[at : at + width] for at in range(0, len(table), width)] for table in numbers]
        mask = [[int(label != IGNORED) for label in row] for row in by_row[0]]
        if found := _padded((mask, by_row[1])):
            self.tokens += found[0]
            self.padding += found[1]
            self.beyond += found[2]
            self.rows += rows


def _raw(table: Any) -> bytes:
    """A small table of integers in the CPU's memory, read without an op of torch."""
    is_read = table.device.type == "cpu" and table.is_contiguous() and not table.is_floating_point()
    if table.dim() != 2 or not is_read or table.element_size() != 8 or table.numel() > MOST_LABELS:
        raise ValueError
    return ctypes.string_at(table.data_ptr(), 8 * table.numel())


class PaddingGiven:
    """The padding of what the models of one step are called with."""

    LOSSES = "torch/nn/modules/loss.py"  # get what models give

    def __init__(self) -> None:
        self.batches: list[list[Any]] = []  # of each call the integers that may be tokens and their mask
        self.others = False  # something is computed of more than tokens, such as pictures

    def called(self, frame: FrameType) -> None:
        """A module that is no part of another begins its ``forward``."""
        if frame.f_code.co_filename.endswith(self.LOSSES):
            return
        with contextlib.suppress(Exception), torch_private.asked_in_silence():
            given = [one for value in frame.f_locals.values() for one in torch_private.tensors_in(value)]
            self.others |= any(one.dim() > 2 for one in given)
            tables = [one for one in given if one.dim() == 2 and not one.is_floating_point()]
            if len(tables) > 1 and len(self.batches) < ENOUGH and all(one.numel() <= MOST for one in tables):
                self.batches.append(tables)

    def counted(self) -> BatchPadding | None:
        """The tokens and their padding, read once the step is over; None where they are not known."""
        batches, self.batches = [] if self.others else self.batches, []
        with contextlib.suppress(Exception):
            lists = [torch_private.read_in_silence(tables) for tables in batches]
            found = [next(filter(None, map(_padded, permutations(tables, 2))), None) for tables in lists]
            return BatchPadding(*map(sum, zip(*filter(None, found), strict=True)))  # raises without any
        return None


def _padded(pair: Sequence[list[list[int]]]) -> tuple[int, int, int, int] | None:
    """The fields of a ``BatchPadding``, if the one is the mask of the other: its zeros are at one end of each
    row, and all of the same token."""
    mask, tokens = pair
    if [*map(len, mask)] != [*map(len, tokens)] or not set().union(*mask) <= {0, 1}:
        return None
    by_mask = [set[int](), set[int]()]
    for row, ids in zip(mask, tokens, strict=True):
        if sorted(row) not in (row, row[::-1]):
            return None
        for kept, token in zip(row, ids, strict=True):
            by_mask[kept].add(token)
    if len(by_mask[0]) > 1 or len(by_mask[1]) < 2:
        return None
    kept, rows, width = [*map(sum, mask)], len(mask), len(mask[0])
    return rows * width, rows * width - sum(kept), rows * (width - max(kept)), rows
