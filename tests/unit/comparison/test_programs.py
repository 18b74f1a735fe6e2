"""Recordings of different programs are not taken for versions of one."""

from __future__ import annotations

from pathlib import Path

import pytest

import traces
from kinetoscope.comparison.comparability import surroundings
from kinetoscope.comparison.history import history
from kinetoscope.sources.run import LoadedRun, load

FIXTURES = Path(__file__).parents[2] / "fixtures" / "h200"


def modules(*names: str) -> LoadedRun:
    """A recording in which the first module calls the others, one after the other."""
    outer, *inner = names
    return LoadedRun(
        (
            traces.trace(
                traces.step(0, 0, 200),
                traces.event("python_function", f"nn.Module: {outer}_0", 10, 150),
                *(traces.event("python_function", f"nn.Module: {one}_0", 20 + 10 * at, 5)
                  for at, one in enumerate(inner)),
                traces.host("aten::mm", 21, 2),
            ),
        )
    )  # fmt: skip


@pytest.mark.parametrize(
    ("names", "comparability"),
    [
        (("Llama", "Linear"), "good"),
        (("Mixer", "Linear"), "none"),
        (("OptimizedModule", "Linear"), "good"),
    ],
)
def test_models_tell_programs_apart_that_traces_do_not_name(
    names: tuple[str, ...], comparability: str
) -> None:
    found = surroundings(modules("Llama", "Linear", "Norm"), modules(*names))
    assert found.comparability == comparability
    if comparability == "none":
        assert found.why[0] == "they are different programs, by the modules that they call: Llama and Mixer"


def test_where_ops_differ_and_nothing_names_the_program_it_is_said_that_it_is_not_known() -> None:
    base, new = (
        LoadedRun((traces.trace(traces.step(0, 0, 100), *(traces.host(name, 10, 5) for name in names)),))
        for names in (("aten::mm", "aten::add"), ("aten::mm", "aten::relu"))
    )
    found = surroundings(base, new)
    assert found.comparability == "limited"
    assert "whether they are of one program cannot be said" in found.why[-1]
    assert "33%" in found.why[-1]
    assert surroundings(base, base).why == ()


def test_a_history_of_bare_traces_has_a_series_for_each_program() -> None:
    names = ["mm_64_warm_eager", "llama_train_eager", "mm_64_cold_eager"]
    rows = history([(name, load(FIXTURES / f"{name}.json.gz")) for name in names])
    by_name = {row.name: row for row in rows}
    assert by_name["mm_64_warm_eager"].program == by_name["mm_64_cold_eager"].program
    assert by_name["llama_train_eager"].program == "as llama_train_eager"
    assert by_name["llama_train_eager"].change is None
    assert not by_name["llama_train_eager"].new_findings
    [alone] = history([("llama", load(FIXTURES / "llama_train_eager.json.gz"))])
    assert alone.program is None
