"""A client's measurements of a server: the JSON that benchmarks write.

``vllm bench serve --save-result`` writes one object, ``sglang.bench_serving --output-file`` appends a line;
both have the same names for their figures (``vllm/benchmarks/serve.py``, ``sglang/bench_serving.py``), and
TensorRT-LLM's ``benchmark_serving`` too. AIPerf's export, and GenAI-Perf's, hold an object a figure, with its
unit and statistics.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, cast

import msgspec

from kinetoscope.errors import InputError


class ClientTimes(msgspec.Struct, frozen=True, kw_only=True):
    """A benchmark of a server; what its file does not say is null."""

    file: str
    requests: int | None = None  # that were answered
    token_us: float  # time for a token after a request's first, at the mean over requests
    tokens_per_s: float | None = None  # generated tokens of all requests in a second
    # of a request, where a step may accept several drafted ones (SGLang ``accept_length``, vLLM
    # ``spec_decode_acceptance_length``)
    tokens_per_step: float | None = None


def read(path: Path) -> ClientTimes:
    """The last result in a file. Raises InputError where it cannot be read, or holds no time per token."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read: {error}", where=str(path)) from error
    result = _result(text)
    result = {**result, **_of_aiperf(result)}
    # Older versions of SGLang's wrote no other time than that between tokens.
    names = ("mean_tpot_ms", "mean_itl_ms", "median_itl_ms")
    found = next((value for name in names if (value := _number(result, name)) is not None), None)
    if found is None:
        raise InputError(
            "it holds no time per token (mean_tpot_ms)",
            where=str(path),
            hint="`vllm bench serve --save-result`, `sglang.bench_serving --output-file`, `aiperf` write one",
        )
    requests = _number(result, "completed")
    return ClientTimes(
        file=str(path),
        requests=None if requests is None else round(requests),
        token_us=1000 * found,
        tokens_per_s=_number(result, "output_throughput"),
        tokens_per_step=_number(result, "accept_length") or _number(result, "spec_decode_acceptance_length"),
    )


# AIPerf's figures, by the name and statistic of each, as the other benchmarks call them.
AIPERF = {
    "mean_tpot_ms": ("inter_token_latency", "avg"),
    "output_throughput": ("output_token_throughput", "avg"),
    "completed": ("request_count", "avg"),
}
MILLISECONDS = {"ns": 1e-6, "us": 1e-3, "ms": 1.0, "s": 1e3, "sec": 1e3}


def _of_aiperf(result: dict[str, Any]) -> dict[str, float]:
    """Figures of AIPerf's export under the names of the others; empty of another file."""
    found: dict[str, float] = {}
    for name, (metric, statistic) in AIPERF.items():
        known = result.get(metric)
        if isinstance(known, dict) and (value := _number(cast(dict[str, Any], known), statistic)) is not None:
            unit = str(cast(dict[str, Any], known).get("unit", "ms"))
            found[name] = value * MILLISECONDS.get(unit, 1.0)
    return found


def _result(text: str) -> dict[str, Any]:
    """The object of a file, of its last line that is one, or the last of a list; else an empty one."""
    for part in (text, *reversed(text.splitlines())):
        try:
            found = json.loads(part)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, list) and found:  # of a sweep
            found = cast(list[Any], found)[-1]
        if isinstance(found, dict):
            return cast(dict[str, Any], found)
    return {}


def _number(result: dict[str, Any], name: str) -> float | None:
    """A finite positive number, or None."""
    value = result.get(name)
    known = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf
    return float(value) if known and value is not None else None
