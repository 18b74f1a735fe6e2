"""Programs that nothing was tuned for: the step, the first advice against an expert's, what fixes save.

    python tests/gpu/unseen/evaluate.py record OUT [NAME…] [--set blind] [--minutes 8.5] [--skip-recorded]
    python tests/gpu/unseen/evaluate.py judge OUT [--set blind]
    python tests/gpu/unseen/evaluate.py try [NAME…] [--set blind]

The first, on a CUDA device, runs each program as it is and with its first fixes, in turn, then under
`kinetoscope run`: results and the packed recordings lie in OUT after each program. One run of each comes
first and says how many steps the others take. The second, anywhere, compares them with the answers. The
third runs every program with every fix, tiny, on whatever device there is.

A set is a folder of programs with their answers, expected.json; without --set it is this folder.

Plain runs are forked from a process that has imported torch and nothing else, which saves seconds a run;
--fresh starts each anew.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import re
import runpy
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
from judging import judge, number, results  # noqa: E402

import proving  # noqa: E402

PACK_BYTES, PACKS = 15_000_000, 4  # what comes back from the device: so many files of such a size


def forked(file: Path, variables: dict[str, str], limit: float, output: Path) -> int | None:
    """Run a program in a child that has torch; its exit status, None past the limit."""
    import torch  # noqa: F401 - what the children need not import

    sys.stdout.flush()
    child = os.fork()
    if not child:
        status = 1
        try:
            os.setsid()
            opened = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(opened, 1)
            os.dup2(opened, 2)
            os.environ |= variables
            sys.argv = [str(file)]
            sys.path[0] = str(file.parent)
            runpy.run_path(str(file), run_name="__main__")
            status = 0
        except SystemExit as exit:
            status = exit.code if isinstance(exit.code, int) else int(exit.code is not None)
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    until = time.monotonic() + limit
    ended, status = 0, 0
    while not ended and time.monotonic() < until:
        ended, status = os.waitpid(child, os.WNOHANG)
        time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # its loader's workers too
    if ended:
        return os.waitstatus_to_exitcode(status)
    os.waitpid(child, 0)
    return None


def spawned(words: list[str], variables: dict[str, str], limit: float, output: Path) -> int | None:
    """Run a command in a process group of its own; its exit status, None past the limit."""
    with output.open("w") as file:
        process = subprocess.Popen(
            words, stdout=file, stderr=subprocess.STDOUT, env=os.environ | variables, start_new_session=True
        )
        try:
            return process.wait(limit)
        except subprocess.TimeoutExpired:
            return None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def clock(text: str, kind: dict[str, Any] | None) -> float | None:
    """Read the milliseconds that a program says of itself; what the recorder says is not the program's."""
    own = "\n".join(line for line in text.splitlines() if not line.startswith("kinetoscope:"))
    found = re.findall(kind["regex"], own) if kind else []
    if not found:
        return None
    return 1e3 / float(found[-1]) if kind["ms"] == "inverse" else float(found[-1]) * kind["ms"]


def plain(name: str, fix: str, steps: int | None, arguments: argparse.Namespace) -> dict[str, Any]:
    """A plain run with a fix ("" is none): its own clock, in ms, and how it ended."""
    file, output = arguments.folder / f"{name}.py", Path(tempfile.gettempdir()) / f"unseen-{os.getpid()}.txt"
    answer = arguments.answers[name]
    variables = {"FIX": fix} | ({"STEPS": str(steps)} if steps else {})
    began = time.perf_counter()
    if arguments.fresh:
        status = spawned([sys.executable, str(file)], variables, arguments.limit, output)
    else:
        status = forked(file, variables, arguments.limit, output)
    text = output.read_text(errors="replace")
    row = {
        "fix": fix, "steps": steps, "status": status, "wall_s": time.perf_counter() - began,
        "ms": clock(text, answer["clock"]), "score": clock(text, answer["score"]),
    }  # fmt: skip
    if status or row["ms"] is None:
        row["tail"] = text[-800:]
        print(f"{name} [{fix}] status {status}: {text[-300:]}", flush=True)
    return row


def steps_for(of: dict[str, Any], row: dict[str, Any], seconds: float) -> int:
    """Count the STEPS that take so many seconds, by the clock of a run."""
    each = (row["ms"] if row["score"] is None else row["score"]) * of["clocks"]
    return int(of["lead"] + max(of["least"], math.ceil(seconds * 1e3 / each)))


def measure(name: str, work: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Run one program plainly, with its fixes and recorded, in turn."""
    answer = arguments.answers[name]
    first = plain(name, "", answer["steps"]["first"], arguments)
    result: dict[str, Any] = {"first": first, "runs": [], "record": None}
    if first["ms"] is None:
        return result
    short, long = (
        steps_for(answer["steps"], first, seconds)
        for seconds in (arguments.seconds, arguments.record_seconds)
    )
    fixes = list(answer["fixes"])[: arguments.fixes]
    for turn in range(arguments.rounds):
        for fix in ["", *fixes][:: 1 if turn % 2 == 0 else -1]:
            result["runs"].append(plain(name, fix, short, arguments))
    output, start = work / f"{name}.txt", time.perf_counter()
    words = ["-m", "kinetoscope", "run", "--no-report", "-o", str(work / name), "--"]
    words = [sys.executable, *words, str(arguments.folder / f"{name}.py")]
    status = spawned(words, {"FIX": "", "STEPS": str(long)}, 2 * arguments.limit, output)
    text = output.read_text(errors="replace")
    result["record"] = {
        "status": status, "steps": long, "wall_s": time.perf_counter() - start, "tail": text[-1500:],
        "ms": clock(text, answer["clock"]), "score": clock(text, answer["score"]),
    }  # fmt: skip
    by_fix = ", ".join(
        f"{fix or 'plain'} {' '.join(number(row['ms'], 0, 2) for row in result['runs'] if row['fix'] == fix)}"
        for fix in ["", *fixes]
    )
    print(f"{name}: {by_fix}; recorded in {result['record']['wall_s']:.1f} s", flush=True)
    return result


def record(arguments: argparse.Namespace) -> None:
    """Measure programs while there is time; what lies in OUT is whole after each of them."""
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="unseen-"))
    part, parts = map(int, arguments.part.split("/"))
    names = (arguments.names or list(arguments.answers))[part - 1 :: parts]
    if arguments.skip_recorded:
        earlier = results(out).items()
        done = {name for name, one in earlier if one["record"] and one["record"]["status"] == 0}
        names = [name for name in names if name not in done]
    written = out / f"results-{part}.json"
    measured = json.loads(written.read_text()) if written.exists() else {}
    for bundle in out.glob(f"recordings-{part}-*.tar"):
        with tarfile.open(bundle) as packed:
            packed.extractall(work, filter="data")
    began, longest = time.perf_counter(), 0.0
    for place, name in enumerate(names):
        start = time.perf_counter()
        if start - began + longest > arguments.minutes * 60:
            print(f"no time left for {', '.join(names[place:])}", flush=True)
            break
        measured[name] = measure(name, work, arguments)
        written.write_text(json.dumps(measured, indent=1))
        if (work / name).is_dir():
            archive(work / name)
            bundled(work, out, part)
        measured[name]["wall_s"] = time.perf_counter() - start
        longest = max(longest, measured[name]["wall_s"])
        written.write_text(json.dumps(measured, indent=1))
    print(f"{time.perf_counter() - began:.0f} s in all", flush=True)


def archive(folder: Path) -> None:
    """Pack a recording next to its folder; of one that is larger than what comes back, its report alone."""
    packed = folder.with_name(f"{folder.name}.tar.xz")
    with tarfile.open(packed, "w:xz", preset=1) as file:
        file.add(folder, folder.name)
    if packed.stat().st_size > PACK_BYTES:
        print(f"{folder.name}: {packed.stat().st_size} bytes packed, its report alone is kept", flush=True)
        report = folder.with_name(f"{folder.name}.report.json")
        report.write_text(proving.kinetoscope("report", folder, "--json", timeout=120).stdout)
        with tarfile.open(packed, "w:xz", preset=1) as file:
            file.add(report, report.name)


def bundled(work: Path, out: Path, part: int) -> None:
    """Write all packed recordings into few files below the size that comes back."""
    sizes = {path: path.stat().st_size for path in work.glob("*.tar.xz")}
    bins: list[list[Path]] = []
    for packed in sorted(sizes, key=sizes.__getitem__, reverse=True):
        fitting = (b for b in bins if sum(sizes[one] for one in b) + sizes[packed] < PACK_BYTES)
        chosen = next(fitting, None)
        if chosen is None:
            bins.append(chosen := [])
        chosen.append(packed)
    for place, chosen in enumerate(bins[:PACKS]):
        target = out / f"recordings-{part}-{place}.tar"
        with tarfile.open(target.with_suffix(".new"), "w") as file:
            for packed in chosen:
                file.add(packed, packed.name)
        target.with_suffix(".new").replace(target)
    for chosen in bins[PACKS:]:
        print("not packed:", *(packed.name for packed in chosen), flush=True)


def attempt(arguments: argparse.Namespace) -> None:
    """Run each program with each of its fixes, tiny."""
    os.environ |= {"TINY": "1", "OMP_NUM_THREADS": "1"}
    failed = []
    for name in arguments.names or arguments.answers:
        for fix in ["", *arguments.answers[name]["fixes"]]:
            row = plain(name, fix, None, arguments)
            print(f"{name:24}{fix:40}{number(row['ms'], 10, 2)} ms  status {row['status']}", flush=True)
            if row["status"] != 0 or row["ms"] is None:
                failed.append(f"{name} {fix}")
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("record", "judge", "try"))
    parser.add_argument("rest", nargs="*", help="OUT for record and judge, then names of programs")
    parser.add_argument(
        "--set", default=".", metavar="FOLDER", help="of programs and their answers, here or anywhere"
    )
    parser.add_argument("--part", default="1/1", help="this part of so many, each in a call of its own")
    parser.add_argument("--rounds", type=int, default=2, help="plain runs of each fix (default 2)")
    parser.add_argument(
        "--fixes", type=int, default=2, help="fixes of each program that are measured (default 2)"
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="of steps in a plain run")
    parser.add_argument("--record-seconds", type=float, default=9.0, help="of steps in the recorded run")
    parser.add_argument("--limit", type=float, default=45.0, help="seconds that a plain run may take")
    parser.add_argument(
        "--minutes",
        type=float,
        default=8.5,
        help="for all programs: none is begun that would end later if it took as long as the longest (8.5)",
    )
    parser.add_argument(
        "--skip-recorded", action="store_true", help="leave out what OUT has results and a recording of"
    )
    parser.add_argument("--fresh", action="store_true", help="plain runs in processes of their own")
    arguments = parser.parse_args()
    arguments.folder = HERE / arguments.set
    arguments.answers = json.loads((arguments.folder / "expected.json").read_text())
    known = arguments.rest
    if arguments.what != "try":
        if not known:
            parser.error("record and judge need a folder")
        arguments.out, known = Path(known[0]), known[1:]
    if unknown := set(known) - set(arguments.answers):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    arguments.names = known
    if arguments.what == "judge":
        judge(arguments.out, arguments.answers)
    else:
        {"record": record, "try": attempt}[arguments.what](arguments)


if __name__ == "__main__":
    main()
