"""Prove on a GPU that every byte of a peak has its owner, what watching costs, and what changes save.

    PYTHONPATH=src python tests/gpu/prove_memory.py record OUT
    PYTHONPATH=src python tests/gpu/prove_memory.py judge OUT
    PYTHONPATH=src python tests/gpu/prove_memory.py keep OUT
    PYTHONPATH=src python tests/gpu/prove_memory.py fits OUT

The first, on one CUDA device, records the programs of programs/memory.py with `run --memory`, each into
OUT/NAME.tar.gz (with what the program itself counted in every step), runs them with each change, records the
cases of the rules on memory (tests/cases), and times steps with and without the history: OUT/results.json.
About three minutes. The second, anywhere, reads them; the third puts what tests need where they find it.
The fourth, on one device, in about two minutes: the largest batch that `tune --fits` finds where a recording
foresees it (OUT/largest.json), and the line that empties the cache by the history of `run --memory`.
"""

from __future__ import annotations

import json
import sys
import tarfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import proving

HERE = Path(__file__).resolve().parent
PROGRAM = HERE / "programs" / "memory.py"
RECORDED = ("train", "compiled", "checkpoint", "generate", "leak", "full")
STEPS = {"generate": 400, "full": 200}
# What is only counted: the program's name, then its options.
COUNTED = {
    "train": "train",
    "train checkpoint": "train --fix checkpoint",
    "train logits": "train --fix logits",
    "train fused": "train --fix fused",
    "train 4": "train --batch 4",
    "train 16": "train --batch 16",
    "leak": "leak",
    "leak leak": "leak --fix leak",
    "keeps": "keeps",
    "keeps none": "keeps --fix none",
    "pairwise": "pairwise",
    "pairwise cdist": "pairwise --fix cdist",
    "ragged": "ragged",
    "ragged expandable": "ragged",
}
ALSO_RECORDED = ("keeps", "pairwise", "ragged")
CASES = (
    "activation-memory", "allocator-retries", "float32-logits", "gradients-kept", "memory-fragmentation",
    "memory-leak", "one-temporary", "optimizer-memory",
)  # fmt: skip
OF_CASES = HERE.parent / "cases"
KEPT = HERE.parent / "fixtures" / "h200_memory"
AT_A_TIME = 4


def record(name: str, out: Path) -> str:
    folder, truth = out / "work" / name, out / "work" / f"{name}.truth.json"
    began = time.perf_counter()
    words = [name, "--steps", str(STEPS.get(name, 90)), "--truth", str(truth)]
    done = proving.record(folder, PROGRAM, *words, options=["--memory"], timeout=200)
    if not (folder / "manifest.json").is_file():
        return f"{name:<12} no recording: {done.stderr[-400:]}"
    for held in (folder / "memory").glob("*.pickle"):
        print(name, held.name, held.stat().st_size, "bytes", flush=True)
    if truth.is_file():
        (folder / "truth.json").write_bytes(truth.read_bytes())
    rank = json.loads((folder / "manifest.json").read_text())["ranks"][0]
    profiled = rank["steps"].get("profiled_s") or [0.0]
    return (
        f"{name:<12} status {done.returncode} files {rank.get('memory')} {rank.get('oom')} "
        f"{1e3 * median(profiled):8.2f} ms profiled {time.perf_counter() - began:5.1f} s {rank.get('notes')}"
        f"{done.stderr[-300:] if done.returncode and name != 'full' else ''}"
    )


def pack(out: Path) -> None:
    """At most eight files come back from the machine: the six programs, the others in one."""
    for name in RECORDED:
        if (out / "work" / name).is_dir():
            proving.pack(out / "work" / name, out / f"{name}.tar.gz")
    with tarfile.open(out / "others.tar.gz", "w:gz", compresslevel=6) as archive:
        for name in ALSO_RECORDED:
            if (out / "work" / name / "memory").is_dir():
                for part in ("manifest.json", "memory", "truth.json"):
                    archive.add(out / "work" / name / part, arcname=f"{name}/{part}")
        archive.add(out / "work" / "cases", arcname="cases")


def case(name: str, out: Path) -> str:
    folder = out / "work" / "cases" / name
    folder.mkdir(parents=True)
    done = proving.python(OF_CASES / "record.py", folder, name, timeout=200)
    return (done.stdout + done.stderr[-300:]).strip()


def keep(out: Path) -> None:
    """What tests need of it, put where they find it: the cases of tests/cases, as far as they were recorded,
    and the snapshots with what was counted beside them."""
    import judge_memory

    with tarfile.open(out / "others.tar.gz") as archive:
        archive.extractall(out / "unpacked", filter="data")
    table = OF_CASES / "measured.json"
    measured = json.loads(table.read_text())
    for name in CASES:
        folder = out / "unpacked" / "cases" / name
        if not (folder / name).is_dir():
            print(f"no case was recorded of {name}")
            continue
        measured |= json.loads((folder / "measured.json").read_text())
        for file in (folder / name).iterdir():
            (OF_CASES / name / file.name).write_bytes(file.read_bytes())
    table.write_text(json.dumps(measured, indent=1))
    judge_memory.keep(out, KEPT)


def count(name: str, out: Path) -> dict[str, Any]:
    truth = out / "work" / f"counted-{name.replace(' ', '-')}.json"
    expandable = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"} if name.endswith("expandable") else {}
    words = [PROGRAM, *COUNTED[name].split(), "--steps", "24", "--truth", truth]
    done = proving.python(*words, timeout=200, **expandable)
    if not truth.is_file():
        return {"failed": done.stderr[-400:]}
    return json.loads(truth.read_text())


def price() -> dict[str, list[float]]:
    """Seconds of a step under the profiler, alternating: as without --memory, with the trace's own record of
    memory, with the allocator's history, with both."""
    sys.path.insert(0, str(PROGRAM.parent))
    import memory
    import torch

    from kinetoscope.capture import torch_private
    from kinetoscope.capture.options import Options
    from kinetoscope.capture.recorder.memory import ENTRIES
    from kinetoscope.capture.recorder.profiler import TorchDevice

    found: dict[str, list[float]] = {}
    step = memory.training("train", "", 1)  # small: the host is what takes the time
    for number in range(10):
        step(number)
    for _ in range(12):
        for way, in_trace, history in (
            ("plain", None, False),
            ("trace", False, False),
            ("trace's memory", True, False),
            ("history", False, True),
            ("both", True, True),
        ):
            session = None
            if in_trace is not None:
                session = TorchDevice(Options(memory=in_trace), None).session(kind="full", any_thread=False)
                session.prepare()
                session.start()
            if history:
                torch_private.keep_memory_history(ENTRIES)
            step(0)
            torch.cuda.synchronize()
            began = time.perf_counter()
            for number in range(4):
                step(number)
            torch.cuda.synchronize()
            found.setdefault(way, []).append((time.perf_counter() - began) / 4)
            if history:
                torch_private.keep_memory_history(0)
            if session is not None:
                session.stop()
                session.export(Path("/tmp/price.json"))
    return found


def largest(out: Path) -> None:
    """What is foreseen of the largest batch, and found."""
    folder, program = out / "train-8", [str(PROGRAM), "train", "--steps", "60", "--batch"]
    proving.record(folder, *program, "8", options=["--memory"]).check_returncode()
    found = proving.kinetoscope(
        "tune", "--fits", folder, "--steps", "12", "--json", "--", *program, "{batch}"
    )
    found.check_returncode()
    (out / "largest.json").write_text(found.stdout)
    shown = json.loads(found.stdout)
    for one in shown["tries"]:
        print(one)
    foreseen = shown["foreseen"]
    print("foreseen", foreseen["low"], foreseen["high"], "found", shown["largest"], shown["too_large"])


EMPTIES = """
import torch
model = torch.nn.Linear(4096, 4096, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(60):
    model(torch.ones(8192, 4096, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    torch.cuda.empty_cache()
"""


def emptied(out: Path) -> None:
    """The line of empty_cache(), and no other, is what gave memory back: program.py:9."""
    (out / "program.py").write_text(EMPTIES)
    proving.record(out / "emptied", out / "program.py", options=["--memory"]).check_returncode()
    shown = proving.kinetoscope("memory", out / "emptied", "--json")
    shown.check_returncode()
    for peak in json.loads(shown.stdout)["peaks"]:
        for row in peak["given_back"]:
            print(row)


def main() -> None:
    arguments = proving.arguments(__doc__, ("record", "judge", "keep", "fits")).parse_args()
    if arguments.what == "judge":
        import judge_memory

        judge_memory.judge(arguments.out)
    elif arguments.what == "keep":
        keep(arguments.out)
    elif arguments.what == "fits":
        largest(arguments.out)
        emptied(arguments.out)
    else:
        prove(arguments.out)


def prove(out: Path) -> None:
    (out / "work").mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    results: dict[str, Any] = {}
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        lines = list(pool.map(lambda name: record(name, out), (*RECORDED, *ALSO_RECORDED)))
        print(f"recorded after {time.perf_counter() - began:.0f} s", flush=True)
        lines += pool.map(lambda name: case(name, out), CASES)
        results["counted"] = dict(zip(COUNTED, pool.map(lambda name: count(name, out), COUNTED), strict=True))
    print(f"counted after {time.perf_counter() - began:.0f} s", flush=True)
    pack(out)
    (out / "results.json").write_text(json.dumps(results))
    results["price"] = price()
    (out / "results.json").write_text(json.dumps(results))
    for line in lines:
        print(line)
    for name, counted in results["counted"].items():
        last = counted.get("steps", [{}])[-1]
        print(f"{name:<20} {last} {counted.get('parts', counted)} {counted.get('seconds')}")
    base = median(results["price"]["trace"])
    for way, seconds in results["price"].items():
        print(f"{way:<16} {1e3 * median(seconds):8.3f} ms  {median(seconds) / base:.3f} of the trace's")
    print(f"all after {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
