"""Prove on a GPU what a killed recording holds, and what writing the first steps pauses the program for.

    PYTHONPATH=src python tests/gpu/prove_kills.py OUT

writes each recording to OUT as a .tar.gz and a table to stdout and OUT/table.txt. About three minutes.
"""

from __future__ import annotations

import os
from pathlib import Path

import proving
from kinetoscope.errors import KinetoscopeError
from kinetoscope.recording import folder as folders
from kinetoscope.sources.run import load

# Trains so many steps, says what the first twelve took (ms), then ends as it is told.
PROGRAM = """
import ctypes, os, signal, sys, time
import torch
steps, ending, compiled = int(sys.argv[1]), sys.argv[2], sys.argv[3] == "compiled"
layers = [layer for _ in range(8) for layer in (torch.nn.Linear(1024, 1024), torch.nn.GELU())]
model = torch.nn.Sequential(*layers).cuda()
run = torch.compile(model) if compiled else model
optimizer = torch.optim.AdamW(model.parameters())
took = []
for _ in range(steps):
    began = time.perf_counter()
    run(torch.ones(64, 1024, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    torch.cuda.synchronize()
    took.append(1e3 * (time.perf_counter() - began))
print(*(f"{ms:.1f}" for ms in took[:12]), flush=True)
if ending == "SIGKILL":
    os.kill(os.getpid(), signal.SIGKILL)
elif ending == "segfault":
    ctypes.string_at(0)
elif ending == "abort":
    os.abort()
elif ending == "assert on the device":
    torch.zeros(4, device="cuda")[torch.tensor([9], device="cuda")].tolist()
"""
ENDINGS = ("SIGKILL", "segfault", "abort", "assert on the device", "return")
CASES = [(steps, ending, "eager") for steps in (2, 6) for ending in ENDINGS]
CASES += [(80, "SIGKILL", "eager"), (6, "SIGKILL", "compiled"), (80, "SIGKILL", "compiled")]


def case(steps: int, ending: str, how: str, out: Path) -> str:
    """How the program ended, what is left of it, and what its first steps took."""
    words = [str(out / "program.py"), str(steps), ending, how]
    folder = out / "work" / "-".join(words[1:]).replace(" ", "-")
    done = proving.record(folder, *words, timeout=120)
    try:
        manifest = folders.opened(folder)
    except KinetoscopeError as error:  # one case that fails leaves the others
        return f"{error}: {done.stderr[-300:]}"
    found = manifest.ranks[0]
    left = "no trace"
    if found.trace is not None:
        proving.pack(folder, out / f"{folder.name}.tar.gz")
        (trace, *_) = load(folder).traces
        kind = "first" if found.steps.cold else "recorded"
        left = f"{kind} steps, {len(trace.host_events)} host events, {len(trace.device_events)} device events"
    return f"{manifest.exit} | {left} | {done.stdout.strip()}"


def main() -> None:
    out: Path = proving.arguments(__doc__).parse_args().out
    os.environ["KINETOSCOPE_CACHE"] = "0"
    (out / "program.py").write_text(PROGRAM)
    lines = ["program | steps | ending | exit | left | first steps, ms"]
    for how in ("eager", "compiled"):
        plain = proving.python(out / "program.py", "12", "return", how, timeout=120)
        lines.append(f"{how} | 12 | return | without us | | {plain.stdout.strip() or plain.stderr[-300:]}")
    for steps, ending, how in CASES:
        lines.append(f"{how} | {steps} | {ending} | {case(steps, ending, how, out)}")
    proving.show(out, lines)


if __name__ == "__main__":
    main()
