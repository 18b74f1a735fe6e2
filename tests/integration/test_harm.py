"""Programs under `kinetoscope run` compute, print, leave and end with what they do without it.

Those of ``harm.catalogue`` that say so run here, with one seed each; all of them by `python -m harm.battery`.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from harm.battery import Battery
from harm.catalogue import OPTIONS, Program, known_options, options_of, programs

SEED = 1
ON_CPU = [program for program in programs() if program.needs == "cpu"]
KNOWN = {  # what still differs
    "dispatch_modes": "a TorchFunctionMode of the program sees what we read of its tensors",
    "tracing-setprofile": "torch's profiler with stacks takes sys.setprofile for itself, and leaves it empty",
}

ENDS = ("dropped_models", "ends")  # what is about how programs and their objects end


def _marks(program: Program) -> list[pytest.MarkDecorator]:
    slow = [] if program.suite else [pytest.mark.slow]
    known = KNOWN.get(program.name)
    return slow + ([pytest.mark.xfail(reason=known, strict=True)] if known else [])


@pytest.fixture(scope="module")
def options() -> list[tuple[str, ...]]:
    return known_options()


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
@pytest.mark.parametrize(
    "program",
    [pytest.param(program, id=program.name, marks=_marks(program)) for program in ON_CPU],
)
def test_a_program_does_the_same_under_run(
    program: Program,
    options: list[tuple[str, ...]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if program.missing:
        pytest.skip(f"{', '.join(program.missing)} not installed")
    if program.name.startswith(ENDS):
        monkeypatch.delenv("PYTHONPATH")  # it has what makes ends quick
    battery = Battery(tmp_path, recheck=0 if program.name in KNOWN else 3)
    plain = battery.plain(program, runs=1)
    assert not plain.fault, plain.run.err
    result = battery.under(plain, SEED, options_of(program, SEED, options))
    assert not result.differences, f"{result.options}: {result.err}"


def test_ten_seeds_try_every_option() -> None:
    for program in ON_CPU:
        chosen = [options_of(program, seed, OPTIONS) for seed in range(1, 1 + len(OPTIONS))]
        given = {words for each in OPTIONS for words in each}
        assert {words for options in chosen for words in options} == given
