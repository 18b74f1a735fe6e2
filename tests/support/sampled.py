"""The samples of a program's thread, made by hand."""

from __future__ import annotations

from kinetoscope.analysis.passes.whole_run import WholeRunRow, phases
from kinetoscope.capture.process.whole_run import Key, Tree
from kinetoscope.recording.manifest import StepTimings, TimedSteps
from kinetoscope.recording.whole_run import Period, WholeRun

EVERY_S = 0.02
FILE = "/home/someone/train.py"
INSTALLED = "/env/lib/python3.11/site-packages/"
FIRST_LINES = {"<module>": 1, "train": 30, "evaluate": 60, "save": 80, "Net.forward": 90}


class Run:
    """A program's samples: ``path`` alternates functions and the lines that they stand at."""

    def __init__(self) -> None:
        self.tree, self.now_s = Tree(), 0.0
        self.tick: int | None = None

    def keys(self, path: str) -> list[Key]:
        words = path.split()
        does = {word: word.replace("_", " ").strip("{}") for word in words if word.startswith("{")}
        return [
            ("", "", int(word))
            if word.isdecimal()
            else ("", does[word], 0)
            if word in does
            else (f"{INSTALLED}{word.partition('!')[0]}", word.partition("!")[2], 7)
            if "!" in word
            else (FILE, word, FIRST_LINES.get(word, 7))
            for word in words
        ]

    def sample(self, period: Period, *paths: str, times: int = 1) -> Run:
        for _ in range(times):
            for path in paths:
                self.now_s += EVERY_S
                self.tree.add(self.keys(path), period, self.now_s, EVERY_S)
        return self

    def ticked(self, path: str) -> Run:
        self.tick = self.tree.nodes(self.keys(path))[-1]
        return self

    def written(self) -> WholeRun:
        places, nodes = self.tree.written()
        return WholeRun(places=places, nodes=nodes, tick=self.tick)

    def divided(self, step_s: float = 0.03, **timings: object) -> WholeRunRow | None:
        watched = self.written()
        before = TimedSteps(step_s=(step_s,) * 20, host_s=(step_s,) * 20)
        given = {"found_by": "optimizer", "profiled_s": (step_s,) * 3, "before": before, **timings}
        return phases(watched, StepTimings(**given))  # pyright: ignore[reportArgumentType]
