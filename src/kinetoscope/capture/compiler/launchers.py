"""What Triton made of each generated kernel: registers, spills and shared memory of each configuration tried.

They are known only once a kernel is loaded, so they are read off Inductor's autotuners: of each when it has
made its launchers, and once more at the end, when one is left that was chosen. Nothing here may reach the
program: what cannot be read is left out.
"""

from __future__ import annotations

import contextlib
import json
import os
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kinetoscope.capture.compiler.stream import Stream
from kinetoscope.capture.hooks.calls import hook


class Launchers:
    """Streams what autotuners of the class ``autotuner`` make to ``path``, a JSON line a time."""

    def __init__(self, autotuner: Any, path: Path) -> None:
        self.stream, self.pid = Stream(path), os.getpid()
        self.seen: weakref.WeakSet[Any] = weakref.WeakSet()
        self.remove = hook(autotuner, "_make_launchers", after=self._made)

    def _made(self, autotuner: Any) -> None:
        if os.getpid() != self.pid:
            return
        self.seen.add(autotuner)
        self._write(autotuner, final=False)

    def _write(self, autotuner: Any, *, final: bool) -> None:
        record = {
            "kernel": str(autotuner.inductor_meta.get("kernel_name") or autotuner.fn.__name__),
            "path": str(getattr(autotuner, "filename", None) or ""),
            "final": final,
            "launchers": list(map(_described, autotuner.launchers)),
        }
        self.stream.write(json.dumps(record) + "\n")

    def close(self) -> None:
        """Say what the kernels that are still alive ended up with."""
        self.remove()
        for autotuner in self.seen:
            with contextlib.suppress(Exception):
                self._write(autotuner, final=True)
        self.stream.close()


def _described(launcher: Any) -> dict[str, object]:
    return {
        "config": dict(_config(launcher.config)),
        "registers": getattr(launcher, "n_regs", None),
        "spills": getattr(launcher, "n_spills", None),
        "shared_memory_bytes": getattr(launcher, "shared", None),
    }


def _config(config: Any) -> Iterator[tuple[str, Any]]:
    for name, value in config.kwargs.items():
        yield str(name), value if isinstance(value, (int, float, str)) else str(value)
    yield "num_warps", config.num_warps
    yield "num_stages", config.num_stages
