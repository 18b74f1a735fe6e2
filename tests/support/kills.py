"""Kills `kinetoscope run` at random moments and opens what is left. Run from the repository:

    PYTHONPATH=src:tests/support python -m kills 200 1          how many, and the seed

prints a table of what was left by how it was killed, and ends with 1 where a recording does not open,
something hangs, or an end is not the program's own. A kill falls at any moment between the start and about
the program's end. What is killed is the command alone, the program alone, or both, as a power cut has
it; a disk is a tmpfs where one may be mounted, and a limit on the size of files elsewhere.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from kinetoscope import cli
from kinetoscope.recording import folder as folders
from kinetoscope.recording import manifest as manifests
from programs import TRAIN

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = f"{TRAIN}train(80, 0.02)\n"
PATIENCE_S = 60.0
LEFT = ("not begun", "no trace", "first steps", "recorded steps")
FAILED = ("does not open", "hang", "wrong end")
Target = Callable[[subprocess.Popen[str], Path], None]


class Result(NamedTuple):
    """One of ``LEFT``, or of ``FAILED`` and why; the seconds of a run that was over before its kill."""

    left: str
    ended_s: float | None = None


class Kill(NamedTuple):
    """What happens to a run, and the statuses of `run` that may follow."""

    name: str
    strike: Target
    statuses: tuple[int, ...]


def to_command(number: int) -> Target:
    return lambda run, _: run.send_signal(number)


def to_program(number: int) -> Target:
    def strike(run: subprocess.Popen[str], _: Path) -> None:
        for child in Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split():
            os.kill(int(child), number)

    return strike


def to_both(number: int) -> Target:
    return lambda run, _: os.killpg(run.pid, number)


def fill_disk(run: subprocess.Popen[str], folder: Path) -> None:
    """Nothing more fits: on the disk, or in any file of the program."""
    if folder.parent.is_mount():
        with contextlib.suppress(OSError), (folder.parent / "full").open("wb") as file:
            while file.write(b"\0" * 4096):
                file.flush()
        return
    pids = [run.pid, *map(int, Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split())]
    for pid in pids:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))


def take_away(_: subprocess.Popen[str], folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


KILLS = (
    Kill("SIGKILL to `kinetoscope run`", to_command(signal.SIGKILL), (0, -signal.SIGKILL)),
    Kill("SIGKILL to the program", to_program(signal.SIGKILL), (0, -signal.SIGKILL)),
    Kill("SIGKILL to both", to_both(signal.SIGKILL), (0, -signal.SIGKILL)),
    Kill("SIGTERM to `kinetoscope run`", to_command(signal.SIGTERM), (0, -15)),
    Kill("SIGTERM to both", to_both(signal.SIGTERM), (0, -15)),
    Kill("SIGINT to both", to_both(signal.SIGINT), (0, 1, 130, -2)),
    Kill("the disk is full", fill_disk, (0,)),
    Kill("the folder is gone", take_away, (0,)),
)


@contextlib.contextmanager
def disk() -> Iterator[Path]:
    """A folder for one recording, on a small disk of its own where that may be had."""
    with tempfile.TemporaryDirectory() as home:
        place = Path(home) / "disk"
        place.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(place)]
        mounted = not subprocess.run(mount, stderr=subprocess.DEVNULL, check=False).returncode
        try:
            yield place
        finally:
            if mounted:
                subprocess.run(["umount", str(place)], check=True)


def attempt(kill: Kill, moment_s: float, place: Path) -> Result:
    """Strike after so many seconds."""
    (place / "program.py").write_text(PROGRAM)
    folder = place / "recording"
    command = [sys.executable, "-m", "kinetoscope", "run", "--no-report", "--out", str(folder)]
    with tempfile.TemporaryFile("w+") as said:
        began, ended_s = time.monotonic(), None
        run = subprocess.Popen(
            [*command, str(place / "program.py")],
            env=os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stderr=said,
            text=True,
            start_new_session=True,
        )
        with contextlib.suppress(subprocess.TimeoutExpired):
            run.wait(moment_s)
            ended_s = time.monotonic() - began
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            kill.strike(run, folder)
        if not _ended(run):
            os.killpg(run.pid, signal.SIGKILL)
            run.wait()
            return Result("hang")
        said.seek(0)
        errors = said.read()
    if run.returncode not in kill.statuses or _complained(errors, kill):
        return Result(f"wrong end: {run.returncode}, {errors}", ended_s)
    return Result(opened(folder), ended_s)


def _complained(errors: str, kill: Kill) -> bool:
    """Whether a traceback is ours: that of an interrupt shows whatever it interrupted."""
    interrupted = "SIGINT" in kill.name and "Exception ignored" not in errors
    return "kinetoscope/capture" in errors and not interrupted


def _ended(run: subprocess.Popen[str]) -> bool:
    """Whether the command ends by itself, and the program that it may have left behind."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if run.poll() is not None:
            try:
                os.killpg(run.pid, 0)
            except ProcessLookupError:
                return True
        time.sleep(0.02)
    return False


def opened(folder: Path) -> str:
    """What a recording holds, once `report` has opened it."""
    if not manifests.is_recording(folder):
        return "not begun"
    words = ["report", str(folder), "-o", str(folder.parent.parent / "report.json")]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as said:
        status = cli.main(words)
    if status:
        return f"does not open: {said.getvalue()}"
    ranks = folders.opened(folder).ranks
    if not ranks or ranks[0].trace is None:
        return "no trace"
    return "recorded steps" if ranks[0].steps.profiled_s else "first steps"


def length_s() -> float:
    """Seconds that a run takes here which nothing kills."""
    with disk() as place:
        result = attempt(Kill("nothing", lambda run, folder: None, (0,)), PATIENCE_S, place)
    if result.ended_s is None or result.left != "recorded steps":
        raise SystemExit(f"a run that nothing kills does not end as it should: {result.left}")
    return result.ended_s


os.environ["KINETOSCOPE_CACHE"] = "0"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("count", type=int, nargs="?", default=200)
    parser.add_argument("seed", type=int, nargs="?", default=0)
    arguments = parser.parse_args()
    chance, longest = random.Random(arguments.seed), length_s()
    late = 0
    found: dict[str, Counter[str]] = {kill.name: Counter() for kill in KILLS}
    for index in range(arguments.count):
        kill, moment_s = KILLS[index % len(KILLS)], chance.uniform(0, longest)
        with disk() as place:
            result = attempt(kill, moment_s, place)
        longest = result.ended_s or longest  # a machine that others share takes longer or less
        late += result.ended_s is not None
        found[kill.name][result.left.partition(":")[0]] += 1
        if result.left not in LEFT:
            print(f"{kill.name} after {moment_s:.2f} s: {result.left}", file=sys.stderr, flush=True)
    outcomes = (*LEFT, *FAILED)
    print(f"| killed | tries | {' | '.join(outcomes)} |\n|" + "---|" * 9)
    for name, counts in found.items():
        print(f"| {name} | {counts.total()} | " + " | ".join(str(counts[kind]) for kind in outcomes) + " |")
    print(f"\n{late} of {arguments.count} had ended before they were to be killed.")
    return int(any(counts[kind] for counts in found.values() for kind in FAILED))


if __name__ == "__main__":
    raise SystemExit(main())
