"""The host's waiting, measured in steps that nothing records: for its data, the device, the garbage
collector.

A :class:`TimedMethod` is a descriptor in a method's place. Looking the method up starts its time; what is
looked up is a partial object, C code that calls the method and nothing else, and the interpreter drops it
once the call is over: that ends it. No frame of ours is ever on the program's stack, and a call costs half a
microsecond more.
"""

from __future__ import annotations

import contextlib
import gc
import linecache
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from time import perf_counter_ns
from typing import Any, NamedTuple

from kinetoscope.capture import torch_private
from kinetoscope.capture.hooks.calls import BoundMethod, MethodStandIn
from kinetoscope.capture.hooks.imports import ImportWatch
from kinetoscope.capture.steps.padding import Never, PaddingSeen
from kinetoscope.recording.manifest import BatchPadding

# The generation of a collection of all objects, and the lines that are distinguished at which such came.
FULL, MOST_LINES = 2, 64


class Waited(NamedTuple):
    """Nanoseconds of the host since the ledgers were opened: for the data loader, in calls that wait for the
    device, in garbage collection; for the loader where its batch was ready (None: not known when it is)."""

    data_ns: int
    sync_ns: int
    gc_ns: int
    ready_ns: int | None = None

    def since(self, before: Waited) -> Waited:
        known = self.ready_ns is not None and before.ready_ns is not None
        return Waited(
            self.data_ns - before.data_ns,
            self.sync_ns - before.sync_ns,
            self.gc_ns - before.gc_ns,
            (self.ready_ns or 0) - (before.ready_ns or 0) if known else None,
        )


class Prefetch(NamedTuple):
    """How far a data loader works ahead: its worker processes, and the batches they hold ready at most."""

    workers: int = 0
    batches: int = 0


class NoLedgers:
    """The ledgers where nothing is to be measured."""

    @property
    def prefetch(self) -> Prefetch:
        """How far the loader works ahead that was waited for last."""
        return Prefetch()

    @property
    def padding(self) -> BatchPadding | None:
        """How much of the loaders' first batches is padding; None: not known."""
        return None

    @property
    def collects_at(self) -> str | None:
        """``train.py:12``, the line that requests most full collections; None: they come by themselves."""
        return None

    def install(self) -> None: ...
    def listen(self, heard: Callable[[object], None] | None) -> None: ...
    def remove(self) -> None: ...
    def read(self) -> Waited:
        return Waited(0, 0, 0)


class Ledger:
    """Time spent in calls: the sum of their ends less the sum of their beginnings."""

    # called before each call, with the object whose method it is; swallows what it raises
    heard: Callable[[object], None] | None = None

    def __init__(self, clock: Callable[[], int] = perf_counter_ns) -> None:
        self.sums = [0, 0]
        sums = self.sums

        class TimedCall(BoundMethod):
            __slots__ = ()

            def __del__(self) -> None:
                sums[1] += clock()

        torch_private.hide_from_dynamo(TimedCall.__del__)
        self.call, self.clock = TimedCall, clock

    def read(self) -> int:
        """Nanoseconds. To be read between calls: one that is running counts with its beginning alone."""
        return self.sums[1] - self.sums[0]


class TimedMethod(MethodStandIn):
    """Stands in for a method of ``owner``, and enters the time of its calls into a ledger."""

    def __init__(self, owner: Any, name: str, ledger: Ledger) -> None:
        super().__init__(owner, name)
        self.ledger, self.sums, self.call, self.clock = ledger, ledger.sums, ledger.call, ledger.clock

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self.original
        if self.ledger.heard is not None:
            self.ledger.heard(instance)
        call = self.call(self.method.__get__(instance, owner))
        self.sums[0] += self.clock()
        return call


class TimedLoader(TimedMethod):
    """A data loader's iterator, waiting for its next batch; says how far the latest one works ahead. Calls
    that find their batch ready are entered into a ledger of their own."""

    workers, batches = 0, 0
    knows_ready = True

    def __init__(self, owner: Any, name: str, ledger: Ledger, ready: Ledger, padding: PaddingSeen) -> None:
        super().__init__(owner, name, ledger)
        self.ready, self.padding = ready, padding

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self.original
        self.workers = getattr(instance, "_num_workers", 0)
        self.batches = self.workers * getattr(instance, "_prefetch_factor", 0)
        is_ready = torch_private.batch_is_ready(instance) if self.workers else False
        self.knows_ready = is_ready is not None
        ledger = self.ready if is_ready else self
        call = ledger.call(*self.padding.watched(self.method.__get__(instance, owner)))
        ledger.sums[0] += self.clock()
        return call


class TimedFunction:
    """Stands in for a function of a module: calling an object looks ``__call__`` up on its class."""

    def __init__(self, owner: Any, name: str, ledger: Ledger) -> None:
        self.owner, self.name, self.function = owner, name, getattr(owner, name)
        function, sums, clock, call = self.function, ledger.sums, ledger.clock, ledger.call

        class Lookup:
            def __get__(self, instance: Any, owner: type | None = None) -> Any:
                if ledger.heard is not None:
                    ledger.heard(None)
                made = call(function)
                sums[0] += clock()
                return made

        torch_private.hide_from_dynamo(Lookup.__get__)
        self.stand_in = type(self.name, (), {"__call__": Lookup(), "__doc__": self.function.__doc__})()

    def install(self) -> None:
        setattr(self.owner, self.name, self.stand_in)

    def remove(self) -> None:
        if getattr(self.owner, self.name) is self.stand_in:
            setattr(self.owner, self.name, self.function)


class Ledgers(NoLedgers):
    """The three ledgers of a process: installed while steps are timed, gone while Dynamo compiles."""

    def __init__(self, imports: ImportWatch | None = None) -> None:
        self.data, self.ready, self.sync = Ledger(), Ledger(), Ledger()
        self.batches = PaddingSeen()
        self.collected_ns, self.collecting = 0, 0
        self.full_collections = Counter[tuple[str, int]]()  # by the line at which they came
        self.watches: list[TimedMethod | TimedFunction] = []
        self.loaders: list[TimedLoader] = []
        self.compiling = self.measuring = False
        self.stop_hearing: Callable[[], None] | None = None  # when Dynamo compiles
        torch_private.hide_from_dynamo(TimedMethod.__get__, TimedLoader.__get__, torch_private.batch_is_ready)
        torch_private.hide_from_dynamo(Never.__eq__, PaddingSeen.watched, PaddingSeen.look, callees=True)
        if imports is not None:
            imports.when_imported(torch_private.COMPILE_CALLBACKS, self._hear_of_compilations)

    @property
    def prefetch(self) -> Prefetch:
        return max((Prefetch(loader.workers, loader.batches) for loader in self.loaders), default=Prefetch())

    @property
    def padding(self) -> BatchPadding | None:
        return self.batches.found

    @property
    def collects_at(self) -> str | None:
        for (file, line), _ in self.full_collections.most_common(1):
            if "collect(" in linecache.getline(file, line):
                return f"{os.path.basename(file)}:{line}"
        return None

    def install(self) -> None:
        if not self.measuring:
            self.measuring = True
            self._watch([*self._loaders(), *self._waits()])
            self.loaders = [watch for watch in self.watches if isinstance(watch, TimedLoader)]
            gc.callbacks.append(self._collection)

    def listen(self, heard: Callable[[object], None] | None) -> None:
        """Have each call that waits for the device call this first with its object; None: no more."""
        self.sync.heard = heard
        if not self.measuring:
            self._watch([*self._waits()] if heard is not None else [])

    def _watch(self, watches: list[TimedMethod | TimedFunction]) -> None:
        self._take_out()
        self.watches = watches
        if not self.compiling:
            self.resume()

    def suspend(self) -> None:
        """Take the watches out for as long as Dynamo compiles; `resume` puts them back."""
        self.compiling = True
        self._take_out()

    def resume(self) -> None:
        self.compiling = False
        for watch in self.watches:
            watch.install()

    def remove(self) -> None:
        if self.measuring:
            with contextlib.suppress(ValueError):  # the program may have emptied the list
                gc.callbacks.remove(self._collection)
            self.measuring, self.loaders = False, []
        self._watch([*self._waits()] if self.sync.heard is not None else [])

    def close(self) -> None:
        """Remove them for good."""
        self.sync.heard = None
        self.remove()
        if self.stop_hearing is not None:
            self.stop_hearing()
            self.stop_hearing = None

    def read(self) -> Waited:
        ready_ns = self.ready.read()
        known = all(loader.knows_ready for loader in self.loaders)
        data_ns = self.data.read() + ready_ns
        return Waited(data_ns, self.sync.read(), self.collected_ns, ready_ns if known else None)

    def _take_out(self) -> None:
        for watch in self.watches:
            watch.remove()

    def _hear_of_compilations(self) -> None:
        self.stop_hearing = torch_private.around_compilations(self.suspend, self.resume)

    def _loaders(self) -> Iterable[TimedMethod]:
        for owner, name in torch_private.calls_that_load_data():
            if name == torch_private.NEXT_BATCH:
                yield TimedLoader(owner, name, self.data, self.ready, self.batches)
            else:
                yield TimedMethod(owner, name, self.data)

    def _waits(self) -> Iterable[TimedMethod | TimedFunction]:
        for owner, name in torch_private.calls_that_wait():
            yield (TimedMethod if isinstance(owner, type) else TimedFunction)(owner, name, self.sync)

    def _collection(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self.collecting = perf_counter_ns()
            if info["generation"] == FULL and len(self.full_collections) < MOST_LINES:
                frame = sys._getframe().f_back  # pyright: ignore[reportPrivateUsage]
                if frame is not None:  # a thread of C++ may collect with no frame of Python's
                    self.full_collections[frame.f_code.co_filename, frame.f_lineno] += 1
        elif self.collecting:
            self.collected_ns += perf_counter_ns() - self.collecting
            self.collecting = 0
