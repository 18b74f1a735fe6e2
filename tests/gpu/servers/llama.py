"""The model of the servers here: large enough for a GPU, or tiny."""

from __future__ import annotations

import torch
import transformers

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def llama(**configured: str) -> transformers.LlamaForCausalLM:
    small = DEVICE == "cpu"
    torch.manual_seed(0)
    configuration = transformers.LlamaConfig(
        hidden_size=64 if small else 1024,
        intermediate_size=128 if small else 2816,
        num_hidden_layers=2 if small else 16,
        num_attention_heads=4 if small else 16,
        num_key_value_heads=2 if small else 8,
        vocab_size=8000,
        pad_token_id=0,
        eos_token_id=None,
        **configured,
    )
    model = transformers.LlamaForCausalLM(configuration)
    return model.to(DEVICE, torch.float32 if small else torch.bfloat16).eval()
