"""What reading a large memory snapshot costs: ``python benchmarks/snapshot.py SNAPSHOT [--megabytes 500]``.

Makes a snapshot of that size by repeating a real one's history, later and later, as torch writes it: each
entry, its list of frames and what it was compiling are objects of their own, and lists share their frames.
Then reads it in a process of its own, three times, and prints the time, the CPU time and the largest memory,
beside those of reading its bytes and of Python's own unpickler, which would run what a stranger's pickle
names.
"""

from __future__ import annotations

import argparse
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from multiprocessing import Process
from pathlib import Path
from typing import Any

READERS = {
    "bytes": "import sys, pathlib; pathlib.Path(sys.argv[1]).read_bytes()",
    "pickle.load": "import sys, pickle; pickle.load(open(sys.argv[1], 'rb'))",
    "kinetoscope": "import sys; from pathlib import Path\n"
    "from kinetoscope.snapshot.read import read\nread(Path(sys.argv[1]))",
    "`kinetoscope memory`, the whole command": "import os, sys; os.environ['KINETOSCOPE_CACHE'] = '0'\n"
    "from kinetoscope.cli import main\nsys.stdout = open(os.devnull, 'w')\n"
    "main(['memory', sys.argv[1]])\nsys.stdout = sys.__stdout__",
}
MEASURED = """
import resource, time
began = time.perf_counter()
{reader}
own, child = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
cpu = own.ru_utime + own.ru_stime + child.ru_utime + child.ru_stime
print(time.perf_counter() - began, cpu, (own.ru_maxrss + child.ru_maxrss) / 1000)
"""


def make(source: Path, megabytes: int, target: Path) -> None:
    """A snapshot of about that size."""
    snapshot = pickle.loads(source.read_bytes())  # the reader's own file, named on the command line
    twice = [[*again(history, 0), *again(history, 0)] for history in snapshot["device_traces"]]
    once, both = (len(pickle.dumps(one, 4)) for one in (snapshot, {**snapshot, "device_traces": twice}))
    size = both - once
    times = max(1, round(megabytes * 1e6 / size))
    for number, history in enumerate(snapshot["device_traces"]):
        if not history:
            continue
        lasted = history[-1]["time_us"] - history[0]["time_us"] + 1
        snapshot["device_traces"][number] = [
            entry for turn in range(times) for entry in again(history, (times - 1 - turn) * lasted)
        ]
    target.write_bytes(pickle.dumps(snapshot, protocol=4))


def again(history: list[dict[str, Any]], earlier_us: int) -> Iterator[dict[str, Any]]:
    lists: dict[int, list[Any]] = {}  # an allocation and its release may have one
    for entry in history:
        frames, compiling = entry.get("frames"), entry.get("compile_context", "N/A")
        yield {
            **entry,
            "time_us": entry["time_us"] - earlier_us,
            "compile_context": f"{compiling} "[:-1],  # another text
            "frames": lists.setdefault(id(frames), [*(frames or ())]),
        }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    arguments.add_argument("snapshot", type=Path)
    arguments.add_argument("--megabytes", type=int, default=500)
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.pickle"
        maker = Process(target=make, args=(given.snapshot, given.megabytes, path))
        maker.start()  # a process that is started begins with its parent's largest memory
        maker.join()
        print(
            f"{path.stat().st_size / 1e6:.0f} MB\n\n| read by | time | CPU time | memory |\n|---|--:|--:|--:|"
        )
        for name, reader in READERS.items():
            runs = sorted(
                tuple(
                    map(
                        float,
                        subprocess.run(
                            [sys.executable, "-c", MEASURED.format(reader=reader), path],
                            check=True,
                            capture_output=True,
                            text=True,
                        ).stdout.split(),
                    )
                )
                for _ in range(3)
            )
            took, cpu, most = runs[1]
            print(f"| {name} | {took:.1f} s | {cpu:.1f} s | {most:,.0f} MB |", flush=True)


if __name__ == "__main__":
    main()
