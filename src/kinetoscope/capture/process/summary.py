"""What `kinetoscope run` says of a recording, on stderr: the program's stdout is its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from kinetoscope.capture.process.launch import Outcome
from kinetoscope.capture.process.messages import say
from kinetoscope.recording import folder as folders
from kinetoscope.recording.manifest import RankRecord


def announce(folder: Path) -> None:
    say(f"recording into {shown(folder)}")


def shown(folder: Path) -> str:
    """The folder as the user would type it."""
    try:
        relative = os.path.relpath(folder)
    except FileNotFoundError:  # there is no working directory any more
        return str(folder)
    return str(folder) if relative.startswith("..") else relative


def summarize(outcome: Outcome, *, report: bool) -> None:
    """Say how the program ended, what was recorded, and where it is; then show the report."""
    manifest, recording = outcome.manifest, outcome.folder
    if recording is None:
        return
    for death in filter(None, map(RankRecord.died_recording, manifest.ranks)):
        say(death)
        break
    if outcome.stopped:
        say("everything is recorded, so the program was ended, as --stop asks")
    elif outcome.status == -signal.SIGINT or manifest.exit == "exception: KeyboardInterrupt":
        say("the program was interrupted")
    elif outcome.status:
        say(f"the program failed ({manifest.exit}); its exit status was {outcome.status}")
    if not manifest.ranks:
        unseen = "nothing was recorded: no process of the program imported torch, or none could be watched"
        for note in manifest.notes or (unseen,):
            say(note)
        return
    first = manifest.ranks[0]
    for note in dict.fromkeys(
        (*manifest.notes, *(n for r in manifest.ranks for n in (*r.notes, *r.steps.notes)))
    ):
        say(note)
    say(_steps(first) + (f", on each of {len(manifest.ranks)} ranks" if len(manifest.ranks) > 1 else ""))
    recorded = any(rank.trace for rank in manifest.ranks)
    reported = False
    if report and recorded:
        command = [sys.executable, "-m", "kinetoscope", "report", shown(recording)]
        reported = subprocess.call(command, stdout=sys.stderr) == 0
    say(f"the recording is {shown(recording)}")
    if recorded and not reported:  # a report ends with the next commands itself
        say(f"next: kinetoscope report {shown(recording)} -o report.html")
    if together := folders.of_all_hosts(recording):
        say(f"of all hosts together, once they have ended: kinetoscope report {shown(together)}")
    elif outcome.host:
        say("other hosts record steps of their own: with one --out on a disk that all share they agree")


def _steps(record: RankRecord) -> str:
    steps = record.steps
    if not steps.profiled_s:
        if record.trace is None:
            return "no trace was recorded"
        what = {"whole": "recorded the program whole", "program": "kept what the program recorded itself"}
        return what.get(steps.found_by, "recorded the program's first steps")
    found = f"{steps.found_by} {steps.step_name or ''}".rstrip()
    light = ", and the device alone in a second pass" if record.device_trace else ""
    return f"recorded {len(steps.profiled_s)} steps ({found}){light}"
