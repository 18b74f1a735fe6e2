"""The slots of running requests are contiguous: attention reads the cache where it lies."""

import torch
import torch.nn.functional as F

RECORD = {"schedule": False, "active": 10}
LAYERS, REQUESTS, HEADS, TOKENS, WIDTH = 12, 16, 16, 2048, 64


def build(device):
    shape = LAYERS, 2, 2 * REQUESTS, HEADS, TOKENS, WIDTH
    cache = torch.randn(shape, device=device, dtype=torch.bfloat16)
    query = torch.randn(REQUESTS, HEADS, 1, WIDTH, device=device, dtype=torch.bfloat16)

    @torch.no_grad()
    def step():
        with torch.profiler.record_function("execute_context_0(0)_generation_16(16)"):
            x = query
            for keys, values in cache:
                x = F.scaled_dot_product_attention(x, keys[:REQUESTS], values[:REQUESTS])
            return x

    return step
