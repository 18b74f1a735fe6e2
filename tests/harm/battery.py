"""Runs programs plainly and under `kinetoscope run`: they must compute, print, leave and end with the same.

    PYTHONPATH=src:tests python -m harm.battery --needs cpu --seeds 0-9 --jobs 2 --out harm.jsonl

A program runs plainly twice. Where the two outputs differ, so may those under `run`: only status, number of
lines and names of files are compared. Then it runs once a seed. Seed 0 is `run` as users have it; any other
moves the decisions of the recorder to other moments (``KINETOSCOPE_TEST_SEED``) and chooses options of `run`,
and at one in ten the program is interrupted. Nothing here needs Polars: recordings are read as JSON.
"""

from __future__ import annotations

import argparse
import dataclasses
import fnmatch
import hashlib
import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harm.catalogue import DEVICES, INTERRUPT, ROOT, Program, known_options, options_of, programs
from harm.comparison import OURS, Ended, Plain, compare, interruption, last_recorded, own_lines, recorded

SANITIZER = ("compute-sanitizer", "--tool", "memcheck", "--target-processes", "all", "--error-exitcode", "9")
_SANITIZED = re.compile(r"ERROR SUMMARY: [1-9]")
_KEPT_CHARACTERS = 6000  # of each output that differs


@dataclass
class Result:
    """One run under `kinetoscope run`, compared; ``differences`` is empty where there are none."""

    program: str
    seed: int
    options: tuple[str, ...]
    differences: list[str]
    seconds: float
    status: int | None
    steps: str = ""
    messages: list[str] = field(default_factory=list)
    out: str = ""
    err: str = ""


class Battery:
    """Runs programs in folders of their own below ``home``, and compares them.

    Args:
        timeout_s: seconds after which a run counts as one that hangs.
        sanitize: run everything under compute-sanitizer.
        recheck: how many more plain runs may show that a difference is the program's own.
        on_request: run everything under `run --on-request`; with an odd seed, steps are requested all the
            while.
    """

    def __init__(
        self,
        home: Path,
        *,
        timeout_s: float = 90.0,
        sanitize: bool = False,
        recheck: int = 3,
        on_request: bool = False,
    ) -> None:
        self.on_request = on_request
        self.home, self.timeout_s, self.sanitize, self.recheck = home, timeout_s, sanitize, recheck
        self._numbers = iter(range(1, 1 << 30))
        self._lock = threading.Lock()

    def plain(self, program: Program, *, runs: int = 2) -> Plain:
        """Run the program without us, twice to see whether it does the same each time."""
        command = [sys.executable, *program.flags, *program.words]
        ended = [self._run(program, command) for _ in range(runs)]
        first = ended[0]
        fault = ""
        if first.status is None:
            fault = "hangs"
        elif program.status is not None and any(run.status != program.status for run in ended):
            fault = f"ends with {[run.status for run in ended]}, not {program.status}"
        return Plain(
            program,
            first,
            out_steady=program.exact
            and all((run.out, run.files) == (first.out, first.files) for run in ended),
            err_steady=all(own_lines(run.err) == own_lines(first.err) for run in ended),
            fault=fault,
        )

    def under(self, plain: Plain, seed: int, options: tuple[str, ...]) -> Result:
        """Run the program under `kinetoscope run` with that seed and compare it with its plain run."""
        program = plain.program
        folder = self._folder("recording")
        interrupt_s = None
        if INTERRUPT in options:
            share = random.Random(f"{program.name} {seed}").uniform(0.4, 1.1)
            interrupt_s = share * plain.run.seconds
        own = [word for word in options if word != INTERRUPT]
        command = [
            *(sys.executable, *program.flags, "-m", "kinetoscope", "run", "--no-report", "--exit-code"),
            *("--out", str(folder), *own, *([] if program.launcher else ["--"]), *program.words),
        ]
        moved = {"KINETOSCOPE_TEST_SEED": str(seed)} if seed else {}
        with _requested(folder) if self.on_request and seed % 2 else nullcontext():
            run = self._run(program, command, interrupt_s, **moved)
        steps, unreadable = last_recorded(folder) if self.on_request else recorded(folder)
        interrupted = INTERRUPT in options
        differences = interruption(plain, run) if interrupted else compare(plain, run)
        differences += unreadable
        result = Result(
            program.name,
            seed,
            options,
            differences,
            run.seconds,
            run.status,
            steps,
            [line for line in run.err.splitlines() if line.startswith(OURS)],
        )
        if differences:
            result.out, result.err = run.out[-_KEPT_CHARACTERS:], run.err[-_KEPT_CHARACTERS:]
            if not interrupted and run.status is not None and self._plain_varies(plain, run):
                result.differences = []
                result.messages.append("a further plain run differed likewise: not counted")
        shutil.rmtree(folder, ignore_errors=True)
        return result

    def _plain_varies(self, plain: Plain, run: Ended) -> bool:
        """Whether one of some more plain runs does by itself what the program did under us."""
        command = [sys.executable, *plain.program.flags, *plain.program.words]
        for _ in range(self.recheck):
            again = self._run(plain.program, command)
            if not compare(dataclasses.replace(plain, run=again), run):
                return True
        return False

    def _run(
        self, program: Program, command: Sequence[str], interrupt_s: float | None = None, **variables: str
    ) -> Ended:
        """One run in a new, empty working folder; its whole process group is gone afterwards."""
        folder = self._folder("work")
        logs = self._folder("logs")
        if self.sanitize:
            command = [*SANITIZER, "--log-file", f"{logs}/%p.txt", *command]
        began = time.perf_counter()
        with (
            (folder.parent / f"{folder.name}.out").open("w+b") as out,
            (folder.parent / f"{folder.name}.err").open("w+b") as err,
        ):
            child = subprocess.Popen(
                command,
                cwd=folder,
                env=self._environment(program, variables),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
            status: int | None = None
            try:
                if interrupt_s is not None:
                    with suppress(subprocess.TimeoutExpired):
                        child.wait(interrupt_s)
                    if child.poll() is None:
                        child.send_signal(signal.SIGINT)
                status = child.wait(max(1.0, self.timeout_s - (time.perf_counter() - began)))
            except subprocess.TimeoutExpired:
                _end_group(child.pid, signal.SIGABRT)  # Python's fault handler prints where each thread is
                time.sleep(2.0)
            finally:
                _end_group(child.pid, signal.SIGKILL)
                child.wait()
            seconds = time.perf_counter() - began
            texts = []
            for stream in (out, err):
                stream.seek(0)
                texts.append(stream.read().decode("utf-8", "replace"))
        files = {
            path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()[:16]
            for path in sorted(folder.rglob("*"))
            if path.is_file() and "__pycache__" not in path.parts
        }
        for log in logs.iterdir():
            if _SANITIZED.search(log.read_text()):
                texts[1] += log.read_text()[:_KEPT_CHARACTERS]
        shutil.rmtree(folder, ignore_errors=True)
        for suffix in (".out", ".err"):
            (folder.parent / f"{folder.name}{suffix}").unlink()
        return Ended(status, texts[0], texts[1], files, seconds)

    def _environment(self, program: Program, variables: Mapping[str, str]) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("KINETO")}
        given = [path for path in kept.get("PYTHONPATH", "").split(os.pathsep) if path]
        own = self.home / "caches" / program.name
        return {
            **kept,
            "PYTHONPATH": os.pathsep.join(
                [str(ROOT / "src"), *(str(Path(path).resolve()) for path in given)]
            ),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONFAULTHANDLER": "1",
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "TORCHINDUCTOR_CACHE_DIR": str(own / "inductor"),
            "TRITON_CACHE_DIR": str(own / "triton"),
            **dict(program.variables),
            **variables,
        }

    def _folder(self, kind: str) -> Path:
        with self._lock:
            folder = self.home / kind / str(next(self._numbers))
        folder.mkdir(parents=True)
        return folder


def _end_group(pid: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def gpus() -> int:
    """How many CUDA devices torch sees, asked in another process."""
    asked = "import torch; print(torch.cuda.device_count())"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=False)
    return int(done.stdout.split()[-1]) if done.returncode == 0 and done.stdout.split() else 0


@contextmanager
def _requested(folder: Path) -> Generator[None]:
    """Request steps of the program that is run into ``folder``, again and again."""
    over = threading.Event()
    command = [sys.executable, "-m", "kinetoscope", "record", str(folder), "--steps", "3", "--seconds", "2"]

    def request() -> None:
        while not over.wait(0.2):
            subprocess.run(command, capture_output=True, timeout=300, check=False)

    thread = threading.Thread(target=request)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def run_all(
    battery: Battery,
    chosen: Sequence[Program],
    seeds: Sequence[int],
    *,
    jobs: int,
    until: float,
    report: Callable[[Plain | Result], None],
    plain_runs: int = 2,
) -> tuple[list[Plain], list[Result]]:
    """Run every program plainly, then seed by seed under `run`, ``jobs`` at once.

    Args:
        until: no run begins later, by ``time.monotonic``.
        report: called with each result as it comes.
    """
    known = known_options()
    plains: list[Plain] = []
    results: list[Result] = []

    def plainly(program: Program) -> Plain | None:
        return battery.plain(program, runs=plain_runs) if time.monotonic() < until else None

    def under(plain: Plain, seed: int) -> Result | None:
        if time.monotonic() >= until:
            return None
        options = ("--on-request",) if battery.on_request else options_of(plain.program, seed, known)
        return battery.under(plain, seed, options)

    with ThreadPoolExecutor(jobs) as pool:
        for future in as_completed([pool.submit(plainly, program) for program in chosen]):
            if plain := future.result():
                plains.append(plain)
                report(plain)
        sound = sorted((plain for plain in plains if not plain.fault), key=lambda plain: plain.program.name)
        for future in as_completed([pool.submit(under, plain, seed) for seed in seeds for plain in sound]):
            if result := future.result():
                results.append(result)
                report(result)
    return plains, results


def table(plains: Sequence[Plain], results: Sequence[Result], planned: int) -> str:
    """A line a program: seconds without and with us (medians), runs, steps recorded, verdict."""
    lines = [f"{'program':<34} {'plain s':>8} {'under s':>8} {'runs':>5}  {'steps':<12} verdict"]
    for plain in sorted(plains, key=lambda plain: plain.program.name):
        own = [result for result in results if result.program == plain.program.name]
        bad = [result for result in own if result.differences]
        seconds = f"{statistics.median(result.seconds for result in own):8.1f}" if own else f"{'-':>8}"
        steps = " ".join(dict.fromkeys(result.steps for result in sorted(own, key=lambda r: r.seed)))
        loose = "" if plain.out_steady else " (plain runs differ: compared by shape)"
        verdict = f"{len(bad)} of {len(own)} DIFFER" if bad else ("same" if own else "not run") + loose
        if plain.fault:
            verdict = f"BROKEN: plainly it {plain.fault}"
        lines.append(
            f"{plain.program.name:<34} {plain.run.seconds:8.1f} {seconds} {len(own):5}  "
            f"{steps:<12.12} {verdict}"
        )
    differ = sum(bool(result.differences) for result in results)
    empty = sum(result.steps == "none" for result in results)
    broken = sum(bool(plain.fault) for plain in plains)
    lines.append(
        f"{len(plains)} programs, {len(results)} runs of {planned}: {differ} differ, {empty} have no trace; "
        f"{broken} programs are broken"
    )
    return "\n".join(lines)


def _numbers(text: str) -> list[int]:
    """``0-9`` or ``1,4,7-9`` as numbers."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found.extend(range(int(first), int(last or first) + 1))
    return found


def main(words: Sequence[str] | None = None) -> int:
    """Run the battery from the command line; the exit status is 1 where anything differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=_numbers, default=[0], help="such as 0-9 or 1,4 (0)")
    parser.add_argument("--jobs", type=int, default=1, help="how many programs run at once (1)")
    parser.add_argument("--only", action="append", metavar="GLOB", help="programs of these names")
    parser.add_argument("--needs", choices=DEVICES, action="append", help="only those that need this")
    parser.add_argument("--sanitize", action="store_true", help="a few of them, under compute-sanitizer")
    parser.add_argument("--out", type=Path, metavar="FILE", help="a JSON line for every run")
    parser.add_argument(
        "--timeout", type=float, default=90.0, metavar="S", help="seconds a run may take (90)"
    )
    parser.add_argument("--budget-minutes", type=float, default=1e6, help="begin no run after this long")
    parser.add_argument(
        "--plain", type=int, default=2, metavar="N", help="plain runs of each; 1 takes it for steady (2)"
    )
    parser.add_argument("--list", action="store_true", help="say which programs there are, and run none")
    parser.add_argument(
        "--on-request",
        action="store_true",
        help="under `run --on-request`; odd seeds request steps meanwhile",
    )
    arguments = parser.parse_args(words)

    until = time.monotonic() + 60 * arguments.budget_minutes
    here = gpus()
    chosen, left = [], []
    for program in programs():
        if arguments.only and not any(fnmatch.fnmatch(program.name, glob) for glob in arguments.only):
            continue
        if arguments.needs and program.needs not in arguments.needs:
            continue
        if arguments.sanitize and not program.sanitize:
            continue
        absent = program.missing + ([f"{program.needs}"] if DEVICES[program.needs] > here else [])
        if absent and not arguments.list:
            left.append(f"{program.name} (no {', '.join(absent)})")
        else:
            chosen.append(program)
    if arguments.list:
        print("\n".join(f"{program.name:<34} {program.needs:<6} {program.path.name}" for program in chosen))
        return 0
    if left:
        print(f"not run: {', '.join(left)}", flush=True)

    with tempfile.TemporaryDirectory(prefix="harm-") as home:
        battery = Battery(
            Path(home),
            timeout_s=arguments.timeout,
            sanitize=arguments.sanitize,
            on_request=arguments.on_request,
        )
        lines = arguments.out.open("w") if arguments.out else None

        def report(found: Plain | Result) -> None:
            if isinstance(found, Plain):
                bad = found.fault
                row: dict[str, Any] = {
                    "program": found.program.name,
                    "plain_s": found.run.seconds,
                    "status": found.run.status,
                    "out_steady": found.out_steady,
                    "err_steady": found.err_steady,
                    "fault": found.fault,
                    "out": found.run.out[-_KEPT_CHARACTERS:],
                    "err": found.run.err[-_KEPT_CHARACTERS:],
                }
                if bad:
                    print(f"{found.program.name}: plainly it {bad}\n{found.run.err[-1500:]}", flush=True)
            else:
                row = dataclasses.asdict(found)
                for difference in found.differences:
                    options = " ".join(found.options)
                    print(f"{found.program} seed {found.seed} {options}: {difference}", flush=True)
            if lines:
                lines.write(json.dumps(row) + "\n")
                lines.flush()

        plains, results = run_all(
            battery,
            chosen,
            arguments.seeds,
            jobs=arguments.jobs,
            until=until,
            report=report,
            plain_runs=arguments.plain,
        )
        if lines:
            lines.close()
    print(table(plains, results, len(chosen) * len(arguments.seeds)), flush=True)
    return int(any(result.differences for result in results) or any(plain.fault for plain in plains))


if __name__ == "__main__":
    raise SystemExit(main())
