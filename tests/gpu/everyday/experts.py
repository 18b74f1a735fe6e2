"""A mixture of experts whose layer loops over the experts, trained in bfloat16."""

import time

import torch
from torch import nn


class Experts(nn.Module):
    def __init__(self, width=512, experts=8, chosen=2):
        super().__init__()
        self.router, self.chosen = nn.Linear(width, experts), chosen
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width))
            for _ in range(experts)
        )

    def forward(self, x):
        weights, chosen = self.router(x).softmax(-1).topk(self.chosen)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            token, place = (chosen == number).nonzero(as_tuple=True)
            out[token] += weights[token, place, None] * expert(x[token])
        return x + out


model = nn.Sequential(*[Experts() for _ in range(4)]).to("cuda", torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters())
x = torch.randn(4096, 512, device="cuda", dtype=torch.bfloat16)
for number in range(130):
    if number == 50:
        torch.cuda.synchronize()
        began = time.perf_counter()
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
torch.cuda.synchronize()
print(f"step_ms {(time.perf_counter() - began) / 80 * 1e3:.3f}")
