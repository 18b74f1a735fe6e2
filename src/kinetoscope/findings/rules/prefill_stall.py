"""Requests that generate wait for another request's prompt.

What it finds
    Steps that read prompts between two steps that generate tokens, and take longer than those.

Why it is slow
    All running requests wait for it: their next token comes as much later. Users see text that stops and
    goes on; the time per token at the ninth decile is many times the median.

How it decides
    The time of prefill steps between two steps that generate, of which a request is in both, where that is
    as long as a token that waits for none takes, or longer. Throughput does not change by it, so nothing is
    promised.

What to do
    Read prompts in smaller pieces, with the running requests in the same step: chunked prefill (vLLM
    ``--max-num-batched-tokens``, SGLang ``--chunked-prefill-size`` and ``--enable-mixed-chunk``). Or prefill
    on other devices than those that decode.

Source
    Sarathi-Serve (Agrawal and others, 2024): stall-free batching.
"""

from kinetoscope.analysis.serving.client import tokens
from kinetoscope.analysis.serving.parts import parted
from kinetoscope.analysis.serving.steps import marks, steps
from kinetoscope.findings.rule import *

PIECES = {
    "vLLM": "--max-num-batched-tokens",
    "SGLang": "--chunked-prefill-size, --enable-mixed-chunk",
    "TensorRT-LLM": "enable_chunked_prefill, max_num_tokens",
    "ATOM": "--max-num-batched-tokens",
}
USUAL = 2  # tokens that wait for none, to compare with


def find(view: RankView) -> Findings:
    if marks(view.trace).table.is_empty():
        return
    each = tokens(view.trace)
    waits = pl.col("stayed").fill_null(1) > 0  # of requests in turn none waits for another's prompt
    stalled, usual = each.filter(waits, pl.col("prefill_ns") > 0), each.filter(pl.col("prefill_ns") == 0)
    if stalled.is_empty() or len(usual) < USUAL:
        return
    waited, whole_us, usual_us = (
        whole(median) / 1000
        for median in (
            stalled["prefill_ns"].median(), stalled["whole_ns"].median(), usual["whole_ns"].median()
        )
    )  # fmt: skip
    if waited < usual_us:
        return
    prompts = steps(view.trace).filter(phase="prefill")
    work = parted(view.trace).filter(pl.col("step").is_in(prompts["step"].implode()))
    yield Finding(
        title=f"{len(stalled)} of {len(each)} tokens wait {numbers.time(waited)} for a prefill: such a token "
        f"takes {numbers.time(whole_us)} instead of {numbers.time(usual_us)}",
        affected_us=view.us_of(stalled, "prefill_ns"),
        saving=savings.nothing("the same work in another order: tokens come more evenly, not more of them"),
        at_least="low",
        evidence=[evidence.of(view, f"{len(prompts)} steps that read prompts", work)],
        advice="Read prompts in smaller pieces together with the requests that generate"
        f"{asked(view, PIECES)}, or on other devices.",
        by_phase={"prefill": 1.0},
    )
