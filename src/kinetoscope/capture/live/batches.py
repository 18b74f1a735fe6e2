"""Steps of transformers' continuous batching, of whose batches nothing in a trace says what they hold.

They are named as vLLM names its own: requests, and sums over them of query tokens, key tokens, the squares of
the former and the products of both, of those whose prompt is read and of those that generate.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

from kinetoscope.capture.hooks.calls import hook

MODULE = "transformers.generation.continuous_batching.input_outputs"
PREFIX = "transformers_execute_"


def watch(begins: Callable[[str], None]) -> Callable[[], None] | None:
    """Call ``begins`` with the name of each batch as it is prepared; returns what ends that. None: this is
    not the code that was tried (transformers 5.17 and 5.24)."""
    owner = getattr(sys.modules[MODULE], "ContinuousBatchingIOs", None)
    if not hasattr(owner, "prepare_batch_tensors"):
        return None

    def prepared(_: Any, arguments: tuple[Any, ...], named: Any) -> None:
        begins(name(arguments[0] if arguments else named["requests_in_batch"]))

    return hook(owner, "prepare_batch_tensors", before=prepared)


def name(requests: Iterable[Any]) -> str:
    sums = {"context": [0] * 5, "generation": [0] * 5}
    for one in requests:
        past, queries = one.state.position_offset, one.query_length
        keys = past + queries
        own = sums["context" if past < len(one.state.initial_tokens) else "generation"]
        for place, number in enumerate((1, queries, keys, queries * queries, queries * keys)):
            own[place] += number
    return PREFIX + "_".join(
        f"{kind}_{n}(sq{q}sk{k}sqsq{qq}sqsk{qk})" for kind, (n, q, k, qq, qk) in sums.items()
    )
