"""Running small programs plainly and under `kinetoscope run`, in folders of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
QUICK_ENDS = ROOT / "tests" / "support" / "quick_ends"
DESCENT = (ROOT / "tests" / "harm" / "programs" / "descent.py").read_text()
# torch's optimizers by their names, which are ``Descent``.
OPTIMIZERS = f"""{DESCENT}
for name in ("Adam", "AdamW", "RMSprop", "SGD"):
    setattr(torch.optim, name, type(name, (Descent,), {{}}))
"""
# The start of a program that trains.
TRAIN = f"""{DESCENT}
import os, signal, sys, time
model = torch.nn.Linear(32, 32)
optimizer = Descent(model.parameters())
def train(steps=500, sleep_s=0.0):
    for _ in range(steps):
        time.sleep(sleep_s)
        model(torch.ones(4, 32)).sum().backward()
        optimizer.step()
"""


@dataclass
class Run:
    """What a program did, and the recording of it."""

    status: int
    out: str
    err: str
    folder: Path | None

    @property
    def manifest(self) -> dict[str, Any]:
        assert self.folder is not None, self.err
        return json.loads((self.folder / "manifest.json").read_text())

    @property
    def rank(self) -> dict[str, Any]:
        return self.manifest["ranks"][0]

    @property
    def steps(self) -> dict[str, Any]:
        return self.rank["steps"]

    def events(self, rank: int = 0) -> list[dict[str, Any]]:
        assert self.folder is not None
        return json.loads((self.folder / self.manifest["ranks"][rank]["trace"]).read_text())["traceEvents"]

    def marks(self, rank: int = 0) -> list[str]:
        """The names of the step annotations of the trace."""
        return [
            e["name"]
            for e in self.events(rank)
            if e.get("cat") == "user_annotation" and e["name"].startswith("ProfilerStep#")
        ]

    def ops(self) -> set[str]:
        return {e["name"] for e in self.events() if e.get("cat") == "cpu_op"}


class Programs:
    """Runs Python source as a script, in a folder of its own."""

    limit_s = 100.0  # a test of what compiles raises it, and its own limit

    def __init__(self, home: Path, *, quick_ends: bool = True) -> None:
        self.home = home
        self.path = os.pathsep.join(map(str, (ROOT / "src", *([QUICK_ENDS] if quick_ends else []))))

    def write(self, source: str, name: str = "prog.py") -> Path:
        path = self.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(source))
        return path

    def environment(self, **variables: str) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("KINETO", "TORCH_", "PYTHONPATH"))}
        return {**kept, "PYTHONPATH": self.path, "OMP_NUM_THREADS": "1", **variables}

    def execute(self, command: list[str], **variables: str) -> Run:
        done = subprocess.run(
            command,
            cwd=self.home,
            env=self.environment(**variables),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=self.limit_s,
        )
        home = self.home / "recordings"
        folders = sorted(home.iterdir(), key=lambda p: p.stat().st_mtime) if home.is_dir() else []
        return Run(done.returncode, done.stdout, done.stderr, folders[-1] if folders else None)

    def plain(self, *words: str, **variables: str) -> Run:
        """As without us."""
        return self.execute([sys.executable, *words], **variables)

    def record(self, *words: str, **variables: str) -> Run:
        """Under `kinetoscope run`."""
        return self.execute([sys.executable, "-m", "kinetoscope", "run", "--no-report", *words], **variables)
