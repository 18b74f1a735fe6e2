"""Operators, as rows of the document."""

from __future__ import annotations

import msgspec


class OpRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of torch's own op table; rows of one name differ in ``kind``: the host event's category, or
    ``kernel``, ``memcpy``, ``memset``, ``device annotation``. ``line`` is that of the program in whose calls
    most of its time passed (``train.py:12 step``), where lines were noted."""

    name: str
    kind: str = "cpu_op"
    calls: int
    host_self_us: float
    host_total_us: float
    device_self_us: float
    device_total_us: float
    line: str | None = None
