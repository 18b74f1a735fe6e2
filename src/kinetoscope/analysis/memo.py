"""Remember an analysis' result for as long as its subject lives."""

from __future__ import annotations

import functools
from collections.abc import Callable
from threading import RLock
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

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
