"""Registers and spills: read off Inductor's autotuners as they are made, given to the kernels of the log."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kinetoscope.analysis.compiled.join import join
from kinetoscope.capture.compiler.compile_log import Launchers
from kinetoscope.compilation.generated.launchers import Loaded, LoadedConfiguration, decoder, fill
from kinetoscope.compilation.model import CompiledKernel
from kinetoscope.compilation.sources import load
from kinetoscope.sources.run import load as load_profile

FIXTURES = Path(__file__).parents[2] / "fixtures" / "h200_breaks"


class Autotuner:
    """What of CachingAutotuner (2.9 to 2.15) is read: a launcher a configuration, and one that is left."""

    def __init__(self, name: str, *configs: tuple[int, int, int], path: str = "/tmp/k.py") -> None:
        self.inductor_meta = {"kernel_name": name}
        self.fn = SimpleNamespace(__name__="triton_")
        self.filename = path
        self.configs = configs
        self.launchers: list[Any] = []

    def _make_launchers(self, worth: str = "nothing") -> str:
        self.launchers = [
            SimpleNamespace(
                config=SimpleNamespace(kwargs={"XBLOCK": block}, num_warps=4, num_stages=1),
                n_regs=registers,
                n_spills=spills,
                shared=64,
            )
            for block, registers, spills in self.configs
        ]
        return worth


def lines(path: Path) -> list[Loaded]:
    return [decoder.decode(line) for line in path.read_bytes().splitlines()]


def test_every_configuration_is_kept_and_the_one_that_is_left(tmp_path: Path) -> None:
    original = Autotuner._make_launchers
    watch = Launchers(Autotuner, tmp_path / "compile" / "rank0.kernels.jsonl")
    tuned, single = Autotuner("triton_a", (64, 32, 0), (128, 255, 40)), Autotuner("triton_b", (8, 16, 0))
    assert tuned._make_launchers("what it gave") == "what it gave"
    single._make_launchers()
    tuned.launchers = tuned.launchers[:1]
    watch.close()
    assert Autotuner._make_launchers is original
    rows = lines(watch.stream.path)
    assert [(row.kernel, row.final, len(row.launchers)) for row in rows[:2]] == [
        ("triton_a", False, 2),
        ("triton_b", False, 1),
    ]
    assert {(row.kernel, len(row.launchers)) for row in rows[2:] if row.final} == {
        ("triton_a", 1),
        ("triton_b", 1),
    }
    assert rows[0].launchers[1] == LoadedConfiguration(
        config={"XBLOCK": 128, "num_warps": 4, "num_stages": 1},
        registers=255,
        spills=40,
        shared_memory_bytes=64,
    )


def test_what_cannot_be_read_never_reaches_the_program(tmp_path: Path) -> None:
    watch = Launchers(Autotuner, tmp_path / "rank0.kernels.jsonl")
    strange = Autotuner("triton_a", (64, 32, 0))
    strange.inductor_meta = None  # type: ignore[assignment]
    assert strange._make_launchers("still works") == "still works"
    gone = Autotuner("triton_b", (64, 32, 0))
    gone._make_launchers()
    del gone
    watch.close()
    assert [row.kernel for row in lines(watch.stream.path)] == ["triton_b"]


def test_an_exception_of_the_compilers_own_is_the_programs(tmp_path: Path) -> None:
    class Failing(Autotuner):
        def _make_launchers(self, worth: str = "") -> str:
            raise RuntimeError("No valid triton configs")

    watch = Launchers(Failing, tmp_path / "rank0.kernels.jsonl")
    with pytest.raises(RuntimeError, match="No valid"):
        Failing("triton_a")._make_launchers()
    watch.close()
    assert not watch.stream.path.exists()


def kernel(name: str, path: str | None, **known: Any) -> CompiledKernel:
    empty: dict[str, Any] = dict.fromkeys(
        [
            "aot_id",
            "handle",
            "ops_basis",
            "source_basis",
            "size_hints",
            "bytes",
            "bytes_basis",
            "flops",
            "configs",
            "config",
            "autotune",
            "compile_us",
        ]
    )
    rest: dict[str, Any] = {
        **empty,
        "symbol": name,
        "category": "pointwise",
        "graph": 0,
        "frame": 0,
        "compile_id": "0/0",
        "direction": "inference",
        "language": "triton",
        "calls": 1,
        "aten_ops": (),
        "nodes": (),
        "source": (),
    }
    return CompiledKernel(name=name, path=path, **{**rest, **known})


def loaded(name: str, path: str, *launchers: tuple[int, int], final: bool = False) -> Loaded:
    return Loaded(
        kernel=name,
        path=path,
        final=final,
        launchers=tuple(
            LoadedConfiguration(config={"XBLOCK": r}, registers=r, spills=s) for r, s in launchers
        ),
    )


def test_kernels_find_theirs_by_file_then_by_a_name_that_is_unique() -> None:
    rows = [
        loaded("triton_a", "/cache/one.py", (32, 0), (255, 40)),
        loaded("triton_a", "/cache/two.py", (16, 0)),
        loaded("triton_b", "/cache/three.py", (8, 0), (9, 2)),
        loaded("triton_a", "/cache/one.py", (255, 40), final=True),
    ]
    first, second, unique, nobody = fill(
        [
            kernel("triton_a", "/elsewhere/one.py"),
            kernel("triton_a", None),  # two files have one of that name
            kernel("triton_b", None, config="XBLOCK=8"),
            kernel("triton_c", None),
        ],
        rows,
    )
    assert (first.registers, first.spills, first.config) == (255, 40, "XBLOCK=255")
    assert (first.configs, first.configs_that_spill) == (2, 1)
    assert (second.registers, second.spills, second.configs_that_spill) == (None, None, None)
    # Never run, so never chosen: the two disagree.
    assert (unique.registers, unique.config, unique.configs_that_spill) == (None, "XBLOCK=8", 1)
    assert nobody.configs is None


def test_a_kernel_that_spilled_on_an_h200(tmp_path: Path) -> None:
    """Its 256 × 256 sums on 128 threads do not fit: ptxas keeps 828 values a thread in local memory."""
    for suffix in (".log.gz", ".kernels.jsonl"):
        (tmp_path / f"spills{suffix}").write_bytes((FIXTURES / f"spills{suffix}").read_bytes())
    tiled, softmax = load(tmp_path / "spills.log.gz").kernels
    assert (tiled.name, tiled.registers, tiled.spills, tiled.shared_memory_bytes) == (
        "tiled_0",
        255,
        828,
        131072,
    )
    assert (softmax.registers, softmax.spills) == (24, 0)
    # What the trace says of the same kernels agrees.
    joined = join(load_profile(str(tmp_path / "spills.log.gz"), str(FIXTURES / "spills.json.gz")))
    assert joined is not None
    assert [(k.registers, k.spills) for k in joined.compilation.kernels] == [(255, 828), (24, 0)]


def test_a_line_cut_short_is_left_out(tmp_path: Path) -> None:
    log = tmp_path / "rank0.log"
    log.write_bytes(
        b'V1121 01:48:43.1 1 a.py:1] {"artifact": {"name": "torch_version", "encoding": "json"}}\n'
    )
    whole = json.dumps({"kernel": "triton_a", "launchers": []})
    (tmp_path / "rank0.kernels.jsonl").write_text(whole + "\n" + whole[:20])
    assert load(log).kernels == ()
