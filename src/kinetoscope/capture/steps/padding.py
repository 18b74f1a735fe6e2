"""How much of a program's batches is padding, by the mask that tokenizers make next to their tokens.

Batches are looked at once a loader has given them, by C code that calls the loader first: where it raises, no
frame of ours is on the program's stack. Their masks are read as bytes, so that torch runs no op for it. Of a
program without such a loader the step tells in which lines are noted: what its models are called with is read
once that step is over.
"""

from __future__ import annotations

import contextlib
import ctypes
import inspect
import itertools
import sys
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import CodeType, FrameType
from typing import Any

from kinetoscope.capture import torch_private
from kinetoscope.recording.manifest import BatchPadding, LossLabels

TOKENS, MASK = "input_ids", "attention_mask"
IGNORED = -100  # by losses of torch, unless they are given another label
ENOUGH = 16  # batches
MOST = 1 << 18  # tokens of a batch, which take a quarter of a millisecond
MOST_HELD = 1 << 22  # numbers of all tables that are kept until their step is over, …
SAMPLE = 256  # … of which so many rows are read where there are more than ``MOST``
ROWS, UNLIKE = 8, 4  # of a table that shows its own padding: rows, and lengths among them
LENGTHS, ENDS = "lengths", "ends"  # what tells padding, where it is no mask
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
    """The padding of what the models of one step are called with, by masks, lengths or tables' own ends, and
    the labels of its losses."""

    LOSSES = "torch/nn/modules/loss.py"  # get what models give
    FUNCTIONS = {"cross_entropy", "nll_loss"}, "torch/nn/functional.py"
    NAMED = "label", "target"  # what functions call their labels

    def __init__(self) -> None:
        # of each call tables that may be tokens and their mask, what may be lengths, and which rows are read
        self.batches: list[tuple[list[Any], list[Any], int]] = []
        self.held = 0  # numbers in these
        self.others = False  # something is computed of more than tokens, such as pictures
        self.of_losses: list[tuple[Any, int]] = []  # labels, and which of them are ignored
        self.of_functions: list[tuple[Any, int]] = []
        self.known: dict[CodeType, tuple[str, ...]] = {}  # of functions of the program, what they call labels

    def called(self, frame: FrameType) -> None:
        """A module that is no part of another begins its ``forward``."""
        if frame.f_code.co_filename.endswith(self.LOSSES):
            return
        with contextlib.suppress(Exception), torch_private.asked_in_silence():
            given = [one for value in frame.f_locals.values() for one in torch_private.tensors_in(value)]
            numbers = [one for one in given if not one.is_floating_point()]
            tables = [one for one in numbers if one.dim() == 2]
            # Masks and distances of pairs of tokens are of tokens too.
            widths = {1, *(one.shape[1] for one in tables)}
            self.others |= any(one.dim() > 2 and not widths.issuperset(one.shape[1:]) for one in given)
            lengths = [one for one in numbers if one.dim() == 1 and one.element_size() > 1]
            held = self.held + sum(one.numel() for one in (*tables, *lengths))
            if tables and len(self.batches) < ENOUGH and held <= MOST_HELD:
                self.held = held
                many = max(one.numel() for one in tables) > MOST
                self.batches.append((tables, lengths, max(1, len(tables[0]) // SAMPLE) if many else 1))

    def labelled(self, frame: FrameType, is_own: bool) -> None:
        """A function begins: a loss of torch, or one of the program's own, which may get labels."""
        code, (functions, file) = frame.f_code, self.FUNCTIONS
        if code.co_name in functions and code.co_filename.endswith(file):
            names, into = ("target",), self.of_losses
        elif is_own and (names := self._names_of_labels(code)):
            into = self.of_functions
        else:
            return
        with contextlib.suppress(Exception), torch_private.asked_in_silence():
            given = frame.f_locals
            for one in torch_private.tensors_in([given[name] for name in names]):
                many = one.numel() + sum(labels.numel() for labels, _ in into)
                if not one.is_floating_point() and many <= MOST and len(into) < ENOUGH:
                    into.append((one, given.get("ignore_index", IGNORED)))

    def _names_of_labels(self, code: CodeType) -> tuple[str, ...]:
        """The arguments of a function that are labels by their name; a generator that goes on has those of
        before."""
        known = self.known.get(code)
        if known is None:
            arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            named = tuple(name for name in arguments if any(word in name for word in self.NAMED))
            known = self.known[code] = () if code.co_flags & inspect.CO_GENERATOR else named
        return known

    def counted(self) -> BatchPadding | None:
        """The tokens and their padding, read once the step is over; None where they are not known."""
        batches, self.batches = [] if self.others else self.batches, []
        with contextlib.suppress(Exception):
            found = [*filter(None, itertools.starmap(_read, batches))]
            # Without any this raises.
            tokens, padding, beyond, rows = map(sum, zip(*(counts for counts, _ in found), strict=True))
            by_lengths, by_ends = (any(sign == of for _, of in found) for sign in (LENGTHS, ENDS))
            return BatchPadding(tokens, padding, beyond, rows, by_lengths, by_ends)
        return None

    def ignored(self) -> LossLabels | None:
        """The labels of the step's losses, read once it is over. Where torch's losses get none, those of the
        program's functions: what is to be ignored can be no class of anything."""
        of_losses, of_functions = self.of_losses, self.of_functions
        self.of_losses, self.of_functions = [], []
        with contextlib.suppress(Exception):
            found = [*itertools.starmap(_labels, of_losses)] or [
                counts for counts in itertools.starmap(_labels, of_functions) if counts[1]
            ]
            labels, ignored = map(sum, zip(*found, strict=True))  # raises without any
            return LossLabels(labels, ignored, len(found))
        return None


def _labels(labels: Any, ignored: int) -> tuple[int, int]:
    """All labels of a table, and those that are ignored."""
    (numbers,) = torch_private.read_in_silence([labels])
    while isinstance(numbers[0], list):
        numbers = [*itertools.chain(*numbers)]
    return len(numbers), numbers.count(ignored)


def _read(tables: list[Any], lengths: list[Any], every: int) -> tuple[tuple[int, int, int, int], str] | None:
    """The fields of a ``BatchPadding`` of a call, by every so many of its rows, and what tells them."""
    read = torch_private.read_in_silence([*tables, *lengths], every)
    numbers, ends = read[: len(tables)], read[len(tables) :]
    by_sign = {
        MASK: map(_padded, itertools.permutations(numbers, 2)),
        LENGTHS: itertools.starmap(_ended, itertools.product(ends, numbers)),
        ENDS: map(_filled, numbers),
    }
    return next(((found, sign) for sign, of in by_sign.items() for found in of if found), None)


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
    return _counts([*map(sum, mask)], len(mask[0]))


def _ended(lengths: list[int], tokens: list[list[int]]) -> tuple[int, int, int, int] | None:
    """The same, if those are the lengths of its rows: what comes after them is all of the same token."""
    width = len(tokens[0])
    if len(lengths) != len(tokens) or not all(0 <= length <= width for length in lengths):
        return None
    after, before = set[int](), set[int]()
    for length, row in zip(lengths, tokens, strict=True):
        before.update(row[:length])
        after.update(row[length:])
    return _counts(lengths, width) if len(after) == 1 < len(before) else None


def _filled(tokens: list[list[int]]) -> tuple[int, int, int, int] | None:
    """The same, if rows of unlike lengths are filled up with a token that is nowhere else."""
    for rows in ([row[::-1] for row in tokens], tokens):  # filled up on the right, on the left
        ((fills, _),) = Counter(row[0] for row in rows).most_common(1)
        own = [[*itertools.dropwhile(fills.__eq__, row)] for row in rows]
        kept = [*map(len, own)]
        alone = all(fills not in row for row in own)
        if alone and len(rows) >= ROWS and len(set(kept)) >= UNLIKE:
            return _counts(kept, len(rows[0]))
    return None


def _counts(kept: list[int], width: int) -> tuple[int, int, int, int]:
    rows = len(kept)
    return rows * width, rows * width - sum(kept), rows * (width - max(kept)), rows
