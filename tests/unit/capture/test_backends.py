"""Backends by name: what each needs, found out without importing any of them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from kinetoscope import cli
from kinetoscope.bench.tune.inject import Injection
from kinetoscope.bench.tune.settings import Setting
from kinetoscope.capture.compiler import backends
from kinetoscope.capture.torch_private import backend_of
from kinetoscope.compilation.sources import load


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that packages can be put into; importing one of them is an error."""
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def install(folder: Path, name: str, *inner: str) -> None:
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text("raise AssertionError('imported')\n")
    for part in inner:
        (folder / name / part).mkdir()


def test_a_package_is_seen_without_importing_it(packages: Path) -> None:
    openvino = backends.known("openvino")
    assert openvino is not None
    if openvino.installed:
        pytest.skip("OpenVINO is installed here")
    assert openvino.needs == "pip install openvino"
    install(packages, "openvino")
    assert (openvino.installed, openvino.needs) == (True, "")
    assert "openvino" not in sys.modules


def test_a_release_without_what_torch_calls_is_not_enough(packages: Path) -> None:
    tvm = backends.known("tvm")
    assert tvm is not None
    install(packages, "tvm")
    assert not tvm.installed
    assert "no Relay" in tvm.needs
    (packages / "tvm" / "relay").mkdir()
    assert tvm.installed


def test_what_torch_registers_no_more_cannot_be_fixed() -> None:
    gone = backends.known("onnxrt")
    assert gone is not None
    assert not gone.installed
    assert "no more" in gone.needs


def test_torchs_own_are_those_that_this_torch_lists() -> None:
    dynamo = pytest.importorskip("torch._dynamo")
    listed = dynamo.list_backends(exclude_tags=())
    own = {b.name for b in backends.BACKENDS if b.package is None and not b.gone}
    assert own <= {*listed}
    assert not {b.name for b in backends.BACKENDS if b.gone} & {*listed}


def test_doctor_lists_every_backend(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    assert cli.main(["doctor", "--json"]) == 0
    checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
    for backend in backends.BACKENDS:
        assert f"backend {backend.name}" in checks
    assert checks["backend inductor"]["state"] == "ok"


def test_tune_refuses_what_is_not_here_and_says_what_is_needed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "program.py"
    program.write_text("")
    assert cli.main(["tune", "--backends", "onnxrt", str(program)]) == 2
    said = capsys.readouterr().err
    assert "onnxrt cannot be used here" in said
    assert "kinetoscope doctor" in said


def test_a_backend_that_registers_itself_is_imported_before_it_is_named(
    packages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    (packages / "torch_tensorrt.py").write_text("REGISTERED = True\n")
    monkeypatch.delitem(sys.modules, "torch_tensorrt", raising=False)
    setting = Setting(mode="default", backend="tensorrt")
    assert setting.lines()[0].startswith("import torch_tensorrt")
    given: dict[str, Any] = {}

    def compile_(model: Any, **named: Any) -> Any:
        assert sys.modules["torch_tensorrt"].REGISTERED
        given.update(named)
        return model

    monkeypatch.setattr(torch, "compile", compile_)
    injection = Injection(setting, lambda *_: None, lambda *_: None)
    injection.install()
    # Inductor's mode and options are not another backend's.
    injection.made(lambda x: x, mode="max-autotune", options={"a": 1})
    assert given == {"backend": "tensorrt"}


def test_the_compilers_that_dynamo_is_given() -> None:
    torch = pytest.importorskip("torch")
    from torch._dynamo.eval_frame import get_compiler_fn

    def mine(graph: Any, inputs: Any) -> Any:
        return graph.forward

    class Splitter:
        backend_compile_fn = staticmethod(get_compiler_fn(mine))

        def compile_fn(self, graph: Any, inputs: Any) -> Any: ...

    wrapped = torch._TorchCompileWrapper("aot_eager", "reduce-overhead", {"depth": 3}, None)
    inductor = torch._TorchCompileInductorWrapper("max-autotune", None, None)
    assert backend_of(get_compiler_fn(wrapped)) == {
        "backend": "aot_eager",
        "module": "torch._dynamo.backends.debugging",
        "mode": "reduce-overhead",
        "options": {"depth": "3"},
    }
    told = backend_of(get_compiler_fn(inductor))
    assert (told["backend"], told["options"]["max_autotune"]) == ("inductor", True)
    assert backend_of(mine)["backend"].endswith("mine")
    # DistributedDataParallel's splitter stands in front of the backend.
    assert backend_of(Splitter().compile_fn)["backend"].endswith("mine")


def test_an_h200s_recording_names_every_frames_backend() -> None:
    log = Path(__file__).parents[2] / "fixtures" / "h200_breaks" / "backends.log.gz"
    frames = load(log).frames
    assert [(f.backend, f.mode, f.cudagraphs) for f in frames] == [
        ("eager", "none", "off"),
        ("aot_eager", "none", "off"),
        ("inductor", "default", "off"),
        ("mine", "none", "off"),
        ("cudagraphs", "none", "used"),
    ]
    reasons = load(log).recompilations
    assert all("call torch.compile once" in row.advice for row in reasons)
