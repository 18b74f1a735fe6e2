"""Recordings of programs compared with the expert's answers to them: a few lines for each program.

The time of a step is compared with the program's own mean clock of the recorded process itself: plain
runs are other processes, some of which go at another pace, and shorter. That clock also counts what the
recorder took (`whole_run.ours_us`: its pauses, and the recorded steps), as far as that lay in the
window that the program times, which leaves out what `lead` in its answers says. So there are two ends,
the clock as it was printed and without all of that; the truth lies between them, and what is said is
compared with the nearest value there. Said of a step is its mean; of steps in rounds
(`as_it_runs.round`) also its mean with its share of the round: an author's clock has that in it or has
not, the nearer counts and is named. Programs whose plain and recorded runs differ by more than `AGREE`
say nothing of three percent.

Where nothing is wrong (`at_most` in the answers, or no rules of a first advice) whatever comes first is
right that promises no more than that share of the step; how often the first finding is the expert's first
advice is also said without these.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import tarfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import proving  # noqa: E402

SAVES = 0.05  # of the step: what "saves" in expected.json means
AGREE = 0.03  # of a step: how near what is said and the program's own clock are to be
NEAR = 0.1  # how near they are where the step is called right
MODEST = 0.05  # of the step: what may be promised where nothing is wrong, unless the answers say how much


def reports(out: Path, names: list[str]) -> dict[str, dict[str, Any]]:
    """Unpack what lies in a folder, and return each recording's report."""
    work = out / "unpacked"
    for packed in sorted(out.glob("recordings-*.tar")):
        with tarfile.open(packed) as archive:
            archive.extractall(work, filter="data")
    for packed in sorted(work.glob("*.tar.xz")) if work.exists() else []:
        if not (work / packed.name.split(".")[0]).exists():
            with tarfile.open(packed) as archive:
                archive.extractall(work, filter="data")
    found = {}
    for name in names:
        kept = work / f"{name}.report.json"
        if (work / name).is_dir():
            report = proving.kinetoscope("report", work / name, "--json", timeout=600)
            if report.returncode:
                print(f"{name}: {report.stderr[-300:]}")
                continue
            kept.write_text(report.stdout)
        if kept.exists():
            found[name] = json.loads(kept.read_text())
    return found


def results(out: Path) -> dict[str, Any]:
    """Read the results of all calls that wrote into a folder."""
    found: dict[str, Any] = {}
    for file in sorted(out.glob("results-*.json")):
        found |= json.loads(file.read_text())
    return found


def judge(out: Path, answers: dict[str, Any]) -> None:
    """Print the table of a folder of results, and write it there."""
    measured = results(out)
    documents = reports(out, list(measured))
    lines: list[str] = []
    counts = {
        "step": 0,
        "even": 0,
        "agree": 0,
        "first": 0,
        "modest": 0,
        "second": 0,
        "useless": 0,
        "fixes": 0,
        "promised": 0,
        "near": 0,
        "foreseen": 0,
    }
    for name, result in measured.items():
        lines += judged(name, answers[name], result, documents.get(name), counts)
    lines += [
        "",
        f"{len(measured)} programs: {counts['step']} times the step is one of the program's own, "
        "and its time within a tenth of the program's clock;",
        f"{counts['even']} run plainly and recorded within 3 % of each other, and of these what is said of a "
        f"step is within 3 % of the program's clock {counts['agree']} times;",
        f"the first finding is the expert's first advice {counts['first'] + counts['modest']} times, "
        f"the second {counts['second']} times, one that saves nothing {counts['useless']} times;",
        f"of these {counts['modest']} times nothing is wrong and it promises no more than it may: without "
        f"them it is the first advice {counts['first']} times.",
        f"{counts['fixes']} fixes surely saved something; {counts['promised']} were promised something, "
        f"{counts['near']} within 0.67 and 1.5. The expert foresaw {counts['foreseen']} of all fixes.",
    ]
    proving.show(out, lines)


def judged(
    name: str,
    expected: dict[str, Any],
    result: dict[str, Any],
    document: dict[str, Any] | None,
    counts: dict[str, int],
) -> list[str]:
    """Write the lines of a program, and count what was right."""
    runs = result["runs"]
    own = [row["ms"] for row in runs if not row["fix"] and row["ms"]]
    if not own:
        return [f"\n{name}: it did not run: {result['first'].get('tail', '')[-200:]}"]
    own_ms = statistics.median(own)
    recorded_ms = (result["record"] or {}).get("ms")
    lines = [
        f"\n{name}: a step is {expected['step']}",
        f"  own clock       {' '.join(number(ms, 0, 3) for ms in own)} ms; "
        f"recorded process {number(recorded_ms, 0, 3)} ms",
    ]
    if document is None:
        status = (result["record"] or {}).get("status")
        return [*lines, f"  no recording (status {status})", *fixes(expected, runs, [], 1, counts)]
    timings = next(iter(document.get("timings") or []), {})
    known = (document.get("step_levels") or {}).get("levels") or []
    step = {
        "name": known[0]["name"] if known else timings.get("step_name"),
        "found_by": timings.get("found_by"),
        "levels": known[1:],
    }
    factor = factor_of(document, expected, own_ms)
    printed_ms, without_ms = ends(result, document, expected, factor, own_ms)
    said = [
        (abs(math.log(ratio)), ratio, us, words)
        for us, words in said_of_a_step(document)
        for ratio in (us / 1e3 / factor / nearest(us / 1e3 / factor, without_ms, printed_ms),)
    ]
    if said:
        level = next(one for one, times in expected["levels"].items() if times == factor)
        _, ratio, said_us, words = min(said)
        even = max(*own, printed_ms) <= (1 + AGREE) * min(*own, printed_ms)
        counts["step"] += 1 - NEAR <= ratio <= 1 + NEAR
        counts["even"] += even
        counts["agree"] += even and 1 - AGREE <= ratio <= 1 + AGREE
        levels = ", ".join(f"{one['name']} {number(one['calls'], 0, 1)}" for one in step.get("levels") or [])
        lines += [
            f"  step said       {step.get('name')} (by {step.get('found_by')}; {levels or 'no levels'})",
            f"  as it runs      {said_us / 1e3:.3f} ms ({words}), {ratio:.3f} of that process' own clock, "
            f"{printed_ms:.3f} ms, {without_ms:.3f} without the recorder; "
            f"{said_us / 1e3 / own_ms / factor:.3f} of that of plain runs{'' if even else ', which differ'}; "
            f"taken as: {level}",
        ]
    else:
        lines.append("  step said       none")
    findings = document["findings"]
    step_us = min(said)[2] if said else own_ms * 1e3 * factor
    share = findings[0]["saving_us"] / step_us if findings else 0.0
    may = may_promise(expected)
    for place, finding in enumerate(findings[:3], 1):
        verdict = [
            what for what in ("first", "second", "no_use") if belongs(finding, expected[what]["rules"])
        ]
        lines.append(
            f"  finding {place}       {finding['rule']} {finding['saving_us'] / 1e3 / factor:.2f} ms: "
            f"{finding['title'][:90]} [{', '.join(verdict) or 'neither'}]"
        )
    rules = {what: expected[what]["rules"] for what in ("first", "second", "no_use")}
    is_first = bool(findings) and belongs(findings[0], rules["first"])
    modest = not is_first and may is not None and share <= may
    counts["first"] += is_first
    counts["modest"] += modest
    if findings and not is_first and not modest:
        counts["second"] += belongs(findings[0], rules["second"])
        counts["useless"] += belongs(findings[0], rules["no_use"])
    if may is not None:
        lines.append(
            f"  nothing wrong   the first finding promises {share:.1%} of the step, "
            f"{'no more than' if share <= may else 'more than'} the {may:.0%} that it may"
        )
    place = next((i for i, one in enumerate(findings, 1) if belongs(one, rules["first"])), None)
    lines.append(f"  expert, first   {expected['first']['do']} (finding {place or '–'})")
    return lines + fixes(expected, runs, findings, factor, counts)


def may_promise(expected: dict[str, Any]) -> float | None:
    """The share of the step that the first finding may promise where nothing is wrong, or None."""
    return expected.get("at_most", None if expected["first"]["rules"] else MODEST)


def said_of_a_step(document: dict[str, Any]) -> list[tuple[float, str]]:
    """List what is said of a step's mean, µs, and in words what it counts in."""
    runs_as = document.get("as_it_runs") or {}
    mean_us = runs_as.get("mean_us") or (runs_as.get("step_us") or {}).get("median")
    if not mean_us:
        return []
    shared = runs_as.get("round")
    said = [(mean_us, "at the mean")]
    return said + ([(shared["per_step_us"], "with its share of the round")] if shared else [])


def ends(
    result: dict[str, Any], document: dict[str, Any], expected: dict[str, Any], factor: float, plain_ms: float
) -> tuple[float, float]:
    """Read the recorded process' own clock as it printed it, and without all that the recorder took, in ms.

    Without a clock of that process both are that of plain runs.
    """
    recorded, watched, of = result["record"] or {}, document.get("whole_run"), expected["steps"]
    if recorded.get("ms") is None:
        return plain_ms, plain_ms
    printed_ms = recorded["ms"]
    timed = (recorded["steps"] - of["lead"]) * of["clocks"] if of else 0
    # As many of the program's own steps were recorded; their time is the recorder's.
    left = timed - (watched["recorded_steps"] * factor if watched else 0)
    if not watched or left <= 0:
        return printed_ms, printed_ms
    without_ms = (printed_ms * timed - watched["ours_us"] / 1e3) / left
    return printed_ms, min(printed_ms, without_ms) if without_ms > 0 else printed_ms


def nearest(value: float, low: float, high: float) -> float:
    """The number from ``low`` to ``high`` that is nearest to a value."""
    return min(max(value, low), high)


def factor_of(document: dict[str, Any], expected: dict[str, Any], own_ms: float) -> float:
    """Count the program's steps in one of the report's: the level whose time is nearest to what is said."""
    said_us = ((document.get("as_it_runs") or {}).get("step_us") or {}).get("median")
    if not said_us:
        return 1.0
    return min(expected["levels"].values(), key=lambda times: abs(math.log(said_us / 1e3 / own_ms / times)))


# Rules that were only planned when answers were written, under the names that they have.
BUILT = {
    "data-on-device": "data-in-memory",
    "dense-embedding-gradient": "dense-embedding-gradients",
    "needless-recomputation": "needless-checkpointing",
    "new-shape-planning": "new-shapes",
    "recurrent-host-work": "results-on-host",
    "repeated-module-calls": "split-batches",
    "small-batch": "split-batches",
}


def belongs(finding: dict[str, Any], rules: list[str]) -> bool:
    """Say whether a finding is of one of these rules, or has one of these words in title or advice."""
    text = f"{finding['title']} {finding['advice']}".lower()
    named = {BUILT.get(rule, rule) for rule in rules}
    return finding["rule"] in named or any(word in text for word in rules if "-" not in word)


def fixes(
    expected: dict[str, Any],
    runs: list[dict[str, Any]],
    findings: list[dict[str, Any]],
    factor: float,
    counts: dict[str, int],
) -> list[str]:
    """A line for each fix: promised a step of the program, and saved."""
    lines = []
    unit = "score" if expected["score"] else "ms"
    before = [row[unit] for row in runs if not row["fix"] and row[unit]]
    for fix, written in expected["fixes"].items():
        after = [row[unit] for row in runs if row["fix"] == fix and row[unit]]
        if not after or not before:
            continue
        saved = statistics.median(before) - statistics.median(after)
        surely = max(after) < min(before)
        share = saved / statistics.median(before)
        promises = [
            one.get("saving_alone_us", one["saving_us"]) / 1e3 / factor
            for one in findings
            if written["rules"] and belongs(one, written["rules"])
        ]
        promised = max(promises, default=None)
        foreseen = {"saves": surely and share >= SAVES, "little": share < SAVES}.get(written["expect"], True)
        counts["foreseen"] += foreseen
        if surely and share >= SAVES:
            counts["fixes"] += 1
            counts["promised"] += bool(promised)
            counts["near"] += bool(promised) and 0.67 <= promised / saved <= 1.5
        lines.append(
            f"  {fix:40} promised {number(promised, 8, 2)}  saved {saved:8.2f} ms ({share:4.0%}, "
            f"{'surely' if surely else 'unsure'})  expected: {written['expect']}"
            f"{'' if foreseen else ', wrongly'}"
        )
    return lines


def number(value: float | None, width: int, digits: int) -> str:
    return f"{'–':>{width}}" if value is None else f"{value:{width}.{digits}f}"
