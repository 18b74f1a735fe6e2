"""What reading a large memory snapshot costs: ``python benchmarks/snapshot.py SNAPSHOT [--megabytes 500]``.

Makes a snapshot of that size by repeating a real one's history, later and later, as objects of their own
that share their stacks, which is how torch writes it. Then reads it in a process of its own, three times, and
prints the time, the CPU time and the largest memory, beside those of reading its bytes and of Python's own
unpickler, which would run what a stranger's pickle names.
"""

from __future__ import annotations

import argparse
import pickle
import subprocess
import sys
import tempfile
from multiprocessing import Process
from pathlib import Path

READERS = {
    "bytes": "import sys, pathlib; pathlib.Path(sys.argv[1]).read_bytes()",
    "pickle.load": "import sys, pickle; pickle.load(open(sys.argv[1], 'rb'))",
    "kinetoscope": "import sys; from pathlib import Path\n"
    "from kinetoscope.snapshot.read import read\nread(Path(sys.argv[1]))",
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
    """A snapshot of about that size; stacks and names stay objects that entries share."""
    snapshot = pickle.loads(source.read_bytes())  # the reader's own file, named on the command line
    size = len(pickle.dumps(snapshot["device_traces"], protocol=4))
    times = max(1, round(megabytes * 1e6 / size))
    for number, history in enumerate(snapshot["device_traces"]):
        if not history:
            continue
        lasted = history[-1]["time_us"] - history[0]["time_us"] + 1
        snapshot["device_traces"][number] = [
            {**entry, "time_us": entry["time_us"] - (times - 1 - turn) * lasted}
            for turn in range(times)
            for entry in history
        ]
    target.write_bytes(pickle.dumps(snapshot, protocol=4))


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
