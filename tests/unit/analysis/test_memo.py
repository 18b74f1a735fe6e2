"""An analysis is computed once for a subject, however many ask at a time."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

from kinetoscope.analysis.memo import remembered


class Subject:
    pass


def test_threads_that_ask_at_a_time_get_one_result() -> None:
    computed: list[Subject] = []

    @remembered
    def below(subject: Subject) -> object:
        computed.append(subject)
        time.sleep(0.05)
        return object()

    @remembered
    def above(subject: Subject) -> tuple[object, object]:
        return below(subject), below(subject)

    subject = Subject()
    with ThreadPoolExecutor(4) as threads:
        results = list(threads.map(lambda ask: ask(subject), [above, below, above, below]))
    assert len(computed) == 1
    assert results[0] is results[2]
    assert {results[1], results[3], *results[0]} == {results[1]}


def test_a_result_that_was_dropped_is_computed_again() -> None:
    computed: list[Subject] = []

    @remembered
    def analysis(subject: Subject) -> int:
        computed.append(subject)
        return len(computed)

    kept, subject = Subject(), Subject()
    assert (analysis(kept), analysis(subject)) == (1, 2)
    analysis.forget(subject)
    analysis.forget(subject)
    assert (analysis(kept), analysis(subject)) == (1, 3)
