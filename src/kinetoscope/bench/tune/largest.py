"""The largest batch that fits: what a recording's memory foresees is tried, and corrected."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from kinetoscope import numbers
from kinetoscope.bench.measure.device import import_torch
from kinetoscope.bench.tune.program import RunTrial, run_trial
from kinetoscope.bench.tune.results import ran_out
from kinetoscope.bench.tune.settings import Setting
from kinetoscope.bench.tune.trial import TrialRequest
from kinetoscope.errors import ProgramError, UsageError

SCHEMA = "kinetoscope.largest/1"
CLOSE = 100  # one batch that fits and one that does not are near enough where they differ by one in so many
MOST_TRIES = 16


class Foreseen(msgspec.Struct, frozen=True, kw_only=True):
    """The memory in a recording: how much of its peak grows with the batch, and how much does not."""

    recording: str
    batch: int  # the recorded one
    low: int
    high: int  # batches between which the largest that fits is foreseen
    fixed_bytes: int
    scaling_bytes: int

    def peak_bytes(self, batch: int) -> int:
        return self.fixed_bytes + self.scaling_bytes * batch // self.batch


class Try(msgspec.Struct, frozen=True, kw_only=True):
    batch: int
    fits: bool
    foreseen_bytes: int
    peak_bytes: int | None  # allocated by tensors; for a batch that does not fit, until memory ran out
    retries: int  # allocations that had room only once what was cached had been given back to the driver


class LargestBatch(msgspec.Struct, frozen=True, kw_only=True):
    schema: str = SCHEMA
    command: tuple[str, ...] = ()
    device: str = ""
    foreseen: Foreseen
    tries: tuple[Try, ...]  # in the order in which they were made
    largest: int | None  # the largest that fits; null: none did
    too_large: int | None  # the smallest that does not fit; null: none was found


def recorded_batch(command: Sequence[str], words: Sequence[str]) -> int | None:
    """The number in a recorded command at the place of ``{batch}``; None: it is of another program."""
    tail = command[len(command) - len(words) :]
    batch: int | None = None
    if len(words) > len(command) or Path(tail[0]).name != Path(words[0]).name:
        return None
    for given, word in zip(tail[1:], words[1:], strict=True):
        before, mark, after = word.partition("{batch}")
        value = given.removeprefix(before).removesuffix(after) if mark else ""
        if given != word.replace("{batch}", value) or (mark and not value.isdecimal()):
            return None
        batch = int(value) if mark else batch
    return batch or None


def search(
    fits: Callable[[int], bool], low: int, high: int, most: int = MOST_TRIES
) -> tuple[int | None, int | None]:
    """The largest number found to fit and the smallest found not to, as near to each other as it pays.

    Where the largest lies between ``low`` and ``high`` as foreseen, the first two tries confirm it.
    """
    largest, too_large = 0, 0
    batch, stride = max(1, low), max(1, high - low + 1)
    for _ in range(most):
        if fits(batch):
            largest = batch
        else:
            too_large = batch
        if too_large and too_large - largest <= max(1, largest // CLOSE):
            break
        if largest and too_large:
            batch = (largest + too_large) // 2
            continue
        batch = batch + stride if largest else max(1, batch - stride)
        stride *= 2
    return largest or None, too_large or None


def largest_batch(
    foreseen: Foreseen,
    words: Sequence[str],  # the script (or module) and its arguments; ``{batch}`` is replaced
    *,
    module: bool = False,
    # steps, seconds: after which a run is ended; memory must have been at its most by then
    steps: int = 40,
    seconds: float = 60.0,
    launch: RunTrial = run_trial,  # runs one trial (tests give their own)
    progress: Callable[[str], None] = lambda _: None,
) -> LargestBatch:
    """Run a program as it is written, with one batch after the other, each in a process of its own. Raises
    UsageError where the batch has nowhere to go, ProgramError where the program fails, and not for lack of
    memory, and MissingDependencyError where torch is not installed here."""
    import_torch()
    if not any("{batch}" in word for word in words):
        raise UsageError("the batch has nowhere to go", hint="write {batch} where the program takes its size")
    tries: list[Try] = []
    devices: list[str] = []
    with tempfile.TemporaryDirectory(prefix="kinetoscope-tune-") as folder:

        def fits(batch: int) -> bool:
            progress(f"batch {batch:,}, foreseen to hold {numbers.size(foreseen.peak_bytes(batch))}")
            order = TrialRequest(
                setting=Setting(as_written=True, batch=str(batch)),
                folder=folder,
                steps=max(4, steps),
                seconds=seconds,
                module=module,
            )
            result = launch(order, [word.replace("{batch}", str(batch)) for word in words], {})
            if result.error is not None and not ran_out(result.error):
                raise ProgramError(
                    f"the program fails with batch {batch}, and not for lack of memory: {result.error}",
                    where=words[0],
                    hint="its traceback is above; `--batch N,M` tries batches that it takes",
                )
            devices.append(result.device)
            tries.append(
                Try(
                    batch=batch,
                    fits=result.error is None,
                    foreseen_bytes=foreseen.peak_bytes(batch),
                    peak_bytes=result.peak_memory_bytes,
                    retries=result.retries,
                )
            )
            return result.error is None

        largest, too_large = search(fits, foreseen.low, foreseen.high)
    return LargestBatch(
        command=(*(("-m",) if module else ()), *words),
        device=devices[0],
        foreseen=foreseen,
        tries=tuple(tries),
        largest=largest,
        too_large=too_large,
    )
