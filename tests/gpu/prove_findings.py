"""Run the commands that findings print, and show what they predicted beside what was measured.

    PYTHONPATH=src python tests/gpu/prove_findings.py OUT [--llama] [--mixnet MODULE] [CASE…]

CASE is one of tests/gpu/programs/advised.py; --llama trains examples/llama.py; MODULE is a generated module
of a graph whose kernels are tuned, applied and replayed.
"""

from __future__ import annotations

import json
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import proving

HERE = Path(__file__).resolve().parent
LLAMA = [str(HERE.parents[1] / "examples" / "llama.py"), "--dim", "1024", "--layers", "8", "--batch", "8"]
LLAMA += ["--length", "512", "--dtype", "bfloat16", "--steps", "400"]


def kinetoscope(*words: str, cwd: Path | None = None) -> str:
    """Run a command as a user does; what it prints is also kept in the log."""
    began = time.monotonic()
    done = proving.kinetoscope(*words, cwd=cwd)
    print(f"\n$ kinetoscope {shlex.join(words)}   [{done.returncode}, {time.monotonic() - began:.0f} s]")
    if done.returncode:
        print(done.stderr[-1500:])
    sys.stdout.flush()
    return done.stdout


def findings(recording: Path) -> list[dict[str, Any]]:
    return json.loads(kinetoscope("findings", str(recording), "--json") or '{"findings": []}')["findings"]


def prove(name: str, program: list[str], out: Path, most: int = 2) -> list[tuple[str, dict[str, Any]]]:
    """Record a program, run what its findings ask for, and read them again."""
    recording = out / name
    kinetoscope("run", "--no-report", "--out", str(recording), *program)
    asked = [f["proof"] for f in findings(recording) if f["proof"]]
    for command in list(dict.fromkeys(asked))[:most]:
        print(kinetoscope(*shlex.split(command)[1:]))
    print(kinetoscope("report", str(recording)))
    return [(name, finding) for finding in findings(recording)]


def show(rows: list[tuple[str, dict[str, Any]]]) -> None:
    print(
        f"\n{'program':10} {'finding':22} {'predicted':>11} {'measured':>11} {'interval':>24} {'ratio':>6}"
        "  verdict"
    )
    for name, f in rows:
        if f["measured_verdict"] is None:
            continue
        saved, interval = f["measured_saving_us"], f["measured_interval_us"]
        between = f"{interval[0]:.1f} to {interval[1]:.1f}" if interval else "–"
        ratio = f"{f['saving_us'] / saved:.2f}" if saved and saved > 0 else "–"
        measured = "–" if saved is None else f"{saved:.1f}"
        print(
            f"{name:10} {f['rule']:22} {f['saving_us']:8.1f} µs {measured:>8} µs {between:>24} {ratio:>6}"
            f"  {f['measured_verdict']}: {f['measured_basis']}"
        )


def main() -> None:
    parser = proving.arguments(__doc__)
    parser.add_argument("--llama", action="store_true")
    parser.add_argument("--mixnet", type=Path)
    parser.add_argument("--limit", default="8")
    parser.add_argument("cases", nargs="*")
    chosen = parser.parse_intermixed_args()
    if chosen.mixnet:
        tuning = ["--max-autotune", "--apply", "--limit", chosen.limit, "--seconds", "0.3"]
        home = chosen.out / "mixnet"
        home.mkdir(exist_ok=True)
        words = ("--graph", "0_backward", "--trust", *tuning)
        print(kinetoscope("bench", str(chosen.mixnet.resolve()), *words, cwd=home))
    for name in chosen.cases:
        show(prove(name, [str(HERE / "programs" / "advised.py"), name], chosen.out))
    if chosen.llama:
        show(prove("llama", LLAMA, chosen.out, most=1))
        compiled = chosen.out / "llama_compile"
        kinetoscope("run", "--no-report", "--out", str(compiled), *LLAMA, "--compile")
        print(kinetoscope("bench", str(compiled), "--graph", "0_backward", "--ncu", "--limit", "8"))


if __name__ == "__main__":
    main()
