"""The example of a server: what overlaps gives the same tokens, and its client writes what we read."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from command import ROOT
from kinetoscope.sources import client

EXAMPLE = ROOT / "examples" / "serve.py"


@pytest.fixture(scope="module")
def serve() -> ModuleType:
    pytest.importorskip("torch")
    spec = importlib.util.spec_from_file_location("serve", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["serve"] = module
    spec.loader.exec_module(module)
    return module


def tokens_of(serve: ModuleType, *, overlap: bool) -> list[list[int]]:
    """Tokens of requests of several lengths, by an engine whose steps are taken one by one."""
    import torch

    torch.manual_seed(0)
    engine = serve.Engine(serve.Llama(2, 32, 4, 500).eval(), "cpu", graphs=False, overlap=overlap)
    requests = [serve.Request([n + 1, 7 * n + 2, 3], 3 + n % 4) for n in range(7)]
    with torch.no_grad():
        for request in requests:
            engine.prefill(request)
            engine.decode()
        while engine.running:
            engine.decode()
        engine.read()
    assert all(request.done.is_set() for request in requests)
    return [request.tokens for request in requests]


def test_overlapping_steps_give_the_same_tokens(serve: ModuleType) -> None:
    plain = tokens_of(serve, overlap=False)
    assert [len(tokens) for tokens in plain] == [3 + n % 4 for n in range(7)]
    assert tokens_of(serve, overlap=True) == plain


def test_the_client_writes_what_steps_reads(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    result = tmp_path / "client.json"
    small = ("--requests=4", "--at-once=2", "--tokens=6", "--layers=1", "--width=32", "--device=cpu")
    subprocess.run(
        [sys.executable, str(EXAMPLE), *small, "--overlap", f"--result={result}"], check=True, timeout=300
    )
    found = client.read(result)
    assert found.requests == 4
    assert found.token_us > 0
    assert found.tokens_per_s is not None
