"""Which of the program's files are kept beside its trace."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import msgspec
import pytest

from kinetoscope.capture.process import source
from kinetoscope.recording.manifest import Program


def written(path: Path, text: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(path)


def test_the_program_s_own_modules_and_what_was_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = written(tmp_path / "model.py", "LAYERS = 3  # größer\n")
    spec = importlib.util.spec_from_file_location("model_of_this_test", own)
    assert spec is not None
    monkeypatch.setitem(sys.modules, spec.name, importlib.util.module_from_spec(spec))
    installed = written(tmp_path / "site-packages" / "timm" / "layer.py", "def forward(x): ...\n")
    script = written(tmp_path / "train.py", "import model\n")
    not_python = written(tmp_path / "weights.bin", "secret")
    named = [installed, not_python, json.__file__, str(tmp_path / "gone.py"), "<frozen os>"]
    log = tmp_path / "rank0.log"
    lines = [
        f'V1121 02:13:20.6 1060 torch/_logging/structured.py:28] {{"str": ["{path}", 1]}}' for path in named
    ]
    log.write_text("\n".join([*lines, 'payload of a graph] {"str": ["no json']))

    assert source.keep(tmp_path, 0, [script], log) == "program/rank0.json"
    files = msgspec.json.decode((tmp_path / "program" / "rank0.json").read_bytes(), type=Program).files
    assert next(iter(files)) == script
    assert {path: files[path] for path in files if path.startswith(str(tmp_path))} == {
        path: Path(path).read_text() for path in (script, own, installed)
    }
    assert not [path for path in files if path in (json.__file__, msgspec.__file__, source.__file__)]


def test_modules_that_are_imported_lazily_are_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = written(tmp_path / "lazy.py", "raise RuntimeError('it is imported')\n")
    spec = importlib.util.spec_from_file_location("lazy_of_this_test", own)
    assert spec is not None
    assert spec.loader is not None
    loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    monkeypatch.setitem(sys.modules, "none_of_this_test", None)  # type: ignore[arg-type]
    loader.exec_module(module)
    source.keep(tmp_path, 0, [], None)
    assert type(module) is not type(sys)  # once it is imported it is a module as any other


def test_no_more_is_kept_than_a_page_can_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "MOST", 100)
    small, large = written(tmp_path / "a.py", "a" * 90), written(tmp_path / "b.py", "b" * 20)
    source.keep(tmp_path, 0, [small, large], None)
    files = msgspec.json.decode((tmp_path / "program" / "rank0.json").read_bytes(), type=Program).files
    assert small in files
    assert large not in files


def test_what_inductor_writes_is_not_the_program_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert source.is_own("/home/me/train.py")
    assert not source.is_own("/tmp/torchinductor_me/cp/ccp33gsdoh6id7lluk3qyhozzgrcfnwcmc.py")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    assert not source.is_own(str(tmp_path / "cp" / "ccp33.py"))
