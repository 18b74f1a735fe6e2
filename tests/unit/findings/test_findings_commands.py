"""The commands that try what findings advise are ones that can be typed."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from kinetoscope import cli
from kinetoscope.findings import commands
from kinetoscope.findings.rank_view import RankView
from kinetoscope.recording.manifest import Manifest
from kinetoscope.sources.run import LoadedRun
from traces import kernel, trace


def view(*command: str, folder: Path | None = Path("my rec"), name: str = "k") -> RankView:
    recorded = trace(kernel(name, 10, 5), kernel(name, 20, 7), kernel("other", 30, 1))
    return RankView(LoadedRun((recorded,), Manifest(command=command), None, folder), recorded)


@pytest.mark.parametrize(
    ("command", "line"),
    [
        (("/usr/bin/python3", "train.py", "--name", "a b"), "-- train.py --name 'a b'"),
        (("python", "-X", "dev", "-O", "train.py"), "-- train.py"),
        (("python", "-m", "package.train", "-x"), "-m package.train -x"),
        (("train.py", "4"), "-- train.py 4"),
    ],
)
def test_tune_runs_the_program_not_its_interpreter(command: tuple[str, ...], line: str) -> None:
    proof = commands.tune(view(*command), mode="reduce-overhead")
    assert proof is not None
    assert proof.command == f"kinetoscope tune --out 'my rec' --modes reduce-overhead {line}"


@pytest.mark.parametrize(
    "command", [("/venv/bin/torchrun", "--nproc-per-node", "2", "train.py"), (), ("python",)]
)
def test_what_tune_cannot_start_has_no_command(command: tuple[str, ...]) -> None:
    assert commands.tune(view(*command), mode="default") is None
    assert commands.tune(view("python", "train.py", folder=None), mode="default") is None


def test_a_change_beside_the_programs_own_calls_needs_no_mode() -> None:
    proof = commands.tune(view("python", "t.py"), matmul_precision="high")
    assert proof is not None
    assert "--modes eager --matmul-precision high -- t.py" in proof.command


def test_bench_is_for_kernels_that_inductor_generated() -> None:
    proof = commands.bench(view(name="triton_poi_0"), "triton_poi_0")
    assert proof is not None
    assert proof.command == "kinetoscope bench 'my rec' --kernel triton_poi_0 --max-autotune --apply"
    assert (proof.kernel_us, proof.launches) == (12.0, 2.0)
    assert commands.bench(view(), "k") is None
    assert commands.bench(view(name="triton_poi_0", folder=None), "triton_poi_0") is None


def test_the_commands_are_understood() -> None:
    made = [
        commands.tune(view("python", "t.py", "--x"), matmul_precision="high"),
        commands.tune(view("python", "-m", "t", "--x"), mode="max-autotune"),
        commands.bench(view(name="triton_poi_0"), "triton_poi_0"),
    ]
    for proof in made:
        assert proof is not None
        words = shlex.split(proof.command)
        assert words[0] == "kinetoscope"
        arguments = cli.parse(words[1], words[2:])
        assert str(getattr(arguments, "output", "my rec")) == "my rec"
