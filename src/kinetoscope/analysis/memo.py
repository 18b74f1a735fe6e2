"""Remember an analysis' result for as long as its subject lives."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar
from weakref import WeakKeyDictionary

Subject = TypeVar("Subject")
Result = TypeVar("Result")


def remembered(analysis: Callable[[Subject], Result]) -> Callable[[Subject], Result]:
    """Compute ``analysis`` once per subject (a Trace or a Profile, told apart by identity)."""
    results: WeakKeyDictionary[Subject, Result] = WeakKeyDictionary()

    @functools.wraps(analysis)
    def recall(subject: Subject) -> Result:
        if subject not in results:
            results[subject] = analysis(subject)
        return results[subject]

    return recall
