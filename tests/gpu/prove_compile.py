"""Prove on a GPU that one `kinetoscope run` holds what torch.compile did under every mode.

    PYTHONPATH=src python tests/gpu/prove_compile.py OUT [NAME…]

The article's attention (dim 4096, 1 × 1024 tokens) under the four modes, trained, broken, recompiled and
refused; a function that no CUDA graph can hold; breaks with launches of their own; a kernel that spills;
torch's own backends. Writes each recording (those named, or all) to OUT/recordings as a .tar.gz. About three
minutes.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import proving

LLAMA = "examples/llama.py --compile --dim 1024 --layers 4 --heads 16 --batch 4 --length 512 --dtype bfloat16"
ATTENTION = "examples/attention.py --dim 4096 --length 1024 --steps 40"
PROGRAMS = {
    "attention-default": ATTENTION,
    "attention-reduce-overhead": f"{ATTENTION} --mode reduce-overhead",
    "attention-max-autotune": f"{ATTENTION} --mode max-autotune",
    "attention-max-autotune-no-cudagraphs": f"{ATTENTION} --mode max-autotune-no-cudagraphs",
    "attention-backward": f"{ATTENTION} --variant backward",
    "attention-print": f"{ATTENTION} --variant print",
    "attention-recompile": f"{ATTENTION} --variant recompile",
    "attention-fullgraph-error": f"{ATTENTION} --variant fullgraph-error",
    "cudagraph-skipped": "tests/gpu/programs/cudagraph_skipped.py",
    "breaks": "tests/gpu/programs/breaks.py",
    "breaks-graphs": "tests/gpu/programs/breaks.py --mode reduce-overhead",
    "breaks-none": "tests/gpu/programs/breaks.py --whole",
    "breaks-none-graphs": "tests/gpu/programs/breaks.py --whole --mode reduce-overhead",
    "llama-train": LLAMA,
    "llama-max-autotune": f"{LLAMA} --mode max-autotune-no-cudagraphs",
    "spills": "tests/gpu/programs/spills.py",
    "backends": "tests/gpu/programs/backends.py",
}


def record(name: str, out: Path) -> str:
    script, *words = PROGRAMS[name].split()
    _, done, seconds = proving.record_and_pack(name, out, proving.ROOT / script, *words, timeout=300)
    said = done.stderr.strip().splitlines()
    line = next((line for line in said if "recorded" in line), said[-1] if said else "")
    return f"{name:<38} status {done.returncode}  {seconds:5.1f} s  {line}"


def main() -> None:
    parser = proving.arguments(__doc__)
    parser.add_argument("names", nargs="*", default=[*PROGRAMS])
    chosen = parser.parse_args()
    # Side by side: what is proved is the record of compiling, not times.
    with ThreadPoolExecutor(5) as pool:
        for line in pool.map(lambda name: record(name, chosen.out), chosen.names):
            print(line, flush=True)


if __name__ == "__main__":
    main()
