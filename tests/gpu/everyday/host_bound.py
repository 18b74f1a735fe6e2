"""A small transformer trained in eager mode: the host sets the pace, and the loss is read in every step."""

import time

import torch
from torch import nn

model = nn.TransformerEncoder(nn.TransformerEncoderLayer(256, 4, 512, batch_first=True), 6).cuda()
head = nn.Linear(256, 16).cuda()
optimizer = torch.optim.Adam([*model.parameters(), *head.parameters()])
x, y = torch.randn(16, 64, 256, device="cuda"), torch.randint(0, 16, (16,), device="cuda")
total = 0.0
for number in range(260):
    if number == 60:
        torch.cuda.synchronize()
        began = time.perf_counter()
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(head(model(x).mean(1)), y)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    total += loss.item()
torch.cuda.synchronize()
print(f"step_ms {(time.perf_counter() - began) / 200 * 1e3:.3f}")
