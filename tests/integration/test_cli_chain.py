"""``kinetoscope kernels --chain`` as a user types it."""

from __future__ import annotations

import json

from command import RECORDING, SMALL, kinetoscope, refused


def test_the_founding_articles_chain_as_a_tree():
    done = kinetoscope("kernels", SMALL, "--chain", "nvjet")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    names = ["ProfilerStep#", "matmul_add", "aten::matmul", "aten::mm", "cuLaunchKernelEx", "nvjet_tst"]
    rows = [next(i for i, line in enumerate(lines) if f"{name}" in line and i > 1) for name in names]
    assert rows == list(range(rows[0], rows[0] + 6))
    indents = [len(lines[row]) - len(lines[row].lstrip(" └─")) for row in rows]
    assert indents == [0, 3, 6, 9, 12, 15]
    assert "launch latency " in done.stdout


def test_the_document_has_every_chain_with_its_times():
    document = json.loads(kinetoscope("kernels", RECORDING, "--chain", "triton_red*", "--json").stdout)
    rows = json.loads(kinetoscope("kernels", RECORDING, "--json").stdout)["kernels"]
    rows = [row for row in rows if row["name"].startswith("triton_red")]
    assert document["launches"] == sum(row["launches"] for row in rows)
    assert sum(one["launches"] for one in document["chains"]) == document["launches"]
    for one in document["chains"]:
        assert one["links"][-1]["name"] == one["kernel"]
        assert 0 <= one["queue_delay_us"]["median"] <= one["latency_us"]["median"] <= one["latency_us"]["p90"]
    backward = [one for one in document["chains"] if one["forward"]]
    assert backward
    assert all(one["forward"][-1]["name"] == "CompiledFunction" for one in backward)


def test_the_limit_says_what_it_leaves_out():
    done = kinetoscope("kernels", RECORDING, "--chain", "triton", "--limit", "2")
    total = len(json.loads(kinetoscope("kernels", RECORDING, "--chain", "triton", "--json").stdout)["chains"])
    assert done.stdout.rstrip().endswith(f"… and {total - 2} chains more")


def test_names_are_shown_not_obeyed(tmp_path):
    evil = "[red]k[/red]\x1b[2J"
    events = [
        {"ph": "X", "cat": "user_annotation", "name": f"{evil} step", "pid": 1, "tid": 1, "ts": 0, "dur": 50},
        {
            "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1,
            "ts": 1, "dur": 2, "args": {"correlation": 1},
        },
        {
            "ph": "X", "cat": "kernel", "name": evil, "pid": 0, "tid": 7, "ts": 5, "dur": 3,
            "args": {"device": 0, "stream": 7, "correlation": 1},
        },
    ]  # fmt: skip
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps({"traceEvents": events}))
    done = kinetoscope("kernels", trace, "--chain", "[red]", "--limit", "0")
    assert done.stdout.count("[red]k[/red][2J") == 2
    assert "\x1b" not in done.stdout


def test_a_name_that_nothing_has_is_refused():
    refused(kinetoscope("kernels", SMALL, "--chain", "no such kernel"), 2, "no such kernel")
    done = kinetoscope("kernels", SMALL, "--chain", "nvjet", "--by", "op")
    assert done.returncode == 2
