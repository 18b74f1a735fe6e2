"""The commands of docs/problems and docs/documents that need a GPU, with what they print: four minutes.

PYTHONPATH=src python tests/gpu/prove_tutorials.py OUT [--only SECTION …]

Each command's output stands in ``OUT/SECTION.txt`` under the command, as the pages show it;
``OUT/recordings`` has the recordings, ``OUT/machine.txt`` the machine and the date. Sections begin in the
order below while there is time left.
"""

from __future__ import annotations

import datetime
import shlex
import subprocess
import sys
import time
from pathlib import Path

import torch

import proving

SECONDS = 225.0
LONGEST = 60.0  # a command
LARGE_BYTES = 4_000_000  # recordings larger than that stay where they were made
LLAMA = "examples/llama.py --dim 512 --layers 8 --heads 8 --batch 4 --length 256 --dtype bfloat16 --steps 200"
SERVE = "examples/serve.py --requests 120"
ATTENTION = "examples/attention.py --dim 4096 --length 1024 --steps 60"
BACKENDS = "inductor,eager,aot_eager,cudagraphs"

SECTIONS: dict[str, list[str]] = {
    # Founding document: torch.add(torch.matmul(x, w), b), small and large, in each mode.
    "matmul": [
        *(
            f"run --no-report -o mm{name} -- examples/matmul_add.py --steps 300 --size {options}"
            for name, options in {
                "64": "64",
                "64-compiled": "64 --compile",
                "4096": "4096",
                "4096-compiled": "4096 --compile",
                "4096-reduce-overhead": "4096 --compile --mode reduce-overhead",
                "4096-max-autotune": "4096 --compile --mode max-autotune",
            }.items()
        ),
        "report mm64",
        "kernels mm64 --chain nvjet",
        "report mm4096",
        "diff mm64 mm64-compiled",
        "diff mm4096 mm4096-compiled",
        "diff mm4096 mm4096-reduce-overhead",
        "diff mm4096 mm4096-max-autotune",
    ],
    # My GPU is at 40 %.
    "idle": [
        f"run --no-report -o eager -- {LLAMA}",
        f"run --no-report -o compiled -- {LLAMA} --compile --mode reduce-overhead",
        "report eager",
        "findings eager --limit 2",
        "whatif eager --host 0.5",
        "diff eager compiled",
    ],
    # Half the tokens per second.
    "tokens": [
        f"run --no-report --steps 60 -o serve -- {SERVE} --no-graphs --result client.json",
        f"run --no-report --steps 60 -o serve-graphs -- {SERVE} --result client-graphs.json",
        "steps serve --client client.json",
        "findings serve --limit 2",
        "steps serve-graphs --client client-graphs.json",
        "diff serve serve-graphs",
    ],
    # Founding document: the attention block under every backend and mode.
    "modes": [
        f"tune --rounds 1 --steps 20 --seconds 6 --backends {BACKENDS} -- {ATTENTION}",
    ],
}


def section(name: str, out: Path, ends: float) -> None:
    """Run the commands of a section in ``OUT/work``, in turn, and write down what each printed."""
    work = out / "work"
    work.mkdir(exist_ok=True)
    said: list[str] = []
    for line in SECTIONS[name]:
        left = ends - time.monotonic()
        if left < 5:
            said.append(f"# no time was left for: kinetoscope {line}")
            continue
        words = shlex.split(line.replace("examples/", f"{proving.ROOT}/examples/"))
        try:
            done = proving.kinetoscope(*words, cwd=work, timeout=min(left, LONGEST), COLUMNS="100")
        except subprocess.TimeoutExpired:
            said.append(f"# took too long: kinetoscope {line}")
            continue
        said += [f"$ kinetoscope {line}", done.stdout.rstrip()]
        if done.returncode or words[0] in {"run", "tune"}:
            said += [f"# status {done.returncode}", *(f"# {text}" for text in done.stderr.splitlines()[-12:])]
        (out / f"{name}.txt").write_text("\n".join(said) + "\n")
        if words[0] == "run" and (folder := work / words[words.index("-o") + 1]).is_dir():
            target = out / "recordings" / f"{folder.name}.tar.gz"
            proving.pack(folder, target)
            if target.stat().st_size > LARGE_BYTES:
                target.unlink()


def main() -> None:
    parser = proving.arguments(__doc__)
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=[*SECTIONS])
    parser.add_argument("--seconds", type=float, default=SECONDS)
    chosen = parser.parse_args()
    ends = time.monotonic() + chosen.seconds
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    today = datetime.date.today().isoformat()
    (chosen.out / "machine.txt").write_text(
        f"{device}, torch {torch.__version__}, Python {sys.version.split()[0]}, {today}\n"
    )
    proving.run_sections(
        chosen.only, {name: lambda name=name: section(name, chosen.out, ends) for name in chosen.only}
    )


if __name__ == "__main__":
    main()
