"""Damages of a file, in words."""

from __future__ import annotations

from kinetoscope.trace.model import Damage

# code: what happened to {n} of them, and whether something was lost.
UNREADABLE_BYTES = "unreadable-bytes"
DAMAGES: dict[str, tuple[str, bool]] = {
    "truncated": ("the file ends before its list of events does: how much stood behind is not known", True),
    "missing-head": ("the beginning of the file is missing", True),
    "bad-event": ("{n} events could not be read and are left out", True),
    UNREADABLE_BYTES: ("{n} bytes of events could not be read", True),
    "several-traces": (
        "the file holds several traces, one after the other ({n} after the first); they are read as one",
        True,
    ),
    "cut-database": ("the file is shorter than it says: what stood behind is missing", True),
    "unapplied-log": (
        "changes that SQLite logged next to the file are not applied (its -wal or -journal; {n} of them): "
        "export it again, or apply them with sqlite3 FILE 'PRAGMA wal_checkpoint(TRUNCATE)'",
        True,
    ),
    "unread-view": ("tables that are views in this file are not read ({n})", True),
    "unreadable-table": (
        "{n} of its tables could not be read to their end: the rest of them is missing",
        True,
    ),
    "more-processes": (
        "{n} more processes used a device and are left out (KINETOSCOPE_RANKS=N shows N)",
        True,
    ),
    "missing-time": ("{n} events have no time and are left out", True),
    "impossible-time": ("{n} events lay days away from all others and are left out", True),
    "impossible-duration": ("{n} events have an impossible duration; it is taken as zero", False),
    "missing-duration": ("{n} events have no duration; it is taken as zero", False),
    "bad-field": ("{n} fields had a value of the wrong kind and are left empty", False),
    "invalid-utf8": ("{n} events held bytes that are no text; those are replaced", False),
    "control-character": ("{n} events held control characters; those are replaced", False),
    "not-a-number": ("{n} events held NaN, Infinity or N/A; those are left empty", False),
    "lone-backslash": ("{n} events held backslashes that escape nothing; those are kept as text", False),
    "stray-comma": ("{n} events had a comma too many", False),
    "unescaped-quote": ("{n} events had quotes inside their name", False),
    "unreadable-metadata": ("what the file says about itself ({n} bytes) could not be read", False),
    "whole-graphs": (
        "{n} replays of CUDA graphs were recorded as one piece each: which kernels ran in them, and when "
        "none did, is not known (`nsys profile --cuda-graph-trace=node` records them)",
        False,
    ),
    "trailing-junk": ("{n} bytes after the end of the trace are ignored", False),
}


def described(counts: dict[str, int], lost_share: float = 0.0, lost_ns: int = 0) -> tuple[Damage, ...]:
    """Counts by code as damages, what was lost first; of bytes, what part of the file and what time; of a
    file that ends early no part: it does not say how long it was."""
    codes = sorted(counts, key=list(DAMAGES).index)
    texts = {code: _sentence(DAMAGES[code][0], counts[code]) for code in codes}
    if UNREADABLE_BYTES in texts and lost_share and "truncated" not in counts:
        time = f", which span up to {lost_ns / 1e6:,.2f} ms of the recording" if lost_ns else ""
        texts[UNREADABLE_BYTES] += f" ({lost_share:.1%} of the file{time}): what ran there is missing"
    return tuple(Damage(code, texts[code], counts[code]) for code in codes)


def _sentence(form: str, count: int) -> str:
    if count == 1 and form.startswith("{n} events"):
        form = form.replace("events have", "events has").replace("and are left", "and is left")
        form = form.replace("events", "event", 1)
    return form.format(n=f"{count:,}")


def counts_bytes(code: str) -> bool:
    """Whether a damage of this code counts bytes of the file, not events."""
    return "{n} bytes" in DAMAGES[code][0]


def is_loss(code: str) -> bool:
    """Whether a damage of this code takes something of the recording away (else it was repaired)."""
    return DAMAGES[code][1]
