"""Operations of many ranks, replayed: each begins when what it waits for has ended, and those that meet end
together.

The simulator of "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI 2025, section
4): what an operation takes is given, when it begins follows. A collective takes its transfer from when its
last rank is there; anything else meets nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Operation(NamedTuple):
    """Of one rank.

    Args:
        after: places of the operations that it waits for, all of them before it.
        delay: from their end to its beginning, as for the host or for what is no operation of its own; less
            than nothing where it began before they had ended.
        took: without waiting.
        is_free: it waits for nobody that it meets, as a sender whose data are buffered.
        needs: places of what must have ended too, however long before it began: what a receive was sent.
    """

    after: Sequence[int]
    delay: float
    took: float
    is_free: bool = False
    needs: Sequence[int] = ()


def replay(instances: Iterable[Sequence[Operation]]) -> list[float]:
    """When each operation ends, in the order given; whatever waits for nothing begins at 0.

    Args:
        instances: operations that meet, or one alone; an operation's place is its number among all of them.
    """
    ends: list[float] = []
    for instance in instances:
        came = [
            max(
                max([ends[place] for place in one.after], default=0.0) + one.delay,
                *[ends[place] for place in one.needs],
                0.0,
            )
            for one in instance
        ]
        last = max(came)
        for one, own in zip(instance, came, strict=True):
            ends.append((own if one.is_free else last) + one.took)
    return ends
