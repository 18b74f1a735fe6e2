"""Steps of a server without a device, by the host's clock: against the raw ops of the trace."""

from __future__ import annotations

from itertools import pairwise
from statistics import median
from typing import Any

import pytest

from kinetoscope.analysis.serving.table import serving
from kinetoscope.document.collect.steps import of_server
from kinetoscope.findings.registry import find
from kinetoscope.sources.run import LoadedRun
from kinetoscope.views.serving import summary
from serving_by_hand import exposed, union
from traces import Event, host, step, trace

LAYERS, HEADS, SIZE = 6, 4, 32


def served(*kinds: tuple[int, int]) -> list[Event]:
    """Calls of a model on the CPU, by requests and tokens of each: ops with 20 µs of Python between."""
    events: list[Event] = []
    at = 0.0

    def op(name: str, us: float, dims: list[Any], inside: str = "") -> None:
        nonlocal at
        events.append(host(name, at, us, **{"Input Dims": dims}))
        if inside:
            events.append(host(inside, at + 1, us - 2, **{"Input Dims": dims}))
        at += us + 20

    for number, (requests, tokens) in enumerate(kinds):
        began, rows = at, requests * tokens
        op("aten::embedding", 10, [[8000, 128], [requests, tokens], [], []])
        for _ in range(LAYERS):
            op("aten::linear", 40.0 * tokens, [[rows, 128], [128, 128]], "aten::mm")
            query = [requests, HEADS, tokens, SIZE]
            keys = [requests, HEADS, 64 + number, SIZE]
            op("aten::scaled_dot_product_attention", 30.0 * tokens, [query, keys, keys, [], [], [], []])
        op("aten::argmax", 5, [[requests, 8000], [], []])
        at += 300
        events.append(step(number, began, at - began))
    return events


DECODES = [(6, 1)] * 5


def test_the_table_is_what_the_ops_say() -> None:
    events = served(*DECODES)
    found = serving(LoadedRun((trace(*events),)))
    assert found is not None
    assert (found.on_host, found.phases_by, found.found_by) == (True, "shapes", "calls")
    (row,) = found.steps
    marks = [one for one in events if one["name"].startswith("ProfilerStep")]
    ops = [one for one in events if one["cat"] == "cpu_op" and one["name"] != "aten::mm"]
    work = [[op for op in ops if mark["ts"] <= op["ts"] < mark["ts"] + mark["dur"]] for mark in marks]
    first = [min(op["ts"] for op in own) for own in work]
    last = [max(op["ts"] + op["dur"] for op in own) for own in work]
    assert (row.phase, row.n, row.requests, row.query_tokens, row.kernels) == (
        "decode",
        5,
        6,
        6,
        len(work[0]),
    )
    assert row.span_us == pytest.approx(median(b - a for a, b in zip(first, last, strict=True)))
    assert row.busy_us == pytest.approx(median(map(union, work)))
    assert row.period_us is not None
    assert row.period_us.median == pytest.approx(median(b - a for a, b in pairwise(first)))
    assert row.tokens_per_s == pytest.approx(6e6 / row.period_us.median)
    idle = sum(b - a - union(own) for a, b, own in zip(first, last, work, strict=True))
    between = sum(b - a for a, b in zip(last, first[1:], strict=False))
    assert row.exposed_idle_us == pytest.approx((idle + between) / 5)
    parts = {"aten::linear": "matmul", "aten::scaled_dot_product_attention": "attention"}
    truth = exposed(
        work[0], lambda one: parts.get(one["name"], "sampling" if "argmax" in one["name"] else "other")
    )
    assert {one.category: one.us for one in row.exposed} == pytest.approx(truth)


def test_prefill_and_decode_are_told_apart() -> None:
    found = serving(LoadedRun((trace(*served((1, 16), *[(1, 1)] * 4, (1, 20), *[(1, 1)] * 4)),)))
    assert found is not None
    assert {row.phase: (row.n, row.requests) for row in found.steps} == {"decode": (8, 1), "prefill": (1, 1)}
    said = summary(found, 2)
    assert "Decode at batch 1 runs ops for" in said
    assert "host is hidden" not in said
    assert "busy" not in said


def test_heads_that_share_a_key_are_no_tokens() -> None:
    """transformers folds the heads of a group into the queries where a batch is padded: six requests that
    decode attended from twelve tokens, and were no step of a server."""
    events = served(*DECODES)
    for one in events:
        if "attention" in one["name"]:
            keys = one["args"]["Input Dims"][1]
            folded = [6, HEADS // 2, 2, SIZE]
            one["args"]["Input Dims"] = [folded, [6, HEADS // 2, *keys[2:]], [], [6, 1, 1, keys[2]], [], []]
    found = serving(LoadedRun((trace(*events),)))
    assert found is not None
    assert [(row.phase, row.requests) for row in found.steps] == [("decode", 6)]


def test_what_reads_all_its_tokens_is_no_server() -> None:
    assert serving(LoadedRun((trace(*served(*[(8, 16)] * 5)),))) is None
    training = host("autograd::engine::evaluate_function: MmBackward0", 5e6, 5)
    assert serving(LoadedRun((trace(*served(*DECODES), training),))) is None


def test_prompts_of_requests_in_turn_stall_none() -> None:
    """One request at a time: while a prompt is read no other request waits for a token."""
    in_turn = [kind for _ in range(4) for kind in ((1, 24), (1, 1), (1, 1), (1, 1))]
    run = LoadedRun((trace(*served(*in_turn)),))
    assert "prefill-stall" not in {one.rule for one in find(run)}
    found = of_server(run)
    assert found is not None
    assert found.findings == []
    together = [kind for n in range(4) for kind in ((1, 24), *[(n + 1, 1)] * 3)]
    assert "prefill-stall" in {one.rule for one in find(LoadedRun((trace(*served(*together)),)))}


def test_no_rule_takes_ops_for_kernels() -> None:
    """Ops are rows of the host's table: a rule that shortens kernels would look them up among a device's."""
    events = served(*DECODES)
    for one in list(events):
        if "attention" in one["name"]:
            shapes = {"Input Dims": [[[6, HEADS, 999, SIZE], [6, HEADS, 1, SIZE]], []]}
            events.append(host("aten::cat", one["ts"] - 15, 10) | {"args": shapes})
    assert {one.rule for one in find(LoadedRun((trace(*events),)))}.isdisjoint({"kv-gather", "decode-gap"})


@pytest.mark.parametrize(
    ("tokens", "sampled", "said"),
    [
        (5, [5, 8000], ("decode", 5.0, 5.0)),
        (36, [4, 8000], ("mixed", None, 36.0)),
        (36, [1, 8000], ("prefill", 1.0, 36.0)),
        (36, [8000], ("prefill", 1.0, 36.0)),  # gpt-fast has logits of all tokens, and samples one
        (36, [4, 128], ("prefill", 1.0, 36.0)),  # of something else
    ],
)
def test_a_row_of_several_requests_is_told_by_what_is_sampled(
    tokens: int, sampled: list[int], said: tuple[str, float | None, float]
) -> None:
    """transformers' continuous batching packs all tokens of a step into one row: five requests that decode
    were called a prompt of five tokens, and a prompt with three that decode one of 36."""
    events = served(*[(1, 1)] * 4, *[(1, tokens)] * 4)
    decoding = [one for one in events if one["name"] == "aten::argmax"]
    for one in decoding[4:]:
        one["args"]["Input Dims"] = [sampled, [], []]
    found = serving(LoadedRun((trace(*events),)))
    assert found is not None
    packed = [row for row in found.steps if row.query_tokens == tokens]
    assert [(row.phase, row.requests, row.query_tokens) for row in packed] == [said]
