"""A language model answers requests one after another: transformers' generate, 64 tokens each."""

import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
config = LlamaConfig(
    hidden_size=1024,
    intermediate_size=2816,
    num_hidden_layers=8,
    num_attention_heads=16,
    vocab_size=32000,
    bos_token_id=None,
    eos_token_id=None,
    pad_token_id=0,
)
model = LlamaForCausalLM(config).to("cuda", torch.bfloat16).eval()
prompts = [torch.randint(0, 32000, (1, 200), device="cuda") for _ in range(24)]
times = []
for prompt in prompts:
    torch.cuda.synchronize()
    began = time.perf_counter()
    out = model.generate(prompt, max_new_tokens=64, min_new_tokens=64, do_sample=False)
    torch.cuda.synchronize()
    times.append(time.perf_counter() - began)
times = sorted(times[6:])
print(f"step_ms {times[len(times) // 2] * 1e3:.3f}")
