"""Noticing a profiler that the program starts itself, and keeping what it exports.

There can be one profiling session at a time, and the program's comes first. Its trace, written by the program
for its own ends, is copied: for a program that profiles itself it is the best recording there is.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kinetoscope.capture import torch_private
from kinetoscope.capture.hooks.calls import CallWatch, ReturnWatch
from kinetoscope.capture.recorder.profiler import is_ours


class ForeignProfilers:
    """Watches ``torch.autograd.profiler.profile``, which torch.profiler goes through, and its like."""

    def __init__(self, began: Callable[[], None], ended: Callable[[], None], copy: Path) -> None:
        import torch.autograd.profiler as profilers

        self.began, self.ended, self.copy = began, ended, copy
        self.seen = False
        self.running: set[int] = set()
        self.profile: Any = profilers.profile
        self.watches = [CallWatch(self.profile, "_prepare_trace", self._began)]
        for profiler in torch_private.profilers():
            self.watches.append(CallWatch(profiler, "__enter__", self._began))
            self.watches.append(ReturnWatch(profiler, "__exit__", self._ended))
        self.export = self.profile.export_chrome_trace
        self.exporting = self._exporting(self.export)
        for watch in self.watches:
            watch.install()
        self.profile.export_chrome_trace = self.exporting

    def remove(self) -> None:
        for watch in self.watches:
            watch.remove()
        if self.profile.export_chrome_trace is self.exporting:  # not what the program has put there since
            self.profile.export_chrome_trace = self.export

    def _began(self, profile: Any) -> None:
        if id(profile) not in self.running and profile.enabled and not is_ours(profile):
            self.running.add(id(profile))
            self.seen = True
            self.began()

    def _ended(self, profile: Any) -> None:
        if id(profile) in self.running:
            self.running.discard(id(profile))
            self.ended()

    def _exporting(self, export: Callable[..., Any]) -> Callable[..., Any]:
        def export_chrome_trace(profile: Any, path: Any, *arguments: Any, **options: Any) -> Any:
            result = export(profile, path, *arguments, **options)
            if not is_ours(profile):
                self._keep(Path(path))
            return result

        return export_chrome_trace

    def _keep(self, path: Path) -> None:
        try:
            self.copy.parent.mkdir(exist_ok=True)
            shutil.copyfile(path, self.copy)
        except OSError:
            self.copy.unlink(missing_ok=True)
