"""A speech model transcribes clips: encoder once, then 48 tokens, by transformers' generate."""

import time

import torch
from transformers import WhisperConfig, WhisperForConditionalGeneration

torch.manual_seed(0)
config = WhisperConfig(
    d_model=512,
    encoder_layers=6,
    decoder_layers=6,
    encoder_attention_heads=8,
    decoder_attention_heads=8,
    encoder_ffn_dim=2048,
    decoder_ffn_dim=2048,
)
model = WhisperForConditionalGeneration(config).to("cuda", torch.float16).eval()
clips = [torch.randn(1, 80, 3000, device="cuda", dtype=torch.float16) for _ in range(20)]
times = []
for clip in clips:
    torch.cuda.synchronize()
    began = time.perf_counter()
    model.generate(clip, max_new_tokens=48, min_new_tokens=48)
    torch.cuda.synchronize()
    times.append(time.perf_counter() - began)
times = sorted(times[6:])
print(f"step_ms {times[len(times) // 2] * 1e3:.3f}")
