"""What `prove_memory.py record` brought, judged: sums against the allocator's own, changes against what they
were promised to save. `python tests/gpu/prove_memory.py judge OUT`, anywhere."""

from __future__ import annotations

import gzip
import json
import pickle
import re
import tarfile
from pathlib import Path
from sys import intern
from typing import Any

import msgspec

from kinetoscope.analysis.memory.growth import growth
from kinetoscope.analysis.memory.headroom import fits
from kinetoscope.analysis.memory.peak import RankHistory, histories, holders, split
from kinetoscope.findings.registry import find
from kinetoscope.recording.manifest import StepTimings
from kinetoscope.sources.run import LoadedRun, load

PARTS = {"parameters": "parameter", "gradients": "gradient", "optimizer state": "optimizer state"}
# What is recorded, what was counted with the change, the rule that promised, and what it promised of.
CHANGES = (
    ("train", "train checkpoint", "activation-memory", "allocated"),
    ("train", "train logits", "float32-logits", "allocated"),
    ("train", "train fused", "optimizer-memory", "allocated"),
    ("keeps", "keeps none", "gradients-kept", "allocated"),
    ("pairwise", "pairwise cdist", "one-temporary", "allocated"),
    ("ragged", "ragged expandable", "memory-fragmentation", "reserved"),
)


# Where the programs and torch lay, which nobody needs to know.
PLACES = ((re.compile(r"^.*/site-packages/"), "/env/lib/python3.12/site-packages/"),
          (re.compile(r"^.*/tests/gpu/programs/"), "/home/user/"))  # fmt: skip
ENTRIES = 4000  # of a history that is kept: a step has about 1,200


def judge(out: Path) -> None:
    """Print the tables."""
    recordings = out / "unpacked"
    runs = _runs(out, recordings)
    _sums(runs, recordings)
    counted = json.loads((out / "results.json").read_text())["counted"]
    _changes(runs, counted)
    _batches(runs, counted)


def _runs(out: Path, recordings: Path) -> dict[str, LoadedRun]:
    for archive in out.glob("*.tar.gz"):
        with tarfile.open(archive) as packed:
            packed.extractall(recordings, filter="data")
    folders = sorted(path.parent for path in recordings.glob("*/manifest.json"))
    return {folder.name: load(folder) for folder in folders}


def keep(out: Path, home: Path) -> None:
    """Snapshots without their traces, and what was counted: some 35 kB a program."""
    recordings = out / "unpacked"
    home.mkdir(exist_ok=True)
    peaks: dict[str, dict[str, int]] = {}
    for name, run in _runs(out, recordings).items():
        truth = json.loads((recordings / name / "truth.json").read_text())
        for one in histories(run).found:
            stem = f"{name}-failed" if one.history.moment == "out of memory" else name
            peak = _peak_of(truth, run, one)
            peaks[stem] = {kind: peak[kind] for kind in ("requested", "reserved")}
            snapshot = pickle.loads(one.files.path.read_bytes())
            snapshot["device_traces"] = [entries[-ENTRIES:] for entries in snapshot["device_traces"]]
            _pack(home / f"{stem}.pickle.gz", pickle.dumps(_elsewhere(snapshot), protocol=4))
            _pack(home / f"{stem}.json.gz", msgspec.json.encode(one.held))
    results = json.loads((out / "results.json").read_text())
    kinds = ("requested", "allocated", "reserved")
    most = {name: {kind: _most(run, kind) for kind in kinds} for name, run in results["counted"].items()}
    (home / "counted.json").write_text(json.dumps({"peaks": peaks, "most": most}, indent=1) + "\n")


def _pack(path: Path, content: bytes) -> None:
    path.write_bytes(gzip.compress(content, 9, mtime=0))


def _elsewhere(part: Any) -> Any:
    """The same, with files in other folders; equal strings are one object, as in what torch writes."""
    if isinstance(part, dict):
        return {key: _elsewhere(value) for key, value in part.items()}
    if isinstance(part, list):
        return [_elsewhere(value) for value in part]
    if isinstance(part, str) and part.startswith("/"):
        for place, other in PLACES:
            part = intern(place.sub(other, part))
    return part


def _of_steps(run: LoadedRun) -> RankHistory | None:
    found = [one for one in histories(run).found if one.history.moment == "recorded steps"]
    return found[0] if found else None


def _sums(runs: dict[str, LoadedRun], recordings: Path) -> None:
    print("| program | moment | requested | counted | reserved | counted | parts less it | nobody's | off |")
    print("|---|---|---:|---:|---:|---:|---:|---:|---|")
    for name, run in runs.items():
        truth = json.loads((recordings / name / "truth.json").read_text())
        for one in histories(run).found:
            peak, asked = _peak_of(truth, run, one), one.history.requested
            parts = dict(split(one.history).select("part", "bytes").iter_rows())
            table = holders(one.history)
            without = asked - int(table["bytes"].sum())
            same = [parts.get(ours, 0) - truth["parts"].get(theirs, 0) for theirs, ours in PARTS.items()]
            off = sum(parts.values()) - one.history.reserved
            print(
                f"| {name} | {one.history.moment} | {asked:,} | {peak['requested']:,} "
                f"| {one.history.reserved:,} | {peak['reserved']:,} | {off} | {without} | {same} |"
            )
            rows = growth(one.history, one.held.boundaries_ns if one.held else ())
            for row in rows.head(3).iter_rows(named=True):
                print(f"  +{row['bytes_per_step']:,} per step, {row['line']} {row['owner']}, {row['grows']}")
        for error in histories(run).unread:
            print(f"  {name}: {error}")


def _peak_of(truth: dict[str, Any], run: LoadedRun, one: RankHistory) -> dict[str, int]:
    """What torch counted: of the recorded steps the most, by the program; of a failure, in that moment.

    A step of the recorder's may begin within one of the program's: then the program's next is left out.
    """
    if one.history.moment == "out of memory" and one.history.counters:
        counters = one.history.counters
        return {"requested": counters.requested_bytes, "reserved": counters.reserved_bytes}
    steps = run.manifest.ranks[0].steps if run.manifest else StepTimings()
    first, count = steps.first_step or 0, len(steps.profiled_s)
    more = steps.found_by == "optimizer"
    inside = truth["steps"][first : first + count + more] or truth["steps"]
    return {kind: max(step[kind] for step in inside) for kind in ("requested", "allocated", "reserved")}


def _changes(runs: dict[str, LoadedRun], counted: dict[str, Any]) -> None:
    print("\n| change | promised | measured | ratio |\n|---|---:|---:|---:|")
    for before, after, rule, kind in CHANGES:
        measured = _most(counted[before], kind) - _most(counted[after], kind)
        found = [one for one in find(runs[before]) if one.rule == rule]
        promised = sum(one.saving_bytes for one in found)
        ratio = f"{promised / measured:.3f}" if measured else "–"
        print(f"| {after}: {rule} | {promised:,} | {measured:,} | {ratio} |")


def _most(counted: dict[str, Any], kind: str) -> int:
    return max(step[kind] for step in counted["steps"][3:])


def _batches(runs: dict[str, LoadedRun], counted: dict[str, Any]) -> None:
    """The peak of other batches, from the parts of the recorded one."""
    one = _of_steps(runs["train"])
    room = one and fits(one.history)
    if room is None:
        print("no batch was foreseen")
        return
    print("\n| batch | foreseen | measured | ratio |\n|---|---:|---:|---:|")
    for name, times in (("train 4", 0.5), ("train 16", 2.0)):
        foreseen, measured = room.fixed_bytes + times * room.scaling_bytes, _most(counted[name], "requested")
        print(f"| {times:g} × | {foreseen:,.0f} | {measured:,} | {foreseen / measured:.3f} |")
