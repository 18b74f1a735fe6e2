"""Findings: what is slow, why, and what to change."""

from __future__ import annotations

import msgspec

from kinetoscope.findings.rows import Evidence as Evidence
from kinetoscope.findings.rows import FindingPhase as FindingPhase
from kinetoscope.proof.measured import SecondRecording as SecondRecording


class FindingRow(msgspec.Struct, frozen=True, kw_only=True):
    """``saving_us`` is what remains once the findings above are followed: these add up to what all save
    together. ``saving_low_us`` to ``saving_high_us`` is by what was measured of the rule's advice elsewhere,
    and up to all device time that it frees, or that it may be where ``saving_us`` is not predicted;
    ``saving_alone_us`` is without the others, and ``also`` the rule above that has most of it. Of a rank
    that waits for another, ``paced_by``, it is of the rank's own step.
    ``of_the_profiler``: it is the recording that costs this, not the program.

    ``proof`` is the command that tries the advice; the ``measured`` keys are what it found, null until it has
    run. ``measured_verdict`` is faster, slower, cannot tell, fails or differs (in its output)."""

    rule: str
    severity: str
    title: str
    saving_us: float
    saving_alone_us: float = 0.0
    saving_low_us: float = 0.0
    saving_high_us: float = 0.0
    affected_us: float = 0.0
    """The time per step of what the finding is about; its advice saves a part of it. 0: not one time."""
    stands_below: str | None = None  # why it stands below a finding that saves less
    also: str | None = None
    subject: str = ""  # distinguishes it from other findings of its rule: an op, a kernel, a place
    kernels: list[str] = []  # full names of the device work that its evidence shows
    above: list[str] = []  # rules of the findings above whose savings it has most of its own in common with
    paced_by: int | None = None
    of_ranks: bool = False
    """It is by a comparison of all ranks, of which there are many; others are of one rank's trace."""
    of_the_profiler: bool = False
    saving_bytes: int = 0  # of the device's memory at its peak, by itself: these do not add up
    saving_bytes_at_most: bool = False
    """``saving_bytes`` is no estimate but a bound: what the allocator once needed is not known."""
    saving_is_enough: bool | None = None
    """Whether the allocation that failed lacked no more than ``saving_bytes``, in one piece; null where none
    failed, or what it lacked is not known."""
    saving_basis: str
    saving_condition: str | None = None
    """What has to hold for ``saving_alone_us`` and no trace shows: it saves that if so, and nothing of it is
    in ``saving_us``."""
    evidence: list[Evidence]
    advice: str
    source: str | None = None
    lines: list[str] = []
    """Lines of the program that call the events of the evidence, with their function, those of most of their
    time first: ``train.py:12 step``."""
    saving_on_critical_path: bool = False
    share_of_step: float = 0.0
    snippet: str | None = None
    proof: str | None = None
    proof_lacks: str | None = None
    """The file or folder that ``proof`` needs and that is not here, as of a recording from elsewhere."""
    ranks: list[int] = []
    phases: list[FindingPhase] = []
    """Of a server, what it saves in the steps of each phase, where most is first."""
    measured_saving_us: float | None = None
    measured_interval_us: tuple[float, float] | None = None
    measured_basis: str | None = None
    measured_verdict: str | None = None

    @property
    def is_measured(self) -> bool:
        return self.measured_verdict is not None


class FindingsListing(msgspec.Struct, frozen=True, kw_only=True):
    findings: list[FindingRow]
    unread: list[str] = []  # what cannot be read, and why
    after: SecondRecording | None = None
    # the recording's begin on the trace's clock; times of evidence are shown from there
    start_us: float = 0.0
    unit: str = "step"  # what savings are per: "step" or "recording"
    replay_error: float = 0.0  # how far the replay of the recorded steps, unchanged, is from them, as a share
