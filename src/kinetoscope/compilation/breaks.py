"""Graph breaks: torch's prose taken apart, and three sources reconciled.

A break can show up as an artifact, as a restart or failure reason in the frame's metrics, and as a
process-wide counter; none of the three has them all (frames skipped whole log no artifact in some versions;
counters have no place). One row is one place and one reason.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

import msgspec

from kinetoscope.compilation.model import CompileRow, GraphBreak

PLACE = re.compile(r"^Graph break in user code at (.+):(\d+)$", re.M)
USER_FRAME = re.compile(r'^\s*File "([^"]+)", line (\d+), in (.+)\n\s+(.*)$', re.M)
URL = re.compile(r"please visit:?\s+(\S+)")
# What Dynamo calls the rest of a function, which begins after the line that it broke at.
RESUMED = re.compile(r"^torch_dynamo_resume_in_(?P<function>.+)_at_(?P<line>\d+)$")
WRAPPERS = ("Encountered graph break when attempting to", "Failed to handle graph break gracefully")
RECOMPILE_LIMIT = re.compile(r"(?:recompile_limit|cache_size_limit|[Rr]ecompile limit|cache size limit)")


class Explained(CompileRow, frozen=True, kw_only=True):
    reason: str
    explanation: str
    hints: tuple[str, ...]
    context: str | None
    url: str | None


class Place(CompileRow, frozen=True, kw_only=True):
    file: str | None = None
    line: int | None = None
    function: str | None = None
    code: str | None = None


class Occurrence(CompileRow, frozen=True, kw_only=True):
    """One mention of one break in one source."""

    frame: int | None = None
    compile_id: str | None = None
    place: Place = Place()
    explained: Explained
    skipped_frame: bool = False
    cost_s: float = 0.0
    source: str


def explain(text: str) -> Explained:
    """Take ``reason / Explanation / Hint … / Developer debug context / link`` apart.

    Where one break happened while another was handled, the first is the cause and its parts are given.
    """
    text = text.split("\n*** While handling this graph break", 1)[0]
    lines = [line for line in text.split("\n") if line.strip()]
    while len(lines) > 1 and lines[0].startswith(WRAPPERS):
        lines.pop(0)
    if len(lines) > 1 and lines[0].endswith(":"):  # backend='…' raised: / the error
        lines[:2] = [f"{lines[0]} {lines[1].strip()}"]
    reason = lines[0].strip() if lines else "no reason given"
    parts: dict[str, list[str]] = {"Explanation": [], "Hint": [], "Developer debug context": []}
    current: list[str] | None = None
    for line in lines[1:]:
        label, colon, rest = line.strip().partition(":")
        if colon and label in parts and line.startswith("  "):
            current = parts[label]
            current.append(rest.strip())
        elif line.lstrip().startswith(("For more details", "User code traceback", "Traceback (most")):
            break
        elif current:
            current[-1] += " " + line.strip()
    url = URL.search(text)
    return Explained(
        reason=reason,
        explanation=" ".join(parts["Explanation"]),
        hints=tuple(parts["Hint"]),
        context=" ".join(parts["Developer debug context"]) or None,
        url=url[1] if url else None,
    )


def parse_artifact(text: str) -> tuple[Place, Explained, bool]:
    """Where, why, and whether the whole frame was given up, from a ``dynamo_graph_break_reason`` artifact."""
    head, _, rest = text.partition("\nUser code traceback:")
    body = head.partition("Graph Break Reason: ")[2] or head
    body = body.partition("\nStack variable source attribution")[0]
    place = PLACE.search(head)
    file, line = (place[1], int(place[2])) if place else (None, None)
    frames = USER_FRAME.findall(rest.partition("\n\nTraceback")[0].partition("\nNoneType")[0])
    function, code = next(
        ((f[2], f[3].strip()) for f in reversed(frames) if f[0] == file and int(f[1]) == line), (None, None)
    )
    skipped = "Skipping the function" in body or "frame skipped" in body
    return Place(file=file, line=line, function=function, code=code), explain(body), skipped


def looks_like_break(reason: str) -> bool:
    """Whether a restart reason is a break (other restarts retrace for reasons of Dynamo's own)."""
    return ("Explanation:" in reason or "graph break" in reason.lower()) and not RECOMPILE_LIMIT.search(
        reason
    )


def reconcile(
    occurrences: Iterable[Occurrence], counters: Mapping[str, int], failed: Collection[str] = ()
) -> tuple[GraphBreak, ...]:
    """One row a place and reason, the costliest first.

    A reason in the metrics is the same break as an artifact of the same frame with that reason. Counters
    (reason to count, over the whole process) add a row without a place only for breaks that no log record
    explains, neither as a break nor as one of the ``failed`` compilations' reasons.
    """
    rows: dict[tuple[str | None, int | None, str], list[Occurrence]] = {}
    all_occurrences = list(occurrences)
    known = {(o.frame, o.explained.reason) for o in all_occurrences if o.source == "artifact"}
    for occurrence in all_occurrences:
        place, reason = occurrence.place, occurrence.explained.reason
        if occurrence.source != "artifact" and (occurrence.frame, reason) in known:
            for key, mentions in rows.items():
                if key[2] == reason and any(o.frame == occurrence.frame for o in mentions):
                    mentions.append(occurrence)
                    break
            continue
        rows.setdefault((place.file, place.line, reason), []).append(occurrence)
    breaks = [_merge(mentions) for mentions in rows.values()]
    explained = {row.reason for row in breaks}
    for text, count in counters.items():
        parsed = explain(text)
        if RECOMPILE_LIMIT.search(text) or parsed.reason in explained or parsed.reason in failed:
            continue
        counted = Occurrence(explained=parsed, source="counters")
        breaks.append(msgspec.structs.replace(_merge([counted]), count=count))
    return tuple(sorted(breaks, key=lambda row: (-row.cost_s, -row.count)))


def _merge(mentions: list[Occurrence]) -> GraphBreak:
    first = mentions[0]
    own = [o for o in mentions if o.source == "artifact"] or mentions
    return GraphBreak(
        frame=first.frame,
        compile_id=first.compile_id,
        **msgspec.structs.asdict(first.place),
        **msgspec.structs.asdict(first.explained),
        skipped_frame=any(o.skipped_frame for o in mentions),
        count=len(own),
        cost_s=round(sum(o.cost_s for o in own), 6),
        sources=tuple(dict.fromkeys(o.source for o in mentions)),
    )
