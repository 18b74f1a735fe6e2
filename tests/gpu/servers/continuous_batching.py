"""transformers' continuous batching behind HTTP: `python continuous_batching.py PORT`.

examples/ask.py measures it.
"""

from __future__ import annotations

import sys

import transformers
from llama import llama
from protocol import serve

model = llama(attn_implementation="sdpa")
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
