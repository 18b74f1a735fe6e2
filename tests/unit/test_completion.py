"""Shells complete verbs and options: the script for bash is run, by bash."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from kinetoscope.cli import VERBS, main


def script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["kinetoscope", "ker"], ["kernels"]),
        (["kinetoscope", "diff", "--fail"], ["--fail-on"]),
        (["kinetoscope", "kernels", "REC", "--by", "an"], ["annotation"]),
        (["kinetoscope", "completion", "z"], ["zsh"]),
        (["kinetoscope", "kernels", "REC"], []),  # files, as bash has them
    ],
)
def test_bash_completes(words: list[str], expected: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    quoted = " ".join(f"'{word}'" for word in words)
    asked = f"COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _kinetoscope; echo ${{COMPREPLY[@]}}"
    ran = subprocess.run(
        ["bash", "--norc", "-c", f"{script('bash', capsys)}\n{asked}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.split() == expected


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_verb_is_completed(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = script(shell, capsys)
    assert all(verb in text for verb in VERBS)
