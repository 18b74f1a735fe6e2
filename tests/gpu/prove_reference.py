"""Every kernel of mixnet_l and of a Llama step against its graph fragment, in several processes.

PYTHONPATH=src python tests/gpu/prove_reference.py OUT --data FOLDER
"""

from __future__ import annotations

import json
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import proving
from generated_modules import MIXNET, llama, mixnet
from kinetoscope.bench.kernels import replica
from kinetoscope.bench.kernels import subjects as kernels
from kinetoscope.bench.kernels.timing import check

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
    parser = proving.arguments(__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--llama", type=Path)
    parser.add_argument("--number", type=int)
    chosen = parser.parse_args()
    if chosen.number is not None:
        modules = [mixnet(chosen.data, direction) for direction in MIXNET]
        share([*modules, chosen.llama], chosen.number, chosen.out)
        return
    began = time.monotonic()
    scratch = Path("/tmp/reference")
    words = [__file__, scratch, "--data", chosen.data, "--llama", llama(chosen.out), "--number"]
    with ThreadPoolExecutor(PROCESSES) as pool:
        for done in pool.map(lambda number: proving.python(*words, str(number)), range(PROCESSES)):
            print(done.stderr[-1500:] if done.returncode else "", end="", flush=True)
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
