"""Every rule is found, documented, pure and has a labelled case."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from kinetoscope.findings import rules as folder
from kinetoscope.findings.documentation import SECTIONS, documentation
from kinetoscope.findings.registry import rules

FILES = sorted(path for path in Path(folder.__file__).parent.glob("*.py") if path.stem != "__init__")
CASES = Path(__file__).resolve().parents[2] / "cases"
# Rules compute; they read no clock, no disk, no environment, and need no torch.
IMPURE = {"torch", "triton", "time", "datetime", "os", "pathlib", "io", "subprocess", "random", "numpy"}

# The rules that the project has promised, by their slug.
PROMISED = [
    "overhead-bound",
    "cold-start-step",
    "sync-in-step",
    "launch-gap",
    "many-tiny-kernels",
    "data-loading-stall",
    "host-op-stall",
    "python-overhead",
    "gc-pause",
    "pageable-copy",
    "hidden-device-copy",
    "layout-conversion",
    "unfused-elementwise",
    "allocator-churn",
    "dtype-casts",
    "low-bandwidth",
    "low-flops",
    "small-grid",
    "low-occupancy",
    "no-tensor-cores",
    "misaligned-shapes",
    "unfused-attention",
    "kernel-variance",
    "optimizer-not-fused",
    "hotspot",
    "profiled-compilation",
    "nothing-ran",
    "cudagraph-input-copy",
    "compile-tax",
    "graph-break",
    "recompilation",
    "recompile-limit",
    "cudagraph-skipped",
    "eager-remainder",
    "autotune-overdue",
    "exposed-communication",
    "straggler",
    "collective-imbalance",
    "small-collectives",
    "activity-buffer",
    "final-sync",
    "dropped-events",
    "profiler-inflation",
    "too-few-steps",
]


def test_every_file_is_a_rule_and_every_promise_is_kept() -> None:
    assert sorted(rules()) == sorted(path.stem.replace("_", "-") for path in FILES)
    assert set(PROMISED) <= set(rules())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_rule_says_what_why_how_and_where_from(path: Path) -> None:
    rule = documentation()[path.stem.replace("_", "-")]
    assert rule.summary.endswith(".")
    assert list(rule.sections) == list(SECTIONS)
    assert all(len(text) > 15 for text in rule.sections.values())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_rule_is_pure(path: Path) -> None:
    imported: set[str] = set()
    calls: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add((node.module or "").split(".")[0])
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            calls.add(node.func.id)
    assert not imported & IMPURE
    assert not calls & {"open", "print", "input", "eval", "exec"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_rule_has_a_program_that_shows_it_and_its_fix(path: Path) -> None:
    case = CASES / path.stem.replace("_", "-")
    for side in ("before.py", "after.py"):
        module = ast.parse((case / side).read_text())
        assert ast.get_docstring(module)
        assert any(isinstance(node, ast.FunctionDef) and node.name == "build" for node in module.body)
