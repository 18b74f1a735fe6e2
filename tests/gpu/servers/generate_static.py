"""transformers' generate with a static cache, compiled, behind HTTP: `python generate_static.py PORT`.

One request at a time, as many small servers do it. examples/ask.py measures it.
"""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future

import torch
from llama import DEVICE, llama
from protocol import serve

model = llama()
waiting: queue.Queue[tuple[list[int], int, Future[list[int]]]] = queue.Queue()


@torch.inference_mode()
def made(prompt: list[int], tokens: int) -> list[int]:
    found = model.generate(
        torch.tensor([prompt], device=DEVICE),
        max_new_tokens=tokens,
        do_sample=False,
        cache_implementation="static",
    )
    return found[0, len(prompt) :].tolist()


def answer(prompt: list[int], tokens: int, first: Callable[[], object]) -> list[int]:
    first()  # before it: `generate` says nothing meanwhile
    future: Future[list[int]] = Future()
    waiting.put((prompt, tokens, future))
    return future.result()


made([1, 2, 3], 8)  # compiles, where generate does; its graphs belong to this thread
threading.Thread(target=serve, args=(int(sys.argv[1]), answer), daemon=True).start()
while True:
    prompt, tokens, future = waiting.get()
    try:
        future.set_result(made(prompt, tokens))
    except Exception as error:
        future.set_exception(error)
