"""What the annotations of serving engines say."""

from __future__ import annotations

import pytest

from kinetoscope.trace.engines import EngineStep, batch_of_file, captured_batch, engine_step


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
        # Ours, of transformers' continuous batching.
        (
            "transformers_execute_context_1(sq5sk5sqsq25sqsk25)_generation_2(sq2sk30sqsq2sqsk30)",
            EngineStep("transformers", "mixed", 1, 2, 7, 35, 45),
        ),
        # Speculative decoding: four tokens of each request are verified in one pass.
        ("execute_context_0(0)_generation_32(128)", EngineStep("vLLM", "verify", 0, 32, 128)),
        (
            "execute_128_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq128sk65536sqsq512sqsk262144)",
            EngineStep("vLLM", "verify", 0, 32, 128, 65536, 261952),
        ),
        # vLLM 0.11 and 0.12.
        ("execute_new_0_cached_30", EngineStep("vLLM", "decode", 0, 30)),
        ("execute_new_2_cached_0", EngineStep("vLLM", "prefill", 2, 0)),
        ("execute_new_2_cached_30", EngineStep("vLLM", "mixed", 2, 30)),
        ("step[DECODE bs=64]", EngineStep("SGLang", "decode", None, 64, 64)),
        ("step[EXTEND bs=2 toks=14721]", EngineStep("SGLang", "prefill", 2, None, 14721)),
        (
            "step[MIXED bs=3 c_sq=7 c_sk=9 c_sqsq=25 c_sqsk=63 g_sq=2 g_sk=11 g_sqsq=2 g_sqsk=22]",
            EngineStep("SGLang", "mixed", 3, None, 9, 20, 76),
        ),
        (
            "step[MIXED bs=5 c=2 g=3 c_sq=7 c_sk=9 c_sqsq=25 c_sqsk=63 g_sq=3 g_sk=11 g_sqsq=3 g_sqsk=11]",
            EngineStep("SGLang", "mixed", 2, 3, 10, 20, 65),
        ),
        # As it writes them: what the batch says already is not said again.
        (
            "step[DECODE bs=64 g_sqsq=64 g_sqsk=131072 g_sk=131072]",
            EngineStep("SGLang", "decode", None, 64, 64, 131072, 131072),
        ),
        (
            "step[EXTEND bs=2 toks=10 c_sqsq=50 c_sqsk=100 c_sk=20]",
            EngineStep("SGLang", "prefill", 2, None, 10, 20, 80),
        ),
        ("step[DECODE bs=64 g_sq=128 g_sk=9]", EngineStep("SGLang", "verify", None, 64, 128, 9)),
        ("step[TARGET_VERIFY bs=23]", EngineStep("SGLang", "verify", None, 23)),
        ("step[DRAFT_EXTEND_V2 bs=23]", EngineStep("SGLang", "draft", None, 23)),
        ("step[DECODE head-eager bs=4 toks=8]", EngineStep("SGLang", "decode", None, 4, 8)),
        ("step[SPLIT_PREFILL bs=1]", EngineStep("SGLang", "prefill", 1)),
        ("step[IDLE bs=0]", EngineStep("SGLang", "idle", 0)),
        ("[Executor] _forward_step 7: 0 ctx reqs, 12 gen reqs", EngineStep("TensorRT-LLM", "decode", 0, 12)),
        ("[Executor] _forward_step 8: 3 ctx reqs, 12 gen reqs", EngineStep("TensorRT-LLM", "mixed", 3, 12)),
        (
            "[Executor] _forward_step 7: 0 ctx reqs, 0 ctx tokens, 32 gen reqs",
            EngineStep("TensorRT-LLM", "decode", 0, 32),
        ),
        (
            "[Executor] _forward_step 8: 2 ctx reqs, 900 ctx tokens, 0 gen reqs",
            EngineStep("TensorRT-LLM", "prefill", 2, 0, 900),
        ),
        ("[Executor] _forward_step: 1 ctx reqs, 0 gen reqs", EngineStep("TensorRT-LLM", "prefill", 1, 0)),
        ("decode[bs=117/128 tok=117 d=117]", EngineStep("ATOM", "decode", None, 117, 117, padded=128)),
        (
            "decode[bs=30/32 tok=120 d=30 spec=3 sqsq=480 sqsk=262144 sk=65536]",
            EngineStep("ATOM", "verify", None, 30, 120, 65536, 261964, 128),
        ),
        ("decode[bs=128 tok=384 p=2 d=126 tbo=1]", EngineStep("ATOM", "mixed", 2, 126, 384)),
        ("decode[bs=16]", EngineStep("ATOM", "decode", None, 16)),
        ("eager_decode[bs=300 tok=300 ctx=[1, 2, 3]...+297]", EngineStep("ATOM", "decode", None, 300, 300)),
        ("dummy_decode[bs=1/8 tok=1 d=1]", EngineStep("ATOM", "idle", None, 1, 1, padded=8)),
        ("dummy_prefill[bs=1 tok=8192 ctx=8192]", EngineStep("ATOM", "idle", 1, None, 8192)),
        ("draft[0/3 bs=12]", EngineStep("ATOM", "draft", None, 12)),
        ("dspark[bs=12 T=5]", EngineStep("ATOM", "draft", None, 12)),
        ("dspark_ctx_kv[bs=12 tok=60]", EngineStep("ATOM", "draft", None, 12, 60)),
        ("propose_eagle[0/3 tok=4 bs=1/2 (graph)]", EngineStep("ATOM", "draft", None, 1, 4, padded=2)),
        (
            "prefill[bs=6 tok=17408 ctx=[4096, 4096, 4096]...+3 sqsq=59768832 sqsk=59768832 sk=17408 tbo=1]",
            EngineStep("ATOM", "prefill", 6, None, 17408, 17408, 59768832 - (59768832 - 17408) // 2),
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
    ("name", "batch"),
    [
        ("capture_32_FULL", 32),
        ("capture_8_draft_PIECEWISE", 8),
        ("capture_graph_bs_16", 16),
        ("capture_x", None),
    ],
)
def test_captures_name_their_batch(name: str, batch: int | None) -> None:
    assert captured_batch(name) == batch


@pytest.mark.parametrize(
    ("path", "batch"),
    [
        ("graph_capture_profile/DecodeCudaGraphRunner_bs_8_rank3.json.gz", 8),
        ("capture_traces/bs_32_rank0.json.gz", 32),
        ("rank_0/capture_traces/bs_16_q_4_rank0.json.gz", 16),
        ("capture_traces/graph_capture_rank_0.1773709742341309550.pt.trace.json.gz", None),
    ],
)
def test_a_file_of_captures_names_their_batch(path: str, batch: int | None) -> None:
    assert batch_of_file(path) == batch
