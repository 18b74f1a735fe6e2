"""transformers' generate with a static cache, compiled, behind HTTP: `python generate_static.py PORT`.

One request at a time, as many small servers do it. examples/ask.py measures it.
"""

from __future__ import annotations

import sys
import threading

import torch
import transformers
from protocol import serve

device = "cuda" if torch.cuda.is_available() else "cpu"
small = device == "cpu"
torch.manual_seed(0)
model = transformers.LlamaForCausalLM(
    transformers.LlamaConfig(
        hidden_size=64 if small else 1024,
        intermediate_size=128 if small else 2816,
        num_hidden_layers=2 if small else 16,
        num_attention_heads=4 if small else 16,
        num_key_value_heads=2 if small else 8,
        vocab_size=8000,
        pad_token_id=0,
        eos_token_id=None,
    )
)
model = model.to(device, torch.float32 if small else torch.bfloat16).eval()
turn = threading.Lock()


@torch.inference_mode()
def answer(prompt: list[int], tokens: int) -> list[int]:
    with turn:
        made = model.generate(
            torch.tensor([prompt], device=device),
            max_new_tokens=tokens,
            do_sample=False,
            cache_implementation="static",
        )
    return made[0, len(prompt) :].tolist()


answer([1, 2, 3], 8)  # compiles, where generate does
serve(int(sys.argv[1]), answer)
