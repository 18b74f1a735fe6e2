"""Where the thread that steps spends them, line by line of the program, by samples of its stack.

Unlike a trace they show what is no op: NumPy, pandas, a tokenizer, metrics, waiting in a queue. Steps are
sampled where no profiler runs, so that no line is slower than in the program itself. A sample is taken when
the thread gives up the interpreter's lock, after 5 ms at the latest: lines of pure Python that take less are
seen too rarely, and those that follow them too often.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

import msgspec

from kinetoscope.analysis.passes.samples import LIBRARIES, SampleTree, function_name, where_it_is
from kinetoscope.recording.whole_run import PERIODS, Period, SampledPlace

# Samples of later steps say most; with fewer than this, those while their time settled count as well.
ENOUGH = 20
SETTLED: tuple[Period, ...] = ("timed", "after")
WORTH = 0.01


class ThreadLine(msgspec.Struct, frozen=True, kw_only=True):
    # ``train.py:77``; where no line of the program's own is below the loop of the steps, the library's,
    # ``transformers/trainer.py:165``
    line: str
    function: str  # the function that the line is in
    library: str  # the library whose function the line calls; empty where it calls none
    # that function, ``Metric.forward``; without a library, what torch or Python does there, such as
    # ``backward`` or ``waiting``. Empty where that is an op of torch's, or not in Python
    calls: str
    share: float  # of the steps' time
    time_us: float  # of a step's
    # so many showed the line. Of ``n`` samples in all, a share ``p`` is known to within ``2 * sqrt(p * (1 -
    # p) / n)``
    samples: int
    loads: bool = False  # whether a data loader runs the line

    @property
    def waits(self) -> bool:
        """Whether the thread waits there for another one, a process or requests."""
        return self.calls == "waiting" and not self.library


LOADING = "loading data"
_Key = tuple[str, str, str, str, bool]


def lines_of_steps(tree: SampleTree, loop: int, nodes: Iterable[int], step_us: float) -> list[ThreadLine]:
    """The lines below a ``loop`` (the node of the function that it is in), by their time: ``nodes``, at which
    the samples of steps were taken, and ``step_us``, the time of a step at the mean."""
    nodes = list(nodes)

    def counted(periods: Iterable[Period], node: int) -> tuple[int, float]:
        own, places = tree.nodes[node], [PERIODS.index(period) for period in periods]
        return sum(own.samples[place] for place in places), sum(own.seconds[place] for place in places)

    periods = SETTLED
    if sum(counted(periods, node)[0] for node in nodes) < ENOUGH:
        periods = ("settling", *SETTLED)
    samples, seconds = Counter[_Key](), defaultdict[_Key, float](float)
    for node in nodes:
        number, took = counted(periods, node)
        if number:
            key = _key(tree, tree.path(node), loop)
            samples[key] += number
            seconds[key] += took
    whole = sum(seconds.values())
    found = [
        ThreadLine(
            line=line, function=function, library=library, calls=calls, loads=loads,
            share=took / whole, time_us=step_us * took / whole,
            samples=samples[line, function, library, calls, loads],
        )
        for (line, function, library, calls, loads), took in seconds.items()
        if took >= WORTH * whole > 0
    ]  # fmt: skip
    return sorted(found, key=lambda one: (-one.share, one.line, one.calls))


def _key(tree: SampleTree, path: list[int], loop: int) -> _Key:
    """The line that a sample counts for: the program's innermost below the loop, else a library's."""
    below = path[path.index(loop) :]
    lines = [node for node in below if tree.place(node) is None and tree.is_function(tree.nodes[node].parent)]
    own = [node for node in lines if not LIBRARIES.match(_function(tree, node).file)]
    if not lines:
        place = tree.place(loop)
        return "", "" if place is None else function_name(place), "", "", False
    at = (own or lines)[-1]
    place = _function(tree, at)
    before, after = below[: below.index(at)], below[below.index(at) + 1 :]
    library, calls = next(
        (_called(found) for node in after if (found := tree.place(node)) is not None), ("", "")
    )
    if any(tree.does(node) == LOADING for node in after):  # a progress bar hands a loader's batches on
        library, calls = "", LOADING
    where = where_it_is(SampledPlace(place.file, place.name, tree.nodes[at].line))
    return where, function_name(place), library, calls, any(tree.does(node) == LOADING for node in before)


def _function(tree: SampleTree, line: int) -> SampledPlace:
    place = tree.place(tree.nodes[line].parent)
    assert place is not None
    return place


def _called(place: SampledPlace) -> tuple[str, str]:
    """The library and its function; what torch or Python does has no library."""
    library = LIBRARIES.match(place.file)
    if library is None:
        return "", place.name
    package = place.file[library.end() :].replace("\\", "/").partition("/")[0]
    return package.removesuffix(".py"), function_name(place)
