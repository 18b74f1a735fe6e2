"""Rows of what stays in the log until somebody asks for it: guards, bytecode, cache keys."""

from __future__ import annotations

from kinetoscope.compilation.model import Row


class Guard(Row, frozen=True, kw_only=True):
    """One check, or one object (``kind`` ends in GuardManager) whose checks are its children."""

    depth: int
    kind: str
    subject: str | None
    check: str
    words: str
    file: str | None
    line: int | None
    code: str | None
    children: tuple[Guard, ...] = ()

    @property
    def is_check(self) -> bool:
        return not self.kind.endswith("Manager")


class GuardTree(Row, frozen=True, kw_only=True):
    roots: tuple[Guard, ...]
    checks: int
    latency_us: float | None


class Instruction(Row, frozen=True, kw_only=True):
    line: int | None
    offset: int | None
    opcode: str
    argument: str | None
    operand: str | None
    meaning: str
    is_target: bool


class ComponentChange(Row, frozen=True, kw_only=True):
    """One component of a graph's cache key, in both logs; None: not there."""

    component: str
    before: str | None
    after: str | None


class KeyChange(Row, frozen=True, kw_only=True):
    """Two logs' cache keys of the same graph; no ``changes`` where the log names no components."""

    compile_id: str
    direction: str
    before_key: str | None
    after_key: str | None
    changes: tuple[ComponentChange, ...]
