"""transformers' continuous batching behind HTTP: `python continuous_batching.py [--graphs] PORT`.

With `--graphs` each step replays a CUDA graph of a padded batch, which transformers does by itself only where
flash attention is installed. examples/ask.py measures it.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from concurrent.futures import Future
from threading import Event, Thread

import transformers
from llama import llama
from protocol import serve

model = llama(attn_implementation="paged|sdpa")
manager = model.init_continuous_batching(
    generation_config=transformers.GenerationConfig(
        max_new_tokens=64, do_sample=False, eos_token_id=-1, pad_token_id=0
    ),
    # More tokens than the client asks for at once: by itself it takes what is free of the device, which two
    # servers on one device cannot, and a graph reads all of them.
    continuous_batching_config=transformers.ContinuousBatchingConfig(
        block_size=32,
        num_blocks=64,
        max_batch_tokens=512,
        use_cuda_graph="--graphs" in sys.argv,
    ),
)
manager.start()
numbers = itertools.count()
waiting: dict[str, tuple[Event, Future[list[int]]]] = {}


def deliver() -> None:
    """Hand each request its tokens: one thread takes the results, for which many would wait in turn."""
    for output in manager:
        first, tokens = waiting[output.request_id]
        first.set()
        if output.is_finished():
            tokens.set_result(list(output.generated_tokens))


def answer(prompt: list[int], tokens: int, first: Callable[[], object]) -> list[int]:
    name = f"request-{next(numbers)}"
    begun, made = waiting[name] = Event(), Future[list[int]]()
    manager.add_request(prompt, request_id=name, max_new_tokens=tokens, streaming=True)
    begun.wait()
    first()
    try:
        return made.result()
    finally:
        del waiting[name]


Thread(target=deliver, daemon=True).start()
answer([1, 2, 3], 8, lambda: None)
serve(int(sys.argv[-1]), answer)
manager.stop(block=True)
