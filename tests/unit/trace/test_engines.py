"""What the annotations of serving engines say."""

from __future__ import annotations

import pytest

from kinetoscope.trace.engines import EngineStep, captured_batch, engine_step


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("execute_context_2(1024)_generation_30(30)", EngineStep("vLLM", "mixed", 2, 30, 1054)),
        ("execute_context_1(8192)_generation_0(0)", EngineStep("vLLM", "prefill", 1, 0, 8192)),
        (
            "execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk55086sqsq32sqsk55086)",
            EngineStep("vLLM", "decode", 0, 32, 32, 55086, 55086),
        ),
        (
            "execute_34_context_2(sq10sk20sqsq50sqsk100)_generation_32(sq32sk900sqsq32sqsk900)",
            EngineStep("vLLM", "mixed", 2, 32, 42, 920, 980),
        ),
        ("step[DECODE bs=64]", EngineStep("SGLang", "decode", None, 64, 64)),
        ("step[EXTEND bs=2 toks=14721]", EngineStep("SGLang", "prefill", 2, None, 14721)),
        (
            "step[MIXED bs=3 c_sq=7 c_sk=9 c_sqsq=25 c_sqsk=63 g_sq=2 g_sk=11 g_sqsq=2 g_sqsk=22]",
            EngineStep("SGLang", "mixed", 3, None, 9, 20, 76),
        ),
        ("[Executor] _forward_step 7: 0 ctx reqs, 12 gen reqs", EngineStep("TensorRT-LLM", "decode", 0, 12)),
        ("[Executor] _forward_step 8: 3 ctx reqs, 12 gen reqs", EngineStep("TensorRT-LLM", "mixed", 3, 12)),
        (
            "decode[bs=117/128 tok=117 d=117 spec=3]",
            EngineStep("ATOM", "decode", None, 117, 117, padded=128),
        ),
        ("prefill[bs=2 tok=4096 ctx=[2048, 2048]]", EngineStep("ATOM", "prefill", 2, None, 4096)),
        ("execute_diffusion_2_1024x1024", EngineStep("xDiT", "diffusion", generation_requests=2)),
        ("prefill", None),
        ("step[UNHEARD bs=1]", None),
        ("execute_model", None),
    ],
)
def test_the_phase_and_the_batch_are_the_engines(name: str, said: EngineStep | None) -> None:
    assert engine_step(name) == said


def test_requests_of_both_kinds_are_one_batch() -> None:
    said = engine_step("execute_context_2(1024)_generation_30(30)")
    assert said is not None
    assert said.requests == 32


@pytest.mark.parametrize(
    ("name", "batch"), [("capture_32_FULL", 32), ("capture_8_draft_PIECEWISE", 8), ("capture_x", None)]
)
def test_captures_name_their_batch(name: str, batch: int | None) -> None:
    assert captured_batch(name) == batch
