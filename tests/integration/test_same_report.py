"""Reports are a function of their input, whatever the hash seed and the threads; of ranks whatever their
order."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import job_simulator
import rank_sets
from job_sets import HSDP
from rank_sets import Fault, Job

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
# Ties: two groups in each of which nobody is late, and three ranks that wait alike long.
JOBS = {
    "parallel": Job("two groups", 4, 2, steps=3, fault=Fault(3, "kernel")),
    "pipeline": Job("pipeline", 4, steps=2, way="pipeline", fault=Fault(1, "clocks")),
}
# Ranks of one host that are alike slow, and a link, in groups that overlap.
SIMULATED = {
    "a slow host": replace(HSDP, steps=2, layers=2, fault=job_simulator.Fault("device", (4, 5, 6, 7), 1.3)),
    "a slow link": replace(HSDP, steps=2, layers=2, fault=job_simulator.Fault("link", (0, 1, 2, 3), 5.0)),
}
PROGRAM = """
import sys
from os import environ
import shared_runs
shared_runs.share()
from kinetoscope.cli import main
folder, *inputs = sys.argv[1:]
for suffix in environ["SUFFIXES"].split():
    main(["report", *inputs, "-o", f"{folder}/report.{suffix}"])
    if len(inputs) > 1:
        ranks = inputs if environ["PYTHONHASHSEED"] == "1" else inputs[::-1]
        main(["report", *ranks, "--engine", "local", "-o", f"{folder}/ranks.{suffix}"])
if len(inputs) > 1:
    main(["map", *inputs, "--parts", folder + "/parts"])
for name, words in {
    "findings": ["findings", *inputs], "kernels": ["kernels", *inputs], "graphs": ["graphs", *inputs],
    "diff": ["diff", inputs[0], inputs[-1]],
}.items():
    sys.stdout = open(f"{folder}/{name}.json", "w")
    main([*words, "--json"])
    sys.stdout.close()
"""


def made(folder: Path, inputs: list[Path], seed: int, suffixes: str) -> dict[str, bytes]:
    """The files of one process, by name."""
    folder.mkdir()
    environment = {
        **os.environ, "PYTHONHASHSEED": str(seed), "POLARS_MAX_THREADS": str(seed), "KINETOSCOPE_CACHE": "0",
        "SUFFIXES": suffixes, "PYTHONPATH": os.pathsep.join(sys.path),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder), *map(str, inputs)], env=environment, capture_output=True
    )
    assert done.returncode == 0, done.stderr.decode()
    return {path.name: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


SLOW = ("pipeline", "h200-dist/ddp_loader", "one rank", *SIMULATED)


@pytest.mark.parametrize("name", ["parallel", *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_a_report_is_the_same_in_two_processes(name: str, tmp_path: Path) -> None:
    inputs = tmp_path / "inputs"
    inputs.mkdir()
    if name in JOBS or name in SIMULATED:
        found = rank_sets.recorded(JOBS[name]) if name in JOBS else job_simulator.recorded(SIMULATED[name])
        traces = {f"rank{rank}.json": json.dumps(trace) for rank, trace in found}
        for file, text in traces.items():
            (inputs / file).write_text(text)
    else:
        pattern = f"{name}_rank*" if "/" in name else "h200-dist/fsdp_none_rank0*"
        for path in FIXTURES.glob(pattern):
            (inputs / path.name).write_bytes(path.read_bytes())
    files = sorted(inputs.iterdir())
    suffixes = "json md html txt" if name in SLOW else "json"  # of which the others are made
    first, second = (made(tmp_path / folder, files, seed, suffixes) for folder, seed in (("a", 1), ("b", 2)))
    assert [file for file in first if first[file] != second[file]] == []
    assert len(first) > 4
