"""Code out of a recording runs as it was when this user made it or agreed to it; otherwise bench asks."""

from __future__ import annotations

import gzip
import io
import shutil
import sys
from pathlib import Path

import pytest

from kinetoscope import cli
from kinetoscope.bench import request
from kinetoscope.bench.kernels import generated
from kinetoscope.errors import InputError, TooLargeError
from kinetoscope.recording import folder, manifest, trust
from kinetoscope.recording.manifest import Environment, Manifest


@pytest.fixture(autouse=True)
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    return tmp_path / "settings" / "kinetoscope"


@pytest.fixture
def stranger(tmp_path: Path) -> Path:
    """A recording that somebody else made, with generated code and inputs."""
    home = tmp_path / "recording"
    files = {"generated/sub/a.py": "AsyncCompile() # async_compile", "inputs/rank0.json": "{}"}
    for name, text in files.items():
        (home / name).parent.mkdir(parents=True)
        (home / name).write_text(text)
    made = Manifest(
        command=("python", "x\x1b]52;c;aGk=\x07.py"),
        environment=Environment(host="elsewhere"),
        created="2026-01-02T03:04:05+00:00",
        exit="ok",
    )
    manifest.write(home, made)
    return home


class Ran(Exception):
    pass


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(_: object) -> None:
        raise Ran

    monkeypatch.setattr(request, "ask", run)
    monkeypatch.setenv(cli.DEBUG, "1")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def bench(*words: object) -> bool:
    """Whether code was run."""
    try:
        assert cli.main(["bench", *map(str, words)]) == 3
    except Ran:
        return True
    return False


def test_a_strangers_code_is_refused_where_nobody_can_be_asked(
    stranger: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    assert not bench(stranger)
    said = capsys.readouterr().err
    for word in ("as you", "2 files", "elsewhere", "2026-01-02", "--trust", str(stranger)):
        assert word in said
    assert "\x1b" not in said
    assert "\x07" not in said


@pytest.mark.parametrize(("answer", "runs"), [("y\n", True), ("Yes\n", True), ("\n", False), ("", False)])
def test_on_a_terminal_it_is_asked_for_once(
    answer: str, runs: bool, stranger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    assert bench(stranger) is runs
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    assert bench(stranger) is runs


def test_a_module_alone_is_asked_for_too(stranger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert not bench(stranger / "generated" / "sub" / "a.py")
    assert bench("--trust", stranger / "generated" / "sub" / "a.py")
    assert not bench(stranger)


def test_own_recordings_are_known_until_their_code_changes(stranger: Path, tmp_path: Path) -> None:
    """Wherever they are moved to, and whatever is measured beside them."""
    folder.finish(stranger, exit="ok", status=0, alone=True)
    moved = stranger.rename(tmp_path / "moved")
    (moved / "bench").mkdir()
    (moved / "bench" / "kernels-1.json").write_text("{}")
    assert bench(moved)
    for change in (
        lambda home: (home / "generated/sub/a.py").write_text("AsyncCompile() # async_compile, and more"),
        lambda home: (home / "generated/sub/b.py").write_text(""),
        lambda home: (home / "generated/sub/a.py").rename(home / "generated/a.py"),
        lambda home: (home / "inputs/rank0.bin").write_bytes(b"\1"),
        lambda home: shutil.rmtree(home / "inputs"),
        lambda home: (home / trust.FILE).write_text("00" * 32),
        lambda home: (home / trust.FILE).unlink(),
    ):
        copy = shutil.copytree(moved, tmp_path / "copy")
        assert trust.is_known(copy)
        change(copy)
        assert not trust.is_known(copy)
        shutil.rmtree(copy)


def test_another_users_signature_says_nothing(stranger: Path, settings: Path) -> None:
    trust.sign(stranger)
    assert (settings / "key").stat().st_mode & 0o777 == 0o600
    (settings / "key").unlink()
    assert not trust.is_known(stranger)
    trust.sign(stranger)
    assert trust.is_known(stranger)


@pytest.mark.parametrize("key", [b"", b"short", None])
def test_without_a_key_nothing_is_known(stranger: Path, settings: Path, key: bytes | None) -> None:
    """The folder of settings may be no folder, the key a file that a full disk cut."""
    trust.sign(stranger)
    if key is None:
        shutil.rmtree(settings)
        settings.write_text("")
        trust.sign(stranger)
    else:
        (settings / "key").write_bytes(key)
    assert not trust.is_known(stranger)


def test_the_measuring_process_imports_nothing_from_where_it_is_started(tmp_path: Path) -> None:
    import subprocess

    (tmp_path / "msgspec.py").write_text("print('run')")
    done = subprocess.run(
        request.command(tmp_path / "no", tmp_path / "none"),
        cwd=tmp_path,
        env=request.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert "FileNotFoundError" in done.stderr
    assert done.stdout == ""


def test_a_trace_holds_no_code_to_be_asked_about(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "trace.json.gz"
    trace.write_bytes(gzip.compress(b'{"traceEvents": []}'))
    assert not bench(trace)
    assert "no module that Inductor generated" in capsys.readouterr().err


def test_a_packed_module_that_is_damaged_is_refused_and_so_is_one_that_packs_as_none_does(
    tmp_path: Path,
) -> None:
    module = tmp_path / "module.py.gz"
    module.write_bytes(b"\x1f\x8b\x08\x00 cut")
    with pytest.raises(InputError, match="no module that Inductor generated"):
        generated.find(module)
    module.write_bytes(gzip.compress(b"AsyncCompile() # async_compile" + b"a" * (100 << 20), 1))
    with pytest.raises(TooLargeError):
        generated.find(module)
