"""What the recorder is free to choose: how many steps it waits for, times and records, and how long it looks.

A seed makes it choose at random. Tests use that to have recordings begin, end and be written at moments that
no sensible choice would ever hit (``KINETOSCOPE_TEST_SEED``).
"""

from __future__ import annotations

import random
from collections.abc import Mapping

SEED = "KINETOSCOPE_TEST_SEED"


class Decisions:
    """Usual values, or random ones with a ``seed``; the program's own random numbers are not drawn from."""

    def __init__(self, seed: int | None = None) -> None:
        self.random = None if seed is None else random.Random(seed)

    @classmethod
    def of(cls, variables: Mapping[str, str]) -> Decisions:
        """As an environment asks for."""
        seed = variables.get(SEED, "")
        return cls(int(seed) if seed.isdecimal() else None)

    @property
    def seeded(self) -> bool:
        return self.random is not None

    def count(self, usual: int, most: int) -> int:
        """A number of steps, at most ``most`` where it is random."""
        return usual if self.random is None else self.random.randint(1, most)

    def seconds(self, usual: float, most: float) -> float:
        """A time to wait for."""
        return usual if self.random is None else self.random.uniform(0, most)
