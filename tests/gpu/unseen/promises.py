"""Compares what findings promise with what fixes saved, over folders of recordings and their results.

    PYTHONPATH=src python tests/gpu/unseen/promises.py OUT=SET… [--only NAME,…]

OUT has `unpacked/NAME` and `results-*.json` (as `evaluate.py record` writes them) or `fixes-*.json` (the runs
alone); SET is the folder of the programs, `.` or `blind`. First come each program's first three findings:
what the expert thinks of it, what it saves by itself, and what remains of that. Then a line for each fix:
what its finding saves by itself, the most that remains of it, and what was saved: the difference of the
medians of the runs without it and with it. The interval takes off and adds what runs of one kind differ by
(those of a fix that ran once, as those without it). Two ratios: of the times, and of their shares of the
step, which the pace of a process does not change.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any, NamedTuple

from judging import HERE, SAVES, belongs, factor_of, number, proving, results

# Rules that were written after the answers, where they give the expert's advice: for a fix, or `first`.
SINCE = {
    "accumulate_scaled": {"first": "split-batches", "one-batch": "split-batches"},
    "cifar_in_memory": {"first": "data-in-memory", "on-device": "data-in-memory"},
    "conformer_ctc": {"first": "results-on-host", "score-rarely": "results-on-host"},
    "churn_notebook": {"first": "rare-long-steps", "no-gc": "rare-long-steps"},
    "dlrm": {"first": "dense-embedding-gradients", "one-table,sparse": "dense-embedding-gradients"},
    "lora_checkpointed": {"no-checkpointing": "needless-checkpointing"},
    "phases": {"first": "rare-long-steps", "save-rarely": "rare-long-steps"},
    "pose_eval": {"first": "results-on-host", "peaks-on-device": "results-on-host"},
    "sage": {"features-on-device": "data-in-memory"},
    "style_notebook": {"first": "results-on-host", "short-history": "results-on-host"},
    "tagging_epochs": {"first": "rare-long-steps", "persistent": "rare-long-steps"},
    "trainer_callbacks": {"second": "results-on-host", "norms-rarely": "results-on-host"},
    "beam_translate": {"first": "results-on-host", "scorer-on-host": "results-on-host"},
    "lidar_compiled": {"first": "cudagraph-anew", "fixed-points": "cudagraph-anew"},
    "lightgcn": {"first": "sparse-transpose", "symmetric": "sparse-transpose"},
    "video_phases": {"first": "unexplained-idle", "bytes": "unexplained-idle"},
    "dqn": {"buffer-on-device": "data-in-memory"},
}


def rules_of(name: str, what: str, rules: list[str]) -> list[str]:
    """The rules of an answer, with the one that was written since."""
    since = SINCE.get(name, {}).get(what)
    return [*rules, since] if since else rules


WHAT = "first", "second", "no_use"


class Compared(NamedTuple):
    """A fix, ms a step: without it (``before``; ``runs`` as the report says), what is promised, by the
    finding at ``place`` of the report, and what was saved."""

    program: str
    fix: str
    before: float
    runs: float | None
    promised: float | None
    most: float | None
    rule: str
    place: int | None
    saved: float
    low: float
    high: float

    @property
    def surely(self) -> bool:
        """Whether it saves a twentieth of the step, in every run."""
        return self.low > 0 and self.saved >= SAVES * self.before

    @property
    def ratio(self) -> float | None:
        return self.promised / self.saved if self.promised and self.surely else None

    @property
    def of_shares(self) -> float | None:
        return self.ratio * self.before / self.runs if self.ratio and self.runs else None

    def line(self) -> str:
        place = "–" if self.place is None else str(self.place)
        figures = "".join(number(value, 8, 2) for value in (self.promised, self.most, self.saved))
        ratios = "".join(number(value, 7, 2) for value in (self.ratio, self.of_shares))
        unsure = "" if self.surely else "  (not surely)"
        return (
            f"{self.program:21}{self.fix:36}{figures} ({self.low:7.2f} to {self.high:7.2f}) "
            f"{self.saved / self.before:5.0%}{ratios}  {place:>3} {self.rule}{unsure}"
        )


def runs_of(out: Path) -> dict[str, list[dict[str, Any]]]:
    """Read the plain runs of each program; those of a file of fixes take the place of others."""
    runs = {name: result["runs"] for name, result in results(out).items()}
    for file in sorted(out.glob("fixes-*.json")):
        runs |= json.loads(file.read_text())
    return runs


def compared(
    name: str,
    expected: dict[str, Any],
    runs: list[dict[str, Any]],
    findings: list[dict[str, Any]],
    factor: float,
    runs_us: float | None,
) -> list[Compared]:
    """Compare each measured fix of a program with the finding about it that promises most."""
    unit = "score" if expected["score"] else "ms"
    before = [row[unit] for row in runs if not row["fix"] and row[unit]]
    found: list[Compared] = []
    for fix, written in expected["fixes"].items():
        after = [row[unit] for row in runs if row["fix"] == fix and row[unit]]
        if not after or not before:
            continue
        about = [
            (one.get("saving_alone_us", one["saving_us"]) / 1e3 / factor, -place, one)
            for place, one in enumerate(findings, 1)
            if (rules := rules_of(name, fix, written["rules"])) and belongs(one, rules)
        ]
        promised, place, finding = max(about, default=(None, None, None), key=lambda row: row[:2])
        most = None if finding is None else finding["saving_high_us"] / 1e3 / factor
        saved = statistics.median(before) - statistics.median(after)
        noise = (spread(before) + spread(after if len(after) > 1 else before)) / 2
        found.append(
            Compared(
                name,
                fix,
                statistics.median(before),
                runs_us / 1e3 / factor if runs_us else None,
                promised,
                most,
                "" if finding is None else finding["rule"],
                None if place is None else -place,
                saved,
                saved - noise,
                saved + noise,
            )
        )
    return found


def spread(values: list[float]) -> float:
    return max(values) - min(values)


def report(recording: Path) -> dict[str, Any] | None:
    done = proving.kinetoscope("report", recording, "--json", timeout=600)
    if done.returncode:
        print(f"{recording.name}: {done.stderr[-300:]}")
        return None
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sets", nargs="+", metavar="OUT=SET")
    parser.add_argument("--only", default="", help="these programs, with commas")
    arguments = parser.parse_args()
    only = set(filter(None, arguments.only.split(",")))
    every: list[Compared] = []
    judged = first = second = useless = 0
    for words in arguments.sets:
        out, _, programs = words.partition("=")
        answers = json.loads((HERE / programs / "expected.json").read_text())
        runs = runs_of(Path(out))
        for name in sorted(answers if not only else only & answers.keys()):
            if not (folder := Path(out) / "unpacked" / name).is_dir():
                continue
            document, expected = report(folder), answers[name]
            if document is None:
                continue
            own = [row["ms"] for row in runs.get(name, []) if not row["fix"] and row["ms"]]
            factor = factor_of(document, expected, statistics.median(own)) if own else 1.0
            findings = document["findings"]
            verdicts = [
                next((w for w in WHAT if belongs(one, rules_of(name, w, expected[w]["rules"]))), "neither")
                for one in findings
            ]
            judged += 1
            first += verdicts[:1] == ["first"]
            second += verdicts[:1] == ["second"]
            useless += verdicts[:1] == ["no_use"]
            step = (document.get("as_it_runs") or {}).get("step_us")
            print(
                f"{name}: {number(statistics.median(own) if own else None, 0, 2)} ms by its own clock, "
                f"{number(step['median'] / 1e3 / factor if step else None, 0, 2)} as it runs"
            )
            for finding, verdict in list(zip(findings, verdicts, strict=True))[:3]:
                alone, left = (finding[key] / 1e3 / factor for key in ("saving_alone_us", "saving_us"))
                print(f"    {verdict:8}{alone:9.2f}{left:9.2f}  {finding['rule']}: {finding['title'][:100]}")
            every += compared(name, expected, runs.get(name, []), findings, factor, step and step["median"])
    heads = f"{'program':21}{'fix':36}{'promised':>8}{'most':>8}{'saved':>8}{'interval':>21}"
    print(
        f"\n{heads} {'share':>5}{'ratio':>7}{'shares':>7}  finding", *(one.line() for one in every), sep="\n"
    )
    sure = [one for one in every if one.surely]
    others = [one for one in every if not one.surely]
    too_much = [one for one in others if (one.promised or 0) > max(0.0, one.high)]
    print(
        f"\n{judged} programs: the first finding is the expert's first {first} times, the second {second}, "
        f"of no use {useless}."
        f"\n{len(sure)} fixes surely save a twentieth or more. By their times "
        f"{within([one.ratio for one in sure])},"
        f"\nby shares {within([one.of_shares for one in sure])}."
        f"\n{len(others)} others: {len(too_much)} are promised more than they may save."
    )


def within(ratios: list[float | None]) -> str:
    known = [ratio for ratio in ratios if ratio is not None]
    return (
        f"{len(known)} are promised something, {sum(0.67 <= ratio <= 1.5 for ratio in known)} of them within "
        f"0.67 and 1.5, {sum(not 1 / 3 <= ratio <= 3 for ratio in known)} beyond three times"
    )


if __name__ == "__main__":
    main()
