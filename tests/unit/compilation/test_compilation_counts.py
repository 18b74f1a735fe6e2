"""For every compile log there is, the counts equal a grep of the log."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest

from kinetoscope.compilation.model import CompiledProgram
from kinetoscope.compilation.sources import load
from kinetoscope.document.collect.compilation import as_document

LOGS = [
    "attention.log.gz",
    "comp_failure.log",
    "cudagraph_skip.log.gz",
    "error.log.gz",
    "graphbreak.log.gz",
    "mixnet_l_train.log.gz",
    "modes.log.gz",
    "recompile.log.gz",
    "simple.log",
    "simple_corrupted_json.log",
    "torch2.13.0_cpu_demo_INDUCTOR_PROVENANCE1.log.gz",
    "torch2.13.0_cpu_recompile_limit.log.gz",
    "torch2.15.0_cpu_demo_PROVENANCE1.log.gz",
    "torch2.9.1_cpu_demo_PROVENANCE1.log.gz",
]


class Grep:
    """What anybody can count: header lines by a regular expression, payloads by the lines behind them."""

    def __init__(self, path: Path) -> None:
        opener = gzip.open if path.suffix == ".gz" else open
        with opener(path, "rt") as file:
            self.lines = file.read().split("\n")

    def count(self, pattern: str) -> int:
        return sum(1 for line in self.lines if line[:1] == "V" and re.search(pattern, line))

    def payloads(self, pattern: str) -> list[str]:
        found: list[str] = []
        inside = False
        for line in self.lines:
            if line.startswith("\t") and inside:
                found[-1] += line[1:] + "\n"
            elif line[:1] == "V":
                inside = re.search(pattern, line) is not None
                if inside:
                    found.append("")
        return found

    def compilations(self) -> int:
        """Compilations that began or ended: attempts of one begin with attempt 0, the limit with none."""
        ended = self.count(r'\] \{"compilation_metrics"')
        begun = self.count(r'\] \{"dynamo_start"')
        return max(ended, begun)

    def breaks(self) -> set[tuple[str, str, str]]:
        """Place and the line before `Explanation:`."""
        found: set[tuple[str, str, str]] = set()
        for text in self.payloads(r'"name": "dynamo_graph_break_reason"'):
            place = re.search(r"Graph break in user code at (.*):(\d+)\n", text)
            reason = re.search(r"(?:^|Reason: )([^\n]*)\n  Explanation:", text, re.M)
            assert place
            assert reason
            found.add((place[1], place[2], reason[1].removeprefix("Graph Break Reason: ")))
        return found


@pytest.fixture(scope="module", params=LOGS)
def both(request: pytest.FixtureRequest, shared_data: Path) -> tuple[CompiledProgram, Grep]:
    path = shared_data / "compile-logs" / request.param
    return load(path), Grep(path)


def test_frames_are_as_many_as_in_the_log(both: tuple[CompiledProgram, Grep]) -> None:
    compilation, grep = both
    assert len(compilation.frames) == grep.compilations()


def test_modules_are_as_many_as_in_the_log(both: tuple[CompiledProgram, Grep]) -> None:
    compilation, grep = both
    assert len(compilation.graphs) == len(compilation.modules) == grep.count(r'\] \{"inductor_output_code"')


def test_generated_kernels_are_as_many_as_in_the_log(both: tuple[CompiledProgram, Grep]) -> None:
    compilation, grep = both
    modules = "".join(grep.payloads(r'\] \{"inductor_output_code"'))
    assert len(compilation.kernels) == len(re.findall(r"^\w+ = async_compile\.\w+\(", modules, re.M))


def test_recompilations_and_their_reasons(both: tuple[CompiledProgram, Grep]) -> None:
    compilation, grep = both
    assert sum(r.count for r in compilation.recompilations) == grep.count(r'"name": "recompile_reasons"')
    texts = grep.payloads(r'"name": "recompile_reasons"')
    told = sum(len(json.loads(text)) if text.lstrip().startswith("[") else 1 for text in texts)
    assert sum(len(r.reasons) * r.count for r in compilation.recompilations) == told


def test_graph_breaks_are_those_in_the_log(both: tuple[CompiledProgram, Grep]) -> None:
    compilation, grep = both
    rows = {(b.file, str(b.line), b.reason) for b in compilation.graph_breaks if "artifact" in b.sources}
    assert rows == grep.breaks()
    counted = sum(b.count for b in compilation.graph_breaks if "artifact" in b.sources)
    assert counted == grep.count(r'"name": "dynamo_graph_break_reason"')
    # Frames that were given up without an artifact are in the metrics alone.
    for row in compilation.graph_breaks:
        assert "artifact" in row.sources or row.skipped_frame


def test_cache_hits_and_misses_are_as_many_as_in_the_log(both: tuple[CompiledProgram, Grep]) -> None:
    compilation, grep = both
    cache = as_document(compilation).cache
    for kind, record in (("fx", "fx_graph_cache"), ("aot", "aotautograd_cache")):
        for state in ("hit", "miss", "bypass"):
            assert getattr(getattr(cache, kind), state) == grep.count(f'"name": "{record}_{state}"'), (
                kind,
                state,
            )


def test_failures_are_as_many_as_in_the_log(both: tuple[CompiledProgram, Grep]) -> None:
    compilation, grep = both
    assert len(compilation.failures) == grep.count(r'\] \{"compilation_metrics".*"fail_type": "')


def test_phases_add_up_to_torchs_own_totals(both: tuple[CompiledProgram, Grep]) -> None:
    """The sum of exclusive phases is what torch measured around each compilation and each lazy backward."""
    compilation, grep = both
    total = 0.0
    for line in grep.lines:
        found = re.search(r'\] (\{"(?:bwd_)?compilation_metrics".*)', line) if line[:1] == "V" else None
        if found:
            metrics = next(iter(json.loads(found[1]).values()))
            total += (
                (metrics.get("duration_us") or 0) / 1e6
                or metrics.get("entire_frame_compile_time_s")
                or ((metrics.get("dynamo_cumulative_compile_time_us") or 0) / 1e6)
            )
    for frame in compilation.frames:
        ran = [row.duration_s for row in compilation.stretches if row.frame == frame.index]
        assert not ran or sum(ran) == pytest.approx(frame.compile_s, abs=0.001 * (1 + len(ran)))
    ours = sum(frame.compile_s - frame.autotune_s - frame.cudagraphs_s for frame in compilation.frames)
    autotuned = sum(frame.autotune_s + frame.cudagraphs_s for frame in compilation.frames)
    # Torch's totals hold autotuning at compile time and leave out the few ms between its own timers.
    slack = 0.02 * total + 0.01 * len(compilation.frames)
    assert total - autotuned - slack <= ours <= total + slack
