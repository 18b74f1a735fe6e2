"""Findings: evidence, advice, what the advice would save, and how to try it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct, field

from kinetoscope.analysis.replay.change import NOTHING, Changes, ReplayChange
from kinetoscope.findings.rows import Evidence, FindingPhase

Severity = Literal["high", "medium", "low", "info"]
# root: stands first, whatever it saves, since what follows is its consequence. symptom: others explain it.
# rounds: its advice changes the program's results, so that its author has to judge it.
Role = Literal["root", "cause", "symptom", "rounds"]
SEVERITIES: tuple[Severity, ...] = ("high", "medium", "low", "info")


class Saving(Struct, frozen=True):
    """The time that following the advice is estimated to save."""

    # microseconds of step time, per step (per recording where no steps were recorded), if nothing else is
    # changed; 0 where none is claimed, as for what the profiler itself did
    us: float
    basis: str  # how that was worked out, in words
    # the step gets shorter by it. False: device time is freed, but the step waits for the host (or another
    # rank) and would not end earlier
    on_critical_path: bool
    share: float  # of the step's time; what severity is taken from
    freed_share: float = 0.0  # of the device's busy time that would be freed, on the critical path or not
    # what the fix changes in the recorded steps; ``us`` is what their replay gains by it
    change: ReplayChange = NOTHING
    # by rank, what the fix changes where all ranks are replayed together and no waiting is a rank's own;
    # None: ``change``, on the ranks that show it
    together: Changes | None = None
    # of ``us``, what no replay of the recorded steps can show: paid once, or measured without the profiler
    unreplayed_us: float = 0.0
    # ``us`` by the comparison of ranks, whose figure stands wherever that cost is shown; the replay of the
    # recorded steps then says only what others save after it
    compared_us: float | None = None
    # what it may come to where that is more than ``us``: device time off the critical path, or all that a fix
    # may save whose gain is not known before
    most_us: float = 0.0
    # what has to hold for it and no trace shows, as it stands after "if"; empty where nothing has to. Such a
    # saving is shown with its condition, and counts to no sum
    condition: str = ""


class Remaining(Struct, frozen=True):
    """The time that a finding still saves once those above it are followed: these add up, to no more than the
    step."""

    # per step, ``share_of_step`` of it; ``saving_low_us`` to ``saving_high_us`` by what was measured of the
    # rule's advice
    saving_us: float
    saving_low_us: float
    saving_high_us: float
    share_of_step: float = 0.0
    # the rule of the finding above that has most of the rest; None where it keeps what it saves
    also: str | None = None


class Proof(Struct, frozen=True):
    """The command that tries what is advised, and how its result is recognised."""

    command: str
    # of `tune`: the mode of ``torch.compile`` that the advice names; None where the program's own calls of it
    # stay as they are
    mode: str | None = None
    matmul_precision: str | None = None  # of `tune`: the precision that the advice names
    kernel: str | None = None  # of `bench`: the kernel whose configurations are tried
    kernel_us: float = 0.0  # that kernel's device time per step in the recording, all launches together
    launches: float = 0.0  # that kernel's launches per step in the recording


class Finding(Struct, frozen=True, kw_only=True):
    """One thing found. Rules leave ``rule``, ``rank``, ``ranks``, ``lines`` and ``phases`` to the registry,
    ``remaining``, ``paced_by`` and ``severity`` to the ledger."""

    title: str  # one line with its numbers
    saving: Saving  # its share of the step is the severity; a finding that saves nothing is dropped, …
    evidence: Sequence[Evidence]
    advice: str
    at_least: Severity | None = None  # … unless it is this severe whatever it saves
    at_most: Severity = "high"  # it is not more severe, however much it saves
    snippet: str | None = None  # the change as code, where there is one
    source: str | None = None  # ``file.py:12`` of the user's line, where stacks or the compile log contain it
    # lines of the program that call the events of the evidence, those of most of their time first
    lines: tuple[str, ...] = ()
    # the command that tries the advice; None where only an edit of the program can
    proof: Proof | None = None
    # the rule whose findings come before this one, where they save enough to be seen in the step
    after: str = ""
    # by how much the peak of the device's memory gets lower, by itself; 0 where the finding is not about
    # memory
    saving_bytes: int = 0
    # ``saving_bytes`` is a bound: the most that the allocator needed is not known
    saving_bytes_at_most: bool = False
    # what distinguishes this finding from others of the same rule (an op, a kernel); findings of several
    # ranks with one subject become one
    subject: str = ""
    # the time per step of what it is about, where that is one time; not what is saved of it
    affected_us: float = 0.0
    # the phases of a server's steps that it is about, and the share of its saving in each; empty where what
    # changes, or the evidence, says that
    by_phase: Mapping[str, float] = field(default_factory=dict[str, float])
    phases: tuple[FindingPhase, ...] = ()  # what it saves in each of them
    remaining: Remaining = Remaining(0.0, 0.0, 0.0)
    severity: Severity = "info"
    rule: str = ""
    rank: int = 0
    ranks: tuple[int, ...] = ()
    # the rank that sets the pace of all, where this shortens the step of others that wait for it
    paced_by: int | None = None
