"""Gradients are accumulated over four batches of two, where one of eight fits many times."""

import torch

RECORD = {"memory": True, "active": 2}
BATCH, ACCUMULATE = 2, 4


def build(device):
    layer = torch.nn.TransformerEncoderLayer(512, 8, 2048, dropout=0.0, batch_first=True, norm_first=True)
    model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).to(device, torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
    data = torch.randn(BATCH * ACCUMULATE, 256, 512, device=device, dtype=torch.bfloat16)

    def step():
        for x in data.split(BATCH):
            (model(x).square().mean() / ACCUMULATE).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
