"""The server: what it offers, how little of a context that takes, and that it answers as the command does."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import subprocess
import sys
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from command import ENVIRONMENT, ROOT
from command import kinetoscope as command
from kinetoscope.agents import answers, questions
from kinetoscope.agents.library import Library
from kinetoscope.cli.mcp import VALUES

# Imported where it is used: it takes two seconds, and every worker collects this file.
pytestmark = pytest.mark.skipif(importlib.util.find_spec("mcp") is None, reason="mcp is not installed")
CASES = ROOT / "tests" / "cases"
BEFORE = CASES / "launch-gap" / "before.json.gz"
READ_ONLY = {"overview", "findings", "evidence", "query", "diff"}


def finished(call: Coroutine[Any, Any, Any]) -> Any:
    """Wait for a call of the server in another thread: in this one a browser's tests leave a loop running."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, call).result()


def tools(*, allow_run: bool) -> dict[str, dict[str, Any]]:
    from kinetoscope.agents.server import server

    made = server(Library([CASES], allow_run=allow_run))
    listed = finished(made.list_tools())
    return {tool.name: tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in listed}


def test_programs_run_only_where_the_user_allowed_it() -> None:
    reading = tools(allow_run=False)
    assert set(reading) == READ_ONLY
    assert all(tool["annotations"]["readOnlyHint"] for tool in reading.values())
    running = tools(allow_run=True)
    assert set(running) == {*READ_ONLY, "prove"}
    assert not running["prove"]["annotations"]["readOnlyHint"]


def test_all_descriptions_take_less_than_2500_tokens() -> None:
    from kinetoscope.agents.server import INSTRUCTIONS

    everything = [*tools(allow_run=True).values(), INSTRUCTIONS]
    assert answers.tokens(json.dumps(everything)) < 2500


def test_the_command_takes_what_the_tools_take() -> None:
    taken = {name: set(tool["inputSchema"]["properties"]) for name, tool in tools(allow_run=True).items()}
    assert {name: names - {"cursor"} for name, names in taken.items()} == {
        name: set(names) for name, names in VALUES.items()
    }


def test_a_call_gives_what_the_command_prints() -> None:
    from kinetoscope.agents.server import SCHEMA, server

    made = server(Library([CASES]))
    result = finished(made.call_tool("findings", {"recording": str(BEFORE)}))
    (content,) = getattr(result, "content", result)
    assert content.text == command("mcp", "--root", CASES, "findings", f"recording={BEFORE}").stdout.strip()
    (read,) = getattr(schema := finished(made.read_resource(SCHEMA)), "contents", schema)
    assert getattr(read, "text", None) or read.content == questions.schema()


def test_it_speaks_on_stdin_and_stdout_alone() -> None:
    messages = [
        {
            "jsonrpc": "2.0", "id": 1, "method": "initialize",
            "params": {
                "protocolVersion": "2025-06-18", "capabilities": {},
                "clientInfo": {"name": "test", "version": "1"},
            },
        },
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {
            "jsonrpc": "2.0", "id": 2, "method": "tools/call",
            "params": {"name": "overview", "arguments": {"recording": str(BEFORE)}},
        },
    ]  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-m", "kinetoscope", "mcp", "--root", str(CASES)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=ENVIRONMENT, text=True,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        for message in messages:
            process.stdin.write(json.dumps(message) + "\n")
        process.stdin.flush()
        first, second = (json.loads(process.stdout.readline()) for _ in range(2))
        process.stdin.close()
        assert process.stdout.read() == ""
    assert first["result"]["serverInfo"]["name"] == "kinetoscope"
    text = second["result"]["content"][0]["text"]
    assert json.loads(text)["recordings"][0]["path"] == str(BEFORE)
