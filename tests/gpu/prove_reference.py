"""Every kernel of mixnet_l and of a Llama step against its graph fragment, in several processes.

PYTHONPATH=src python tests/gpu/prove_reference.py --data FOLDER --out FOLDER
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from kinetoscope.bench.kernels import replica
from kinetoscope.bench.kernels import subjects as kernels
from kinetoscope.bench.kernels.timing import check
from prove_bench import llama_modules

PROCESSES = 8


def share(paths: list[Path], number: int, out: Path) -> None:
    rows: list[dict[str, object]] = []
    subjects = [subject for path in paths for subject in kernels.find(path)[0]]
    for subject in subjects[number::PROCESSES]:
        try:
            built = replica.Replica(subject.kernel)
            made = replica.arguments(subject.arguments, "cuda", 0, subject.facts.index_bound)
            built.bind(made)()
            del made
            found = check(subject, built, "cuda")
            row = {
                "status": found.status,
                "text": found.text,
                "outputs": found.outputs,
                "checked": found.checked,
            }
        except Exception as error:
            row = {"status": "failed", "text": f"{type(error).__name__}: {error}"[:300]}
        rows.append(
            {"name": subject.kernel.name, "module": subject.module.aot_id, "bytes": subject.bytes, **row}
        )
        (out / f"reference_{number}.part").write_text(json.dumps(rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--llama", type=Path)
    parser.add_argument("--number", type=int)
    chosen = parser.parse_args()
    modules = [chosen.data / f"mixnet_l_{direction}.py.gz" for direction in ("forward", "backward")]
    if chosen.number is not None:
        share([*modules, chosen.llama], chosen.number, chosen.out)
        return
    began = time.monotonic()
    scratch = Path("/tmp/reference")
    scratch.mkdir(exist_ok=True)
    line = [sys.executable, __file__, "--data", str(chosen.data), "--out", str(scratch)]
    line += ["--llama", str(llama_modules(chosen.out))]
    running = [subprocess.Popen([*line, "--number", str(number)]) for number in range(PROCESSES)]
    for process in running:
        process.wait()
    rows = [row for file in sorted(scratch.glob("*.part")) for row in json.loads(file.read_text())]
    (chosen.out / "reference.json").write_text(json.dumps(rows, indent=1))
    print(Counter(row["status"] for row in rows), f"{time.monotonic() - began:.0f} s")
    print("partly:", sum(row["status"] == "agrees" and row["checked"] < row["outputs"] for row in rows))
    for row in rows:
        if row["status"] in ("differs", "failed"):
            print(row["module"], row["name"][-70:], row["text"])
    for text, count in Counter(row["text"] for row in rows if row["status"] == "not checked").most_common():
        print(count, text)


if __name__ == "__main__":
    main()
