"""Remember an analysis' result for as long as its subject lives, and some of them beyond that."""

from __future__ import annotations

import functools
from collections.abc import Callable
from threading import RLock
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    import polars as pl

Subject = TypeVar("Subject")
Result = TypeVar("Result")


class Remembered(Generic[Subject, Result]):
    """An analysis that is computed once per subject (a Trace or a Run, distinguished by identity). Threads
    that call it meanwhile wait for it; analyses build upon each other one way: no deadlock."""

    def __init__(self, analysis: Callable[[Subject], Result]) -> None:
        functools.update_wrapper(self, analysis)
        self._analysis = analysis
        self._results: WeakKeyDictionary[Subject, Result] = WeakKeyDictionary()
        self._computing = RLock()

    def __call__(self, subject: Subject) -> Result:
        with self._computing:
            if subject not in self._results:
                self._results[subject] = self._analysis(subject)
            return self._results[subject]

    def forget(self, subject: Subject) -> None:
        """Let the result go before the subject does: no analysis will need it again soon, and it is large."""
        self._results.pop(subject, None)


def remembered(analysis: Callable[[Subject], Result]) -> Remembered[Subject, Result]:
    """Compute ``analysis`` once per subject."""
    return Remembered(analysis)


class Shelf(Protocol):
    """Tables by their analysis, as they were the last time that the same was read."""

    def get(self, name: str) -> pl.DataFrame | None: ...
    def put(self, name: str, table: pl.DataFrame) -> None: ...


# Of subjects that were read for a command (see ``sources.kept``); others have none.
SHELVES: WeakKeyDictionary[object, Shelf] = WeakKeyDictionary()


def kept(analysis: Callable[[Subject], pl.DataFrame]) -> Remembered[Subject, pl.DataFrame]:
    """Compute ``analysis`` once per subject, and not at all where the subject's shelf has it: for what nearly
    every command asks for, and takes several times as long to compute as to read."""
    name = f"{analysis.__module__}.{analysis.__qualname__}"

    @functools.wraps(analysis)
    def found(subject: Subject) -> pl.DataFrame:
        shelf = SHELVES.get(subject)
        table = None if shelf is None else shelf.get(name)
        if table is None:
            table = analysis(subject)
            if shelf is not None:
                shelf.put(name, table)
        return table

    return Remembered(found)
