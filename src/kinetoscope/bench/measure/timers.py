"""How one sample is taken: the protocol of timers, injected into the harness, and the host's clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from kinetoscope.bench.measure.results import Mode

Call = Callable[[], object]

# A sample of the host's clock repeats a hot call until it lasts this long: 400 ticks of a 50 ns clock.
SHORTEST_SAMPLE_NS = 20_000
# Caches are flushed by going through this many times the size of the last level.
FLUSH_FACTOR = 4


class Timer(Protocol):
    """Takes samples. ``basis`` says in words what a sample is; it stands beside every number."""

    basis: str

    def time(self, calls: Sequence[Call], mode: Mode, during: Callable[[], None]) -> list[float]:
        """Time each call once, in the order given.

        Args:
            calls: what to time; the same callable may come more than once.
            mode: cold flushes the caches before each call; hot makes the same call just before.
            during: called once while the device still works on what was queued (to read its clocks).

        Returns:
            One duration in nanoseconds for each call.
        """
        ...


class HostTimer:
    """The host's monotonic clock around calls that finish before they return (or after ``synchronize``).

    Args:
        flush: evicts the caches; needed for cold mode.
        synchronize: waits for the device; for calls that only queue work.
        shortest_ns: a hot call is repeated until a sample lasts this long, and waited for once.
        clock: nanoseconds, monotonic.
    """

    def __init__(
        self,
        flush: Call | None = None,
        synchronize: Call | None = None,
        shortest_ns: float = SHORTEST_SAMPLE_NS,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._flush = flush
        self._synchronize = synchronize or (lambda: None)
        self._shortest_ns = shortest_ns
        self._clock = clock
        self._repeats: dict[Call, int] = {}
        self.basis = "host clock" if synchronize is None else "host clock, synchronised after each sample"

    def time(self, calls: Sequence[Call], mode: Mode, during: Callable[[], None]) -> list[float]:
        samples = [self._cold(call) if mode == "cold" else self._hot(call) for call in calls]
        during()
        return samples

    def _cold(self, call: Call) -> float:
        if self._flush is None:
            raise ValueError("cold timing needs something that flushes the caches")
        self._flush()
        self._synchronize()
        return self._span(call, 1)

    def _hot(self, call: Call) -> float:
        repeats = self._repeats.get(call)
        if repeats is None:
            repeats = 1
            while self._span(call, repeats) * repeats < self._shortest_ns:
                repeats *= 2
            self._repeats[call] = repeats
        return self._span(call, repeats)

    def _span(self, call: Call, repeats: int) -> float:
        start = self._clock()
        for _ in range(repeats):
            call()
        self._synchronize()
        return (self._clock() - start) / repeats


def last_level_cache_bytes(root: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> int:
    """The size of the CPU's largest cache as Linux tells it; 32 MiB where it does not."""
    sizes = [32 << 20]
    for file in root.glob("index*/size"):
        text = file.read_text().strip()
        sizes.append(int(text[:-1]) << {"K": 10, "M": 20, "G": 30}[text[-1]])
    return max(sizes[1:] or sizes)


def host_flush() -> Call:
    """Reads and writes a buffer several times the last-level cache."""
    import torch

    buffer = torch.zeros(last_level_cache_bytes() * FLUSH_FACTOR, dtype=torch.uint8)
    return lambda: buffer.add_(1)
