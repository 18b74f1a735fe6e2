"""Six changes of known effect, and runs with no change at all: what `kinetoscope diff` says of them.

    python tests/gpu/prove_diff.py record OUT   on a CUDA device: records, compares, prints the table
    python tests/gpu/prove_diff.py judge OUT    anywhere: compares what was recorded

OUT/recordings holds a recording a run, small enough to be kept (`pack`): as it is seven times, each change
once. OUT/diffs.json has all that was found. A change is found when the first cause names it and the parts
sum to the difference; of the runs without a change, the time of at most one in twenty may be flagged, and no
count may differ.
"""

from __future__ import annotations

import gzip
import itertools
import json
import shutil
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import proving

ALIKE = 7  # runs of the program as it is
PAIRS = 20
BUDGET_S = 200.0  # for recording; comparing takes half a minute
STEPS = 130

# Each change: what it is made to, the kind of the first cause, and what stands in its name or in that of a
# kernel that runs now.
CHANGES: dict[str, tuple[str, str, str]] = {
    "tf32": ("as-it-is", "kernel", "f32f32_tf32"),
    "fused": ("as-it-is", "kernel", "FusedAdam"),
    "channels_last": ("as-it-is", "layout", "layout conversions per step removed"),
    "sync": ("as-it-is", "sync", "added: aten::_local_scalar_dense"),
    "compile": ("as-it-is", "compiled", "in place of eager code"),
    "compile-break": ("compile", "graph_break", "added: Call to `torch._dynamo.graph_break()`"),
}


def program(flags: set[str]) -> None:
    """A convolutional network in bfloat16 with a head of matrix products in float32, and many parameters."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high" if "tf32" in flags else "highest")
    torch.backends.cudnn.benchmark = False
    breaks = "compile-break" in flags

    class Block(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.one, self.two = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
            self.norm = nn.BatchNorm2d(width)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.two(torch.nn.functional.gelu(self.norm(self.one(x))))
            if breaks:
                torch._dynamo.graph_break()
            return x + torch.tanh(y) * torch.sigmoid(y)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Conv2d(3, 64, 3, stride=2, padding=1)
            self.blocks = nn.ModuleList(Block(64) for _ in range(6))
            self.head = nn.Sequential(
                nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 4096), nn.Linear(4096, 1000)
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cuda", torch.bfloat16):
                x = self.stem(x)
                for block in self.blocks:
                    x = block(x)
                    if "sync" in flags:
                        x.mean().item()
            x = torch.nn.functional.adaptive_avg_pool2d(x.float(), 4).flatten(1)
            return self.head(x)

    model = Model().cuda()
    batch = torch.randn(256, 3, 64, 64, device="cuda")
    if "channels_last" in flags:
        model, batch = (
            model.to(memory_format=torch.channels_last),
            batch.to(memory_format=torch.channels_last),
        )
    target = torch.randint(0, 1000, (256,), device="cuda")
    optimizer = torch.optim.AdamW(
        model.parameters(), 1e-4, foreach="fused" not in flags, fused="fused" in flags
    )
    called = torch.compile(model) if flags & {"compile", "compile-break"} else model
    for _ in range(STEPS):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(called(batch), target).backward()
        optimizer.step()
    torch.cuda.synchronize()


def record(home: Path) -> None:
    """Every run in a process of its own, the program as it is between the others."""
    runs = ["as-it-is-0"]
    for number, change in enumerate(CHANGES, 1):
        runs += [change, f"as-it-is-{number}"]
    began = time.monotonic()
    for name in runs[: 2 * ALIKE - 1]:
        if time.monotonic() - began > BUDGET_S:
            print(f"no time left for {name}", flush=True)
            continue
        flag = "as-it-is" if name.startswith("as-it-is") else name
        out = home / "whole" / name
        started = time.monotonic()
        done = proving.record(out, __file__, "program", flag, timeout=120)
        print(f"{name}: {time.monotonic() - started:.0f} s, status {done.returncode}", flush=True)
        if done.returncode:
            print(done.stderr[-2000:], flush=True)
            continue
        pack(out, home / "recordings" / name)
    shutil.rmtree(home / "whole", ignore_errors=True)


def pack(recording: Path, to: Path) -> None:
    """What a comparison reads, compressed: the manifest, the traces, the compile log."""
    manifest = json.loads((recording / "manifest.json").read_text())
    for rank in manifest["ranks"]:
        for field in ("trace", "device_trace", "compile_log"):
            if path := rank.get(field):
                packed = to / f"{path}.gz"
                packed.parent.mkdir(parents=True, exist_ok=True)
                packed.write_bytes(gzip.compress((recording / path).read_bytes(), 9, mtime=0))
                rank[field] = f"{path}.gz"
        for field in ("scheduler_log", "bytecode", "kernels", "counters", "traceback"):
            rank.pop(field, None)
    (to / "manifest.json").write_text(json.dumps(manifest, indent=1))


def compared(pair: tuple[str, str]) -> dict[str, Any]:
    """The document of one comparison, and how far its parts are from the difference."""
    from msgspec import to_builtins

    from kinetoscope.document.collect.difference import compared as compare

    found = to_builtins(compare(*pair))
    step = found["step"]
    parts = sum(change["delta_us"] for change in found["changes"])
    found["off_us"] = abs(parts - step["delta_us"]) if step else None
    return found


def judge(home: Path) -> int:
    """Print the table; the status is 1 if something was not found, or too much was."""
    recordings = home / "recordings"
    alike = sorted(path for path in recordings.glob("as-it-is-*"))
    pairs = list(itertools.combinations(alike, 2))[:PAIRS]
    changed = [name for name in CHANGES if (recordings / name).is_dir()]
    bases = [recordings / CHANGES[name][0] if CHANGES[name][0] in CHANGES else alike[0] for name in changed]
    tasks = [(str(base), str(recordings / name)) for base, name in zip(bases, changed, strict=True)]
    with ProcessPoolExecutor(8) as pool:
        found = list(pool.map(compared, [*tasks, *((str(a), str(b)) for a, b in pairs)]))
    (home / "diffs.json").write_text(json.dumps(found, indent=1, default=str))
    heads = f"{'change':14} {'base':>9} {'new':>9}  {'interval of the difference':>28}"
    print(f"{heads}  verdict      named  sums  first cause")
    missed = [name for name in CHANGES if name not in changed]
    for name, diff in zip(changed, found, strict=False):
        named, sums = _is_named(diff, *CHANGES[name][1:]), diff["off_us"] < 1e-6 * diff["step"]["base_us"]
        missed += [] if named and sums else [name]
        print(_row(name, diff, named, sums))
    without = found[len(changed) :]
    flagged = [diff for diff in without if diff["step"]["verdict"] in ("faster", "slower")]
    counts = [
        diff for diff in without if any(row["exact"] and row["base"] != row["new"] for row in diff["counts"])
    ]
    spread = sorted(abs(diff["step"]["fraction"]) for diff in without) or [0.0]
    print(f"A/A: {len(without)} comparisons of {len(alike)} runs")
    print(f"     time flagged {len(flagged)} times, counts {len(counts)} times")
    usual = 100 * spread[len(spread) // 2]
    print(f"     medians differ by {usual:.2f} % usually, {100 * spread[-1]:.2f} % at most")
    for diff in counts[:3]:
        rows = [
            (row["name"], row["base"], row["new"])
            for row in diff["counts"]
            if row["exact"] and row["base"] != row["new"]
        ]
        print(f"     {rows}")
    too_many = len(flagged) > max(1, len(without) // 20) or bool(counts)
    print(f"not as it should be: {', '.join(missed) or 'nothing'}{'; A/A' if too_many else ''}")
    return 1 if missed or too_many else 0


def _is_named(diff: dict[str, Any], kind: str, words: str) -> bool:
    if not diff["changes"]:
        return False
    first = diff["changes"][0]
    names = [first["name"], *(work["name"] for work in first["new"])]
    return first["kind"] == kind and any(words in name for name in names)


def _row(name: str, diff: dict[str, Any], named: bool, sums: bool) -> str:
    step, first = diff["step"], diff["changes"][0] if diff["changes"] else {"name": "–", "delta_us": 0.0}
    low, high = (f"{step[bound]:+,.0f}" if step[bound] is not None else "∞" for bound in ("low", "high"))
    times = f"{step['base_us']:9,.0f} {step['new_us']:9,.0f}  {f'{low} to {high} µs':>28}"
    cause = f"{first['delta_us']:+,.0f} µs {first['name'][:60]}"
    seen = f"{'yes' if named else 'NO':5}  {'yes' if sums else 'NO':4}"
    return f"{name:14} {times}  {step['verdict']:11}  {seen}  {cause}"


def main() -> int:
    if sys.argv[1:2] == ["program"]:
        program(set(sys.argv[2:]))
        return 0
    chosen = proving.arguments(__doc__, ("record", "judge")).parse_args()
    if chosen.what == "record":
        record(chosen.out)
    return judge(chosen.out)


if __name__ == "__main__":
    sys.exit(main())
