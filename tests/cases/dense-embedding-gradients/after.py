"""The tables' gradients are sparse, and only rows that were looked up are updated."""

import torch

ROWS = (3_000_000, 1_000_000)


def build(device):
    tables = torch.nn.ModuleList([torch.nn.Embedding(rows, 64, sparse=True) for rows in ROWS]).to(device)
    top = torch.nn.Sequential(torch.nn.Linear(128, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1)).to(device)
    optimizers = torch.optim.SparseAdam(tables.parameters()), torch.optim.Adam(top.parameters(), fused=True)
    ids = [torch.randint(0, rows, (8192,), device=device) for rows in ROWS]
    bought = torch.rand(8192, device=device).round()

    def step():
        looked_up = torch.cat([table(one) for table, one in zip(tables, ids, strict=True)], 1)
        score = top(looked_up).squeeze(1)
        torch.nn.functional.binary_cross_entropy_with_logits(score, bought).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()

    return step
