"""Timers, which the harness is given: by the host's clock, CUDA events, activity records or CUDA graphs.

On a CUDA (or ROCm) device, activity records give a kernel's own duration to the nanosecond at any length.
Events add the gap between a kernel and its two event records (2 to 5 µs, not subtracted): use them where no
profiler may run. A graph gives the cost of one of many back-to-back launches, gaps included.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from kinetoscope.bench import torch_names
from kinetoscope.bench.measure.results import Mode
from kinetoscope.errors import KinetoscopeError

Call = Callable[[], object]

# A sample of the host's clock repeats a hot call until it lasts this long: 400 ticks of a 50 ns clock.
SHORTEST_SAMPLE_NS = 20_000
FLUSH_FACTOR = 4  # caches are flushed by going through this many times the size of the last level


class Timer(Protocol):
    """Takes samples. ``basis`` says in words what a sample is; it is printed with every number."""

    basis: str

    def time(self, calls: Sequence[Call], mode: Mode, during: Callable[[], None]) -> list[float]:
        """The duration (ns) of each call, in the order given; one callable may come more than once. ``mode``:
        cold flushes the caches before each call; hot makes the same call just before. ``during`` is called
        once while the device still works on what was queued (to read its clocks)."""
        ...


class HostTimer:
    """The host's monotonic clock around calls that finish before they return (or after ``synchronize``)."""

    def __init__(
        self,
        flush: Call | None = None,  # evicts the caches; needed for cold mode
        synchronize: Call | None = None,  # waits for the device; for calls that only queue work
        # a hot call is repeated until a sample lasts this long, and waited for once
        shortest_ns: float = SHORTEST_SAMPLE_NS,
        clock: Callable[[], int] = time.perf_counter_ns,  # nanoseconds, monotonic
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
    sizes: list[int] = []
    for file in root.glob("index*/size"):
        text = file.read_text().strip()
        sizes.append(int(text[:-1]) << {"K": 10, "M": 20, "G": 30}[text[-1]])
    return max(sizes, default=32 << 20)


def host_flush() -> Call:
    """Reads and writes a buffer several times the last-level cache."""
    import torch

    buffer = torch.zeros(last_level_cache_bytes() * FLUSH_FACTOR, dtype=torch.uint8)
    return lambda: buffer.add_(1)


GRAPH_NS = 200_000  # a graph is unrolled until one replay lasts about this long
MOST_UNROLLED = 500
# A flush (about 70 µs) is queued in front for each so many hot samples: the host stays ahead of the device.
SAMPLES_PER_FLUSH = 3


class TimingError(KinetoscopeError):
    """The device's records do not match what was launched."""


class Activity(NamedTuple):
    """One piece of device work: a kernel, copy or memset."""

    name: str
    start_ns: int
    end_ns: int


def device_flush() -> Call:
    """Evicts the L2 by *reading* several times its size.

    A flush that writes would leave dirty lines, and the next kernel would pay for writing them back.
    """
    import torch

    size = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
    columns = 4096
    rows = max(1, FLUSH_FACTOR * size // (4 * columns))
    buffer = torch.ones(rows, columns, device="cuda", dtype=torch.float32)
    out = torch.empty(rows, device="cuda", dtype=torch.float32)
    return lambda: torch.amax(buffer, dim=1, out=out)


def record(run: Callable[[], object], during: Callable[[], None] = lambda: None) -> list[Activity]:
    """Every piece of work that the device did for ``run``, ordered by start."""
    import torch

    torch.cuda.synchronize()
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities, acc_events=True) as profiler:
        run()
        during()
        torch.cuda.synchronize()
    work = [Activity(*row) for row in torch_names.device_activity(profiler)]
    return sorted(work, key=lambda activity: activity.start_ns)


class ActivityTimer:
    """Durations from the device's activity records (CUPTI or roctracer, through torch's profiler).

    Between samples runs a marker kernel of a kind that models do not use; what lies between two markers is
    the sample. Several kernels in one call count from the first's start to the last's end.
    """

    basis = "device activity records"

    def __init__(self) -> None:
        import torch

        self._flush = device_flush()
        element = torch.zeros(1, device="cuda")
        self._mark: Call = lambda: torch.erfinv(element, out=element)

    def time(self, calls: Sequence[Call], mode: Mode, during: Callable[[], None]) -> list[float]:
        def run() -> None:
            for call in calls:
                self._flush() if mode == "cold" else call()
                self._mark()
                call()
                self._mark()

        samples = between_markers(record(run, during))
        if len(samples) != len(calls):
            raise TimingError(
                f"{len(calls)} calls were timed, and the device's records show {len(samples)}",
                hint="time with --timer events",
            )
        return [float(work[-1].end_ns - work[0].start_ns) for work in samples]


def between_markers(activities: Sequence[Activity]) -> list[list[Activity]]:
    """The work of each sample: what lies between the first and second marker, the third and fourth, … Raises
    TimingError where a sample shows no work, or a marker was lost."""
    marks = [i for i, activity in enumerate(activities) if "erfinv" in activity.name]
    samples = [list(activities[i + 1 : j]) for i, j in zip(marks[::2], marks[1::2], strict=False)]
    if len(marks) % 2 or not all(samples):
        raise TimingError("the device's activity records are incomplete", hint="time with --timer events")
    return samples


class EventTimer:
    """CUDA events around each call, in a queue that is filled before the device reaches the first."""

    basis = "events around a full queue; the gap next to the events (2 to 5 µs) is in the number"

    def __init__(self) -> None:
        self._flush = device_flush()

    def time(self, calls: Sequence[Call], mode: Mode, during: Callable[[], None]) -> list[float]:
        for _ in range(1 + len(calls) // SAMPLES_PER_FLUSH):
            self._flush()
        return between_events(calls, during, lambda call: self._flush() if mode == "cold" else call())


def between_events(
    calls: Sequence[Call], during: Callable[[], None], before: Callable[[Call], object] = lambda _: None
) -> list[float]:
    """Nanoseconds between two events around each call; ``before`` it is queued what is not timed."""
    import torch

    pairs = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in calls]
    for call, (start, end) in zip(calls, pairs, strict=True):
        before(call)
        start.record()
        call()
        end.record()
    during()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) * 1e6 for start, end in pairs]


class GraphTimer:
    """Many launches of one call in a CUDA graph, timed by events around its replay: time for each launch."""

    basis = "CUDA graph of many launches; the gap between launches is in the number"

    def __init__(self) -> None:
        self._graphs: dict[Call, tuple[Any, int]] = {}

    def time(self, calls: Sequence[Call], mode: Mode, during: Callable[[], None]) -> list[float]:
        if mode == "cold":
            raise ValueError("an unrolled graph runs hot: nothing flushes the cache between its launches")
        graphs = [self._graphs.get(call) or self._capture(call) for call in calls]
        samples = between_events([graph.replay for graph, _ in graphs], during)
        return [sample / unrolled for sample, (_, unrolled) in zip(samples, graphs, strict=True)]

    def _capture(self, call: Call) -> tuple[Any, int]:
        import torch

        [single] = EventTimer().time([call], "hot", lambda: None)
        unrolled = max(1, min(MOST_UNROLLED, round(GRAPH_NS / single)))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(unrolled):
                call()
        self._graphs[call] = graph, unrolled
        return graph, unrolled
