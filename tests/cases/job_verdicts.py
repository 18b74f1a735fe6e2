"""What is said of simulated jobs whose truth is known: ``PYTHONPATH=src:tests:tests/support python -m
cases.job_verdicts [SEED [FOLDER]]``.

Prints a table of docs/evidence/ranks.md: of the list of jobs by which constants were chosen, or, with a
seed, of jobs drawn by chance. A folder keeps what was made of each job, for the next time.
"""

from __future__ import annotations

import json
import pickle
import sys
import tempfile
from collections import Counter
from pathlib import Path

from job_sets import drawn, jobs
from job_simulator import Job, cost, recorded, slow_group
from kinetoscope.analysis.ranks.comparison import RankComparison, compare
from kinetoscope.analysis.ranks.parts import RankPart, part, placed
from kinetoscope.trace.read import read

CAUSES = {
    "device": {"clocks"}, "kernel": {"slow kernel"}, "host": {"host"}, "stall": {"host"},
    "garbage": {"garbage collection"}, "loader": {"data loader"}, "sync": {"host", "synchronization"},
    "link": {"link"},
}  # fmt: skip
WITHIN = 1.25
OUTCOMES = ("right", "partly", "not said", "wrong")


def judged(job: Job, found: RankComparison) -> str:
    """One of ``OUTCOMES``. Who names one rank of several that are slow, or another cause, is wrong; partly
    right is who names the ranks without a cause, or a group that the slow link's rank is of."""
    verdict, fault = found.verdict, job.fault
    named = set(said(found))
    if fault.what == "none":
        return "wrong" if named or verdict.status == "turns" else "right"
    if not named:
        return "not said" if verdict.status != "turns" else "wrong"
    if fault.what == "link":
        is_right = verdict.cause == "link"
        return "right" if is_right and named == slow_group(job) else "partly" if (
            is_right and named & set(fault.ranks)) else "wrong"  # fmt: skip
    if named != set(fault.ranks):
        return "wrong"
    if verdict.cause in CAUSES[fault.what]:
        return "right"
    return "partly" if verdict.cause in (None, "compute") else "wrong"


def said(found: RankComparison) -> list[int]:
    """The ranks that are named."""
    return found.verdict.ranks


def said_cost(found: RankComparison) -> float | None:
    """Which share of the time is said to be lost to them."""
    return found.verdict.cost_share


def parts_of(job: Job) -> list[RankPart]:
    found: list[RankPart] = []
    with tempfile.TemporaryDirectory() as folder:
        for rank, trace in recorded(job):
            path = Path(folder) / f"rank{rank}.json"
            path.write_text(json.dumps(trace))
            found.append(placed(part(read(path)), f"host{job.host(rank)}"))
    return found


def _kept(job: Job, folder: Path | None) -> tuple[list[RankPart], float]:
    """The parts and the true cost, from an earlier run where ``folder`` has them."""
    path = folder / f"{job.name.replace(' ', '')}-{job.seed}-{job.fault.what}.pickle" if folder else None
    if path is not None and path.exists():
        return pickle.loads(path.read_bytes())
    made = parts_of(job), cost(job) if job.fault.what != "none" else 0.0
    if path is not None:
        path.write_bytes(pickle.dumps(made))
    return made


def main(seed: str = "", folder: str = "") -> None:
    counts: dict[str, Counter[str]] = {}
    costs: dict[str, list[float]] = {}
    for job in drawn(int(seed)) if seed else jobs():
        parts, truth = _kept(job, Path(folder) if folder else None)
        found = compare(parts)
        outcome = judged(job, found)
        share = said_cost(found)
        off = share / truth if share is not None and truth and outcome in ("right", "partly") else None
        for name in (job.fault.what, job.name, "all"):
            counts.setdefault(name, Counter())[outcome] += 1
            costs.setdefault(name, []).extend([] if off is None else [off])
        verdict = found.verdict
        ratio = "" if off is None else f"{off:.2f} of the cost"
        who = f"{verdict.status} {said(found)} {verdict.cause} {verdict.detail[:30]}"
        fault = f"{job.fault.what} {job.fault.ranks} {truth:.1%}"
        print(
            f"{outcome:9}{job.name:20}{job.seed:4} {fault:32} {who:60} {ratio} {verdict.why[:40]}",
            file=sys.stderr,
        )
    print(f"| jobs | {' | '.join(OUTCOMES)} | cost: within {WITHIN} × |\n|---|--:|--:|--:|--:|--:|")
    for name, each in counts.items():
        near = sum(1 / WITHIN <= one <= WITHIN for one in costs[name])
        outcomes = " | ".join(str(each[one]) for one in OUTCOMES)
        print(f"| {name} | {outcomes} | {near} of {len(costs[name])} |")


if __name__ == "__main__":
    main(*sys.argv[1:])
