"""Remember an analysis' result for as long as its subject lives."""

from __future__ import annotations

import functools
from collections.abc import Callable
from threading import RLock
from typing import TypeVar
from weakref import WeakKeyDictionary

Subject = TypeVar("Subject")
Result = TypeVar("Result")


def remembered(analysis: Callable[[Subject], Result]) -> Callable[[Subject], Result]:
    """Compute ``analysis`` once per subject (a Trace or a Profile, told apart by identity).

    Threads that ask while it is computed wait for it. Analyses build upon each other one way, so none waits in a ring.
    """
    results: WeakKeyDictionary[Subject, Result] = WeakKeyDictionary()
    computing = RLock()

    @functools.wraps(analysis)
    def recall(subject: Subject) -> Result:
        with computing:
            if subject not in results:
                results[subject] = analysis(subject)
            return results[subject]

    return recall
