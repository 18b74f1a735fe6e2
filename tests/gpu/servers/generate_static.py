"""transformers' generate with a static cache, compiled, behind HTTP: `python generate_static.py PORT`.

One request at a time, as many small servers do it. examples/ask.py measures it.
"""

from __future__ import annotations

import sys
import threading

import torch
from llama import DEVICE, llama
from protocol import serve

model = llama()
turn = threading.Lock()


@torch.inference_mode()
def answer(prompt: list[int], tokens: int) -> list[int]:
    with turn:
        made = model.generate(
            torch.tensor([prompt], device=DEVICE),
            max_new_tokens=tokens,
            do_sample=False,
            cache_implementation="static",
        )
    return made[0, len(prompt) :].tolist()


answer([1, 2, 3], 8)  # compiles, where generate does
serve(int(sys.argv[1]), answer)
