"""Runs programs plainly and under `kinetoscope run`, and compares what they compute, print, leave and end with.

    PYTHONPATH=src python tests/harm/battery.py --needs cpu --seeds 0-9 --jobs 2 --out harm.jsonl

The programs lie in ``programs/``; comments at the head of each say what it is for and what it needs:

    # needs: cpu | cuda | cuda2      the least that it runs on (cpu)
    # packages: lightning, timm      what it imports besides torch
    # exact: no                      its output may differ from run to run; only its shape is compared
    # arguments: reentrant | not     one program for each, with these arguments
    # flags: -W error                of Python
    # variables: NAME=VALUE          of the environment
    # launcher: -m torch.distributed.run --nproc-per-node 2
    # status: 3                      what it ends with (0; minus the number of a signal)
    # interrupted: LINE              what it prints when it is interrupted after it printed ``ready``
    # sanitize: yes                  one of those that --sanitize runs
    # suite: yes                     one of those that the ordinary suite runs

A program runs plainly twice. Where the two outputs differ, so may those under `run`: only status, number of
lines and names of files are compared. Then it runs once a seed: ``KINETOSCOPE_TEST_SEED`` moves the recorder's
decisions to other moments, the seed chooses the options of `run`, and at one seed in ten the program is
interrupted instead. A program that imports polars is not needed: recordings are read as JSON.
"""

from __future__ import annotations

import argparse
import dataclasses
import fnmatch
import hashlib
import importlib.util
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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(__file__).resolve().parent / "programs"
DEVICES = {"cpu": 0, "cuda": 1, "cuda2": 2}  # how many GPUs each needs
INTERRUPT = "SIGINT"  # stands among the options of a run for no option of `run`
OPTIONS: tuple[tuple[str, ...], ...] = (
    (),
    ("--budget", "1"),
    ("--memory",),
    ("--stacks",),
    ("--shapes", "--flops"),
    ("--whole",),
    ("--careful",),
    ("--kernel-inputs",),
    ("--one-pass",),
    (INTERRUPT,),
)
OURS = "kinetoscope:"
SANITIZER = ("compute-sanitizer", "--tool", "memcheck", "--target-processes", "all", "--error-exitcode", "9")
_HEADER = re.compile(r"# (\w+): (.+)")
# Parts of lines on stderr that differ between any two runs: addresses, process numbers, times of day.
_VARIES = re.compile(r"0x[0-9a-f]+|\b\d{3,}\b|\d+:\d+:\d+[.,\d]*")
_FRAME_OF_OURS = re.compile(r'File ".*/kinetoscope/capture/')
_KEPT_CHARACTERS = 6000  # of each output that differs


@dataclass(frozen=True)
class Program:
    """A program, as its head describes it."""

    name: str
    path: Path
    needs: str = "cpu"
    packages: tuple[str, ...] = ()
    exact: bool = True
    arguments: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()
    launcher: tuple[str, ...] = ()
    status: int = 0
    interrupted: str = ""
    sanitize: bool = False
    suite: bool = False

    @property
    def words(self) -> list[str]:
        """What follows `python` and its flags."""
        return [*self.launcher, str(self.path), *self.arguments]

    @property
    def missing(self) -> list[str]:
        """The packages that are not installed."""
        return [name for name in self.packages if importlib.util.find_spec(name) is None]


@dataclass(frozen=True)
class Ended:
    """How one run ended and what it left: files of its working folder by name, with a sum of their content."""

    status: int | None  # None: it was still running at its time-out
    out: str
    err: str
    files: Mapping[str, str]
    seconds: float


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


@dataclass
class Plain:
    """A program without us: its first run, whether its outputs are alike each time, and what went wrong."""

    program: Program
    run: Ended
    out_steady: bool
    err_steady: bool
    fault: str = ""


def programs(folder: Path = PROGRAMS) -> list[Program]:
    """Every program of the folder: a file whose head has a ``needs:``; once for each of its ``arguments``."""
    found = []
    for path in sorted(folder.glob("*.py")):
        head = dict(_head(path))
        if "needs" not in head:
            continue  # what the programs share
        each = [tuple(words.split()) for words in head.get("arguments", "").split("|")]
        for arguments in each:
            found.append(
                Program(
                    name="-".join((path.stem, *arguments)),
                    path=path,
                    needs=head["needs"],
                    packages=tuple(head.get("packages", "").replace(",", " ").split()),
                    exact=head.get("exact") != "no",
                    arguments=arguments,
                    flags=tuple(head.get("flags", "").split()),
                    variables=tuple(_assignment(word) for word in head.get("variables", "").split()),
                    launcher=tuple(head.get("launcher", "").split()),
                    status=int(head.get("status", "0")),
                    interrupted=head.get("interrupted", ""),
                    sanitize=head.get("sanitize") == "yes",
                    suite=head.get("suite") == "yes",
                )
            )
    return found


def _head(path: Path) -> Iterator[tuple[str, str]]:
    for line in path.read_text().splitlines():
        if not line.startswith("#"):
            return
        if match := _HEADER.fullmatch(line):
            yield match[1], match[2]


def _assignment(word: str) -> tuple[str, str]:
    name, _, value = word.partition("=")
    return name, value


class Battery:
    """Runs programs in folders of their own below ``home``, and compares them.

    Args:
        timeout_s: seconds after which a run counts as one that hangs.
        sanitize: run everything under compute-sanitizer.
    """

    def __init__(self, home: Path, *, timeout_s: float = 90.0, sanitize: bool = False) -> None:
        self.home, self.timeout_s, self.sanitize = home, timeout_s, sanitize
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
        elif any(run.status != program.status for run in ended):
            fault = f"ends with {[run.status for run in ended]}, not {program.status}"
        return Plain(
            program,
            first,
            out_steady=program.exact
            and all((run.out, run.files) == (first.out, first.files) for run in ended),
            err_steady=all(_comparable(run.err) == _comparable(first.err) for run in ended),
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
        run = self._run(program, command, interrupt_s, KINETOSCOPE_TEST_SEED=str(seed))
        steps, unreadable = recorded(folder)
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
        """Whether three more plain runs show that the program does by itself what it did under us."""
        command = [sys.executable, *plain.program.flags, *plain.program.words]
        for _ in range(3):
            again = self._run(plain.program, command)
            if not compare(dataclasses.replace(plain, run=again), run):
                return True
        return False

    def _run(
        self, program: Program, command: Sequence[str], interrupt_s: float | None = None, **variables: str
    ) -> Ended:
        """One run in a new, empty working folder; its whole process group is gone afterwards."""
        folder = self._folder("work")
        log = self._folder("log") / "sanitizer.txt"
        if self.sanitize:
            command = [*SANITIZER, "--log-file", str(log), *command]
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
        if log.is_file() and status == 9:
            texts[1] += log.read_text()[-_KEPT_CHARACTERS:]
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


def compare(plain: Plain, run: Ended) -> list[str]:
    """What of the run under `run` is not as in the plain one, a sentence each."""
    if run.status is None:
        return ["it hangs"]
    differences = []
    before = plain.run
    if run.status != _as_shells_have_it(before.status):
        differences.append(f"its status is {run.status}, plainly {before.status}")
    if plain.out_steady:
        if run.out != before.out:
            differences.append(f"stdout: {_first_difference(before.out, run.out)}")
        if run.files != before.files:
            differences.append(f"files: {_of_mappings(before.files, run.files)}")
    else:
        if len(run.out.splitlines()) != len(before.out.splitlines()):
            differences.append(
                f"stdout has {len(run.out.splitlines())} lines, plainly {len(before.out.splitlines())}"
            )
        if set(run.files) != set(before.files):
            differences.append(f"files: {sorted(set(run.files) ^ set(before.files))}")
    if plain.err_steady and _comparable(run.err) != _comparable(before.err):
        first = _first_difference("\n".join(_comparable(before.err)), "\n".join(_comparable(run.err)))
        differences.append(f"stderr: {first}")
    return differences


def interruption(plain: Plain, run: Ended) -> list[str]:
    """What is wrong with a run that was interrupted, if it had not ended before."""
    if run.status is None:
        return ["it hangs after an interrupt"]
    differences = []
    allowed = {130, _as_shells_have_it(plain.run.status)}
    # An interrupt within an import, or within a thread that is waited for, ends as another exception.
    if run.status not in allowed and not (run.status == 1 and "KeyboardInterrupt" in run.err):
        differences.append(f"its status after an interrupt is {run.status}")
    if _FRAME_OF_OURS.search(run.err):
        differences.append("the traceback shows our frames")
    line = plain.program.interrupted
    if line and run.status == 130 and "ready" in run.out and line not in run.out.splitlines():
        differences.append(f"it did not print {line!r}")
    return differences


def recorded(folder: Path) -> tuple[str, list[str]]:
    """How many steps a recording has (``whole``, ``first`` or ``none``), and what of it cannot be read."""
    try:
        manifest = json.loads((folder / "manifest.json").read_bytes())
    except (OSError, ValueError) as error:
        return "none", [f"the manifest cannot be read: {error}"]
    faults, steps = [], "none"
    for rank in manifest.get("ranks", []):
        for kind in ("trace", "device_trace"):
            if kind not in rank:
                continue
            try:
                events = json.loads((folder / rank[kind]).read_bytes())["traceEvents"]
            except (OSError, ValueError, KeyError) as error:
                faults.append(f"{rank[kind]} cannot be read: {type(error).__name__}: {error}")
                continue
            if not isinstance(events, list):
                faults.append(f"{rank[kind]} holds no events")
        found = rank.get("steps", {})
        if "trace" in rank and steps in ("none", "first"):
            whole = found.get("found_by", "whole") in ("whole", "program")
            steps = str(len(found.get("profiled_s", ()))) if found.get("profiled_s") else ""
            steps = steps or ("whole" if whole else "first")
    return steps, faults


def _as_shells_have_it(status: int | None) -> int | None:
    return 128 - status if status is not None and status < 0 else status


def _comparable(err: str) -> list[str]:
    """The lines of stderr that are the program's, without what differs between any two runs."""
    lines = (line for line in err.splitlines() if not line.startswith((OURS, "Extension modules: ")))
    return [_VARIES.sub("…", line) for line in lines]


def _first_difference(before: str, after: str) -> str:
    plainly, under = before.splitlines(), after.splitlines()
    for number, (one, other) in enumerate(zip(plainly, under, strict=False), 1):
        if one != other:
            return f"line {number} is {other[:300]!r}, plainly {one[:300]!r}"
    if len(under) > len(plainly):
        return f"line {len(plainly) + 1} is more: {under[len(plainly)][:300]!r}"
    if len(under) < len(plainly):
        return f"line {len(under) + 1} is missing: {plainly[len(under)][:300]!r}"
    return "line ends"


def _of_mappings(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    return sorted(name for name in {*before, *after} if before.get(name) != after.get(name))


def options_of(program: Program, seed: int, known: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    """The options of that seed: ten seeds in a row try each of ``OPTIONS`` once, some with another besides."""
    options = [chosen for chosen in OPTIONS if chosen in set(known)]
    offset = int(hashlib.sha256(program.name.encode()).hexdigest(), 16)
    first = options[(seed + offset) % len(options)] if seed else ()
    chance = random.Random(f"{program.name} {seed}")
    second = chance.choice(options) if seed and chance.random() < 0.3 else ()
    return first if not second or second == first else tuple(dict.fromkeys((*first, *second)))


def known_options() -> list[tuple[str, ...]]:
    """Those of ``OPTIONS`` that this version of `run` has."""
    shown = subprocess.run(
        [sys.executable, "-m", "kinetoscope", "run", "--help"],
        env=os.environ
        | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return [chosen for chosen in OPTIONS if all(word in shown for word in chosen if word.startswith("--"))]


def gpus() -> int:
    """How many CUDA devices torch sees, asked in another process."""
    asked = "import torch; print(torch.cuda.device_count())"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=False)
    return int(done.stdout.split()[-1]) if done.returncode == 0 and done.stdout.split() else 0


def run_all(
    battery: Battery,
    chosen: Sequence[Program],
    seeds: Sequence[int],
    *,
    jobs: int,
    until: float,
    report: Callable[[Plain | Result], None],
) -> tuple[list[Plain], list[Result]]:
    """Run every program plainly, then seed by seed under `run`, ``jobs`` at once; no run begins after ``until``
    (of ``time.monotonic``)."""
    known = known_options()
    plains: list[Plain] = []
    results: list[Result] = []

    def plainly(program: Program) -> Plain | None:
        return battery.plain(program) if time.monotonic() < until else None

    def under(plain: Plain, seed: int) -> Result | None:
        if time.monotonic() >= until:
            return None
        return battery.under(plain, seed, options_of(plain.program, seed, known))

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
    """A line a program: seconds without and with us (medians), runs, verdict, and how many steps were recorded."""
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
            f"{plain.program.name:<34} {plain.run.seconds:8.1f} {seconds} {len(own):5}  {steps[:12]:<12} {verdict}"
        )
    bad = [result for result in results if result.differences]
    broken = [plain for plain in plains if plain.fault]
    lines.append(
        f"{len(plains)} programs, {len(results)} runs of {planned}: {len(bad)} differ, "
        f"{sum(result.steps == 'none' for result in results)} have no trace, {len(broken)} programs are broken"
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
    parser.add_argument("--list", action="store_true", help="say which programs there are, and run none")
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
        battery = Battery(Path(home), timeout_s=arguments.timeout, sanitize=arguments.sanitize)
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
            battery, chosen, arguments.seeds, jobs=arguments.jobs, until=until, report=report
        )
        if lines:
            lines.close()
    print(table(plains, results, len(chosen) * len(arguments.seeds)), flush=True)
    return int(any(result.differences for result in results) or any(plain.fault for plain in plains))


if __name__ == "__main__":
    raise SystemExit(main())
