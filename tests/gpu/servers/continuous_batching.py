"""transformers' continuous batching behind HTTP: `python continuous_batching.py PORT`.

examples/ask.py measures it.
"""

from __future__ import annotations

import sys

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
        attn_implementation="sdpa",
    )
)
model = model.to(device, torch.float32 if small else torch.bfloat16).eval()
manager = model.init_continuous_batching(
    generation_config=transformers.GenerationConfig(
        max_new_tokens=64, do_sample=False, eos_token_id=-1, pad_token_id=0
    )
)
manager.start()


def answer(prompt: list[int], tokens: int) -> list[int]:
    request = manager.add_request(prompt, max_new_tokens=tokens)
    for output in manager.request_id_iter(request):
        if output.is_finished():
            return list(output.generated_tokens)
    raise RuntimeError("the manager has stopped")


answer([1, 2, 3], 8)
serve(int(sys.argv[1]), answer)
manager.stop(block=True)
