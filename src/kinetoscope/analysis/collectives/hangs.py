"""Who is missing in which collective, from NCCL flight-recorder dumps: what each rank had issued when it
hung.

A rank's dump lists its last collectives with their numbers in their process group; the members of a group
issue the same ones in the same order. The first number that not all have completed is where the group stands.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple


class Issued(NamedTuple):
    """A collective as one rank's dump has it; ``state`` is scheduled, started or completed."""

    group: str
    members: tuple[int, ...]  # empty where the dump does not list them
    number: int
    operation: str
    sizes: str
    state: str


class Hang(NamedTuple):
    """Where a process group stands.

    Args:
        missing: members that have not issued it. Ranks without a dump are ``silent``, not missing.
        waiting: those that have, and in which it is not completed.
        mismatched: by what they issued instead, those that differ from most.
    """

    group: str
    number: int
    operation: str
    sizes: str
    missing: tuple[int, ...]
    waiting: tuple[int, ...]
    silent: tuple[int, ...]
    mismatched: dict[str, tuple[int, ...]]


def hangs(dumps: Mapping[int, Sequence[Issued]]) -> list[Hang]:
    """One for each process group that stands, those that lack ranks first."""
    found = [hang for group in _groups(dumps) if (hang := _standing(group, dumps)) is not None]
    return sorted(found, key=lambda hang: (not hang.missing, not hang.mismatched, hang.group))


def _groups(dumps: Mapping[int, Sequence[Issued]]) -> Iterable[str]:
    return dict.fromkeys(one.group for issued in dumps.values() for one in issued)


def _standing(group: str, dumps: Mapping[int, Sequence[Issued]]) -> Hang | None:
    own = {rank: {one.number: one for one in issued if one.group == group} for rank, issued in dumps.items()}
    own = {rank: issued for rank, issued in own.items() if issued}
    listed = next((one.members for issued in own.values() for one in issued.values() if one.members), ())
    members = set(listed) or set(own)
    # A dump is a ring: what a rank no longer lists it has long completed.
    oldest = max(min(issued) for issued in own.values())
    numbers = sorted({number for issued in own.values() for number in issued if number >= oldest})
    for number in numbers:
        at = {rank: issued[number] for rank, issued in own.items() if number in issued}
        missing = members & dumps.keys() - at.keys()
        waiting = {rank for rank, one in at.items() if one.state != "completed"}
        if not waiting:
            continue
        sorts: dict[str, list[int]] = {}
        for rank, one in sorted(at.items()):
            sorts.setdefault(f"{one.operation} {one.sizes}", []).append(rank)
        usual = max(sorts, key=lambda text: len(sorts[text]))
        first = at[sorts[usual][0]]
        return Hang(
            group,
            number,
            first.operation,
            first.sizes,
            tuple(sorted(missing)),
            tuple(sorted(waiting)),
            tuple(sorted(members - dumps.keys())),
            {text: tuple(ranks) for text, ranks in sorts.items() if text != usual},
        )
    return None
