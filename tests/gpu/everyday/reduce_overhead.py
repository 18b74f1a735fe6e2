"""A small compiled model under mode="reduce-overhead", answering batches one after another."""

import time

import torch
from torch import nn

model = nn.TransformerEncoder(nn.TransformerEncoderLayer(512, 8, 1024, batch_first=True), 4).cuda().eval()
compiled = torch.compile(model, mode="reduce-overhead")
x = torch.randn(8, 64, 512, device="cuda")
with torch.inference_mode():
    for number in range(700):
        if number == 100:
            torch.cuda.synchronize()
            began = time.perf_counter()
        out = compiled(x)
torch.cuda.synchronize()
print(f"step_ms {(time.perf_counter() - began) / 600 * 1e3:.3f}")
