"""A prompt of 8192 tokens is read at once: all requests that generate wait for it."""

import torch

RECORD = {"schedule": False, "active": 4, "measure": "recorded"}
PROMPT, CHUNK = 8192, 8192


def build(device):
    model = torch.nn.Sequential(*(torch.nn.Linear(4096, 4096) for _ in range(12))).to(device, torch.bfloat16)
    prompt = torch.randn(PROMPT, 4096, device=device, dtype=torch.bfloat16)
    running = torch.randn(16, 4096, device=device, dtype=torch.bfloat16)

    @torch.no_grad()
    def step():
        """A prompt arrives while sixteen requests generate; then they go on."""
        for chunk in prompt.split(CHUNK):
            if CHUNK == PROMPT:
                with torch.profiler.record_function(f"execute_context_1({PROMPT})_generation_0(0)"):
                    model(chunk)
            else:
                with torch.profiler.record_function(f"execute_context_1({CHUNK})_generation_16(16)"):
                    model(torch.cat((running, chunk)))
        for _ in range(12):
            with torch.profiler.record_function("execute_context_0(0)_generation_16(16)"):
                model(running)

    return step
