"""The steps of serving engines, by the annotations that each writes around them.

An engine's step is one pass of its scheduler's batch: prefill, decode, or both; with speculative decoding the
verification of drafted tokens, and the drafting. Sources: vLLM ``v1/worker/gpu_worker.py``, SGLang
``srt/utils/profile_utils.py`` and ``ForwardMode``, TensorRT-LLM ``_torch/pyexecutor/py_executor.py``, ATOM
``model_engine/run_labels.py``, xDiT as TraceLens reads it.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Literal, NamedTuple

STEP = r"^ProfilerStep(#|\*)"  # of a program without an engine, by torch's profiler
Phase = Literal["prefill", "decode", "mixed", "verify", "draft", "diffusion", "idle"]


class EngineStep(NamedTuple):
    """A step as its annotation describes it; None where it does not say."""

    engine: str  # vLLM, SGLang, TensorRT-LLM, ATOM, xDiT, transformers
    phase: Phase
    context_requests: int | None = None  # whose prompt is read
    generation_requests: int | None = None
    query_tokens: int | None = None  # that are computed in the step
    kv_tokens: int | None = None  # that attention reads
    # of a query and a key token that it attends to, itself and those before it, of all requests: its work
    attention_pairs: int | None = None
    padded: int | None = None  # the batch that the step was padded to

    @property
    def requests(self) -> int | None:
        known = [n for n in (self.context_requests, self.generation_requests) if n is not None]
        return sum(known) if known else None


_SUMS = r"(?:(sq\d+sk\d+sqsq\d+sqsk\d+)|(\d+))"
# vLLM's, which our recorder writes for transformers' continuous batching too (see ``capture.live.batches``).
_VLLM = re.compile(rf"(transformers_)?execute_(?:\d+_)?context_(\d+)\({_SUMS}\)_generation_(\d+)\({_SUMS}\)$")
_VLLM_UNTIL_0_12 = re.compile(r"execute_new_(\d+)_cached_(\d+)$")
_SGLANG = re.compile(r"step\[([A-Z][A-Z_0-9]*)((?: [^\]]*)?)\]$")
_TENSORRT = re.compile(
    r"(?:\[Executor\] )?_forward_step(?: \d+)?: (\d+) ctx reqs,(?: (\d+) ctx tokens,)? (\d+) gen reqs"
)
_DRAFTS = r"(?:propose_\w+|draft(?:_kv)?|dspark(?:_ctx_kv|_sched)?)"
_ATOM = re.compile(r"(dummy_)?(prefill|(?:eager_)?decode)\[(bs=[^\]]*(?:\[[^\]]*\])?[^\]]*)\]$")
_ATOM_DRAFT = re.compile(rf"{_DRAFTS}\[([^\]]*)\]$")
_XDIT = re.compile(r"execute_diffusion_(\d+)(?:_|$)")
_SGLANG_PHASES: dict[str, Phase] = {
    "DECODE": "decode",
    "EXTEND": "prefill",
    "SPLIT_PREFILL": "prefill",
    "MIXED": "mixed",
    "TARGET_VERIFY": "verify",
    "DRAFT_EXTEND": "draft",
    "DRAFT_EXTEND_V2": "draft",
    "DLLM_EXTEND": "diffusion",
    "PREBUILT": "idle",
    "IDLE": "idle",
}
# Names of annotations that may be a step of some engine, the finer of two that enclose each other first.
SGLANG = r"^step\["
FAMILIES = (
    SGLANG,
    r"^(transformers_)?execute_(\d+_)?context_|^execute_new_\d",
    r"_forward_step( \d+)?: ",
    rf"^(dummy_)?(prefill|(eager_)?decode)\[|^{_DRAFTS}\[",
    r"^execute_diffusion_",
)
# What SGLang writes around drafting, which lies between its steps.
SGLANG_DRAFT, DRAFTING = r"^draft(_extend)?$", EngineStep("SGLang", "draft")
# What engines write around the capture of a graph: vLLM by tokens and mode, SGLang by requests and phase,
# ATOM by requests; and the names that SGLang and ATOM give the file of one (``…Runner_bs_8_rank3.json.gz``).
_CAPTURE = re.compile(r"^capture_(?:graph_bs_)?(\d+)(?:_\w+)?$")
_CAPTURE_FILE = re.compile(r"(?:^|[_/])bs_(\d+)_(?:q_\d+_)?rank_?\d+\.json(?:\.gz|\.zst)?$")


def captured_batch(name: str) -> int | None:
    """The batch that a graph is captured for inside an annotation of this name; None: it does not say."""
    match = _CAPTURE.match(name)
    return None if match is None else int(match[1])


def batch_of_file(path: str) -> int | None:
    """The batch that the graphs in a recording of captures are for, by the name of its file."""
    match = _CAPTURE_FILE.search(path)
    return None if match is None else int(match[1])


@lru_cache(maxsize=4096)
def engine_step(name: str) -> EngineStep | None:
    if (match := _VLLM.match(name)) is not None:
        step = _vllm(*match.groups()[1:])
        return step._replace(engine="transformers") if match[1] else step
    if (match := _VLLM_UNTIL_0_12.match(name)) is not None:
        new, running = int(match[1]), int(match[2])
        return EngineStep("vLLM", _phase(new, running), new, running)
    if (match := _SGLANG.match(name)) is not None:
        return _sglang(match[1], _fields(match[2]))
    if (match := _TENSORRT.match(name)) is not None:
        contexts, generations = int(match[1]), int(match[3])
        read = int(match[2]) if match[2] and not generations else None
        return EngineStep("TensorRT-LLM", _phase(contexts, generations), contexts, generations, read)
    if (match := _ATOM.match(name)) is not None:
        return _atom(match[2], _fields(match[3]), dummy=match[1] is not None)
    if (match := _ATOM_DRAFT.match(name)) is not None:
        drafts = _fields(match[1])
        return EngineStep(
            "ATOM", "draft", None, drafts.get("bs"), drafts.get("tok"), padded=drafts.get("bs/")
        )
    if (match := _XDIT.match(name)) is not None:
        return EngineStep("xDiT", "diffusion", generation_requests=int(match[1]))
    return None


def _vllm(
    contexts: str,
    context_sums: str | None,
    context_tokens: str | None,
    generations: str,
    generation_sums: str | None,
    generation_tokens: str | None,
) -> EngineStep:
    context, generation = (
        {name: int(number) for name, number in re.findall(r"([a-z]+)(\d+)", sums or "")}
        for sums in (context_sums, generation_sums)
    )
    read, made = context.get("sq", _int(context_tokens)), generation.get("sq", _int(generation_tokens))
    return EngineStep(
        "vLLM",
        _phase(int(contexts), int(generations), made),
        int(contexts),
        int(generations),
        _sum(read, made),
        _sum(context.get("sk"), generation.get("sk")),
        _sum(_pairs(context, ""), _pairs(generation, "")),
    )


def _pairs(sums: dict[str, int], of: str) -> int | None:
    """Pairs by an engine's sums over requests: of query times key tokens, less those of a query with the
    queries behind it."""
    product, squares, queries = (sums.get(of + name) for name in ("sqsk", "sqsq", "sq"))
    return None if product is None else product - ((squares or 0) - (queries or 0)) // 2


def _sglang(mode: str, fields: dict[str, int]) -> EngineStep | None:
    phase = _SGLANG_PHASES.get(mode)
    if phase is None:
        return None
    batch = fields.get("bs")
    if mode == "DECODE" and batch is not None:
        made = fields.setdefault("g_sq", batch)
        phase = _phase(0, batch, made)
    if "toks" in fields:
        fields.setdefault("c_sq", fields["toks"])
    generates = phase in ("decode", "verify", "draft")
    return EngineStep(
        "SGLang",
        phase,
        fields.get("c", None if generates else batch),
        fields.get("g", batch if generates else None),
        fields.get("toks", _sum(fields.get("c_sq"), fields.get("g_sq"))),
        _sum(fields.get("c_sk"), fields.get("g_sk")),
        _sum(_pairs(fields, "c_"), _pairs(fields, "g_")),
    )


def _atom(kind: str, fields: dict[str, int], *, dummy: bool) -> EngineStep:
    """A dummy keeps the collectives of an idle rank in time with those of the others."""
    batch, prefills, tokens = fields.get("bs"), kind == "prefill", fields.get("tok")
    contexts, generations = (batch, None) if prefills else (fields.get("p"), fields.get("d", batch))
    phase = "prefill" if prefills else _phase(contexts or 0, generations or 0, tokens)
    if tokens is not None:
        fields["sq"] = tokens
    padded = fields.get("bs/")
    return EngineStep(
        "ATOM",
        "idle" if dummy else phase,
        contexts,
        generations,
        tokens,
        fields.get("sk"),
        _pairs(fields, ""),
        padded if not padded or not tokens or not batch else padded * (tokens // batch),
    )


def _fields(text: str) -> dict[str, int]:
    """``bs=117/128 tok=117`` as numbers; what stands after a stroke under the name with one."""
    found: dict[str, int] = {}
    for name, number, padded in re.findall(r"(\w+)=(\d+)(?:/(\d+))?(?=\s|$)", text):
        found[name] = int(number)
        if padded:
            found[f"{name}/"] = int(padded)
    return found


def _phase(contexts: int, generations: int, made: int | None = None) -> Phase:
    """``made``: tokens of the requests that generate; more than one of each are drafted ones, verified."""
    if contexts and generations:
        return "mixed"
    if contexts:
        return "prefill"
    return "idle" if not generations else "verify" if (made or 0) > generations else "decode"


def _int(number: str | None) -> int | None:
    return None if number is None else int(number)


def _sum(*numbers: int | None) -> int | None:
    """The sum of those numbers that are known; None where none is."""
    known = [n for n in numbers if n is not None]
    return sum(known) if known else None
