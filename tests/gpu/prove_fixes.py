"""Ten findings proved: each labelled fix applied as a patch by `kinetoscope mcp --allow-run prove`.

    PYTHONPATH=src python tests/gpu/prove_fixes.py OUT [CASE…] [--part 1/2] [--minutes 9]    then --part 2/2

The ten are the first, by name, of the cases in tests/cases whose fix is eager, of one device, recorded by the
defaults and measured to save a twentieth of the step or more. Each is recorded anew as a program of its own,
and its finding proved with the patch from `before.py` to `after.py`. OUT/table.txt has the table,
OUT/answers.json every answer. A case takes its budget and some 15 s; those that do not fit into the minutes
are named. CASE… are tried in place of the ten. `--comment CASE` proves a patch that changes nothing but a
comment, which must never come out as proved.
"""

from __future__ import annotations

import difflib
import json
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
CASES = HERE.parent / "cases"
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent.parent / "src")]
import proving  # noqa: E402

TEN, SAVES = 10, 0.05
SECONDS = 8.0  # of the recorded program: `compare` ends its runs itself
BUDGET_S = 100.0  # at least six pairs, which a verdict needs, of runs that take up to eight seconds
LOOP = """

if __name__ == "__main__":
    import time

    class Step(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.call = build(torch.device("cuda" if torch.cuda.is_available() else "cpu"))

        def forward(self):
            return self.call()

    one, end = Step(), time.monotonic() + {seconds}
    while time.monotonic() < end:
        one()
"""
COMMENT = "# the same program\n"


def chosen() -> list[str]:
    """Return the ten, by what they are and not by how they come out."""
    from cases import recorded

    def fits(case: str) -> bool:
        sources = [CASES / case / f"{side}.py" for side in ("before", "after")]
        if not all(path.is_file() for path in sources):
            return False
        texts = [path.read_text() for path in sources]
        saved, step = recorded.measured_us(case), recorded._step_us(case, "before")
        plain = not any("compile" in text or "RECORD" in text for text in texts)
        return plain and saved is not None and step is not None and saved >= SAVES * step

    return [case for case in recorded.cases() if fits(case)][:TEN]


def program(source: str) -> str:
    """Return a case as a program that runs its step for a while."""
    return source.rstrip("\n") + LOOP.format(seconds=SECONDS)


def patch(before: str, after: str) -> str:
    """Return the unified diff from one text of train.py to another."""
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), "a/train.py", "b/train.py"
    )
    return "".join(lines)


def tool(folder: Path, *words: str) -> dict[str, Any]:
    """Return the answer of a tool, asked in the program's folder."""
    done = proving.kinetoscope("mcp", "--allow-run", *words, cwd=folder, timeout=240)
    if done.returncode:
        return {"error": {"reason": done.stderr[-400:]}}
    return json.loads(done.stdout)


def prove(case: str, out: Path, budget_s: float, *, comment: bool = False) -> dict[str, Any]:
    """Record a case, find its finding, and prove it with the fix (or with a comment alone)."""
    folder = out / "work" / case
    folder.mkdir(parents=True, exist_ok=True)
    before, after = ((CASES / case / f"{side}.py").read_text() for side in ("before", "after"))
    (folder / "train.py").write_text(program(before))
    options = ("--no-report", "--out", "recording", "--", "train.py")
    done = proving.kinetoscope("run", *options, cwd=folder, timeout=120)
    if not (folder / "recording" / "manifest.json").is_file():
        return {"case": case, "error": done.stderr[-400:]}
    listed = tool(folder, "findings", "recording=recording", f"rule={case}")
    if "from_recording" not in listed:
        return {"case": case, "error": f"no such finding: {listed}"}
    finding = listed["from_recording"][0]
    answers: dict[str, Any] = {"case": case, "finding": finding}
    name, changed = ("comment", COMMENT + program(before)) if comment else ("fix", program(after))
    (folder / f"{name}.patch").write_text(patch(program(before), changed))
    words = ("recording=recording", f"finding={finding['id']}", f"patch=@{name}.patch")
    return answers | {name: tool(folder, "prove", *words, f"budget_s={budget_s:g}")}


def row(result: dict[str, Any]) -> str:
    """Return a case's line of the table."""
    if "error" in result:
        return f"{result['case']:28} {result['error'][:120]}"
    cells = [f"{result['case']:28}"]
    for name in (name for name in ("fix", "comment") if name in result):
        answer = result[name]
        if "from_recording" not in answer:
            cells.append(f"{name}: {json.dumps(answer.get('error') or answer.get('cannot_answer'))[:160]}")
            continue
        proof = answer["from_recording"][0]
        interval = proof.get("saving_interval_us")
        within = f"{interval[0] / 1e3:.3f} to {interval[1] / 1e3:.3f}" if interval else "no interval"
        promised = proof["predicted_saving_us"] / 1e3
        cells.append(
            f"{name}: {proof['verdict']:11} saved {proof['saving_us'] / 1e3:8.3f} ms "
            f"({within}, {proof['pairs']} pairs; promised {promised:.3f})"
        )
    return " | ".join(cells)


def main() -> None:
    parser = proving.arguments(__doc__)
    parser.add_argument("cases", nargs="*", help="in place of the ten")
    parser.add_argument("--part", default="1/1", help="1/2: the first half of the ten")
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--budget", type=float, default=BUDGET_S, help="seconds of each proof")
    parser.add_argument("--comment", help="a case: its patch changes nothing but a comment")
    arguments = parser.parse_intermixed_args()
    number, of = map(int, arguments.part.split("/"))
    cases = [arguments.comment] if arguments.comment else (arguments.cases or chosen())[number - 1 :: of]
    began, results = time.monotonic(), []
    longest = 0.0
    for case in cases:
        started = time.monotonic()
        if started - began + longest > 60 * arguments.minutes:
            results.append({"case": case, "error": "left out: the minutes are spent"})
            continue
        results.append(prove(case, arguments.out, arguments.budget, comment=bool(arguments.comment)))
        longest = max(longest, time.monotonic() - started)
        (arguments.out / "answers.json").write_text(json.dumps(results, indent=1))
        print(row(results[-1]), f"[{time.monotonic() - started:.0f} s]", flush=True)
    proofs = [one[name] for one in results for name in ("fix", "comment") if name in one]
    verdicts = [one["from_recording"][0]["verdict"] for one in proofs if "from_recording" in one]
    proving.show(
        arguments.out,
        [*map(row, results), "", f"{len(results)} cases; verdicts: {', '.join(verdicts)}"],
    )


if __name__ == "__main__":
    main()
