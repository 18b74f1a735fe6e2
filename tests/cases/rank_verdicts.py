"""What is said of every set of ranks whose truth is known: ``PYTHONPATH=src:tests:tests/support python -m
cases.rank_verdicts``.

Prints the table of docs/evidence/ranks.md.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from pathlib import Path

from kinetoscope.analysis.ranks.comparison import compare
from kinetoscope.analysis.ranks.parts import RankPart, part
from kinetoscope.analysis.ranks.rows import RankVerdict
from kinetoscope.trace.read import read
from rank_jobs import CAUSES, jobs
from rank_sets import Job, recorded


def judged(job: Job, verdict: RankVerdict) -> str:
    """``right``, ``cannot tell`` or ``wrong``. Of a culprit whose trace is missing nothing is known: then
    that is right."""
    if job.fault.rank is None:
        return {"even": "right", "unknown": "cannot tell"}.get(verdict.status, "wrong")
    if job.fault.rank in job.loss.missing:
        return "right" if verdict.rank is None and verdict.status == "unknown" else "wrong"
    if verdict.rank is None:
        return "cannot tell" if verdict.status != "even" else "wrong"
    return "right" if (verdict.rank, verdict.cause) == (job.fault.rank, CAUSES[job.fault.kind]) else "wrong"


def verdict_on(job: Job) -> RankVerdict:
    parts: dict[int, RankPart] = {}
    with tempfile.TemporaryDirectory() as folder:
        for rank, trace in recorded(job):
            path = Path(folder) / f"rank{rank}.json"
            path.write_text(json.dumps(trace))
            parts.setdefault(rank, part(read(path)))
    return compare(list(parts.values())).verdict


def main() -> None:
    counts: dict[str, Counter[str]] = {}
    for job in jobs():
        counts.setdefault(job.name, Counter())[judged(job, verdict_on(job))] += 1
    print("| job and what its recording lacks | right | cannot tell | wrong |\n|---|--:|--:|--:|")
    for name, found in [*counts.items(), ("**all**", sum(counts.values(), Counter[str]()))]:
        print(f"| {name} | {found['right']} | {found['cannot tell']} | {found['wrong']} |")


if __name__ == "__main__":
    main()
