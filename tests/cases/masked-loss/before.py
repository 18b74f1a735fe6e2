"""A model of purchases scores all items at all positions; padding, three of four, is masked in the loss."""

import torch

ITEMS, WIDTH, USERS, LENGTH = 40_000, 128, 64, 100


def build(device):
    torch.backends.cuda.matmul.allow_tf32 = True
    items = torch.nn.Embedding(ITEMS, WIDTH).to(device)
    layer = torch.nn.TransformerEncoderLayer(WIDTH, 2, WIDTH, 0.0, batch_first=True).to(device)
    optimizer = torch.optim.Adam([*items.parameters(), *layer.parameters()], fused=True)
    bought = torch.randint(0, ITEMS, (USERS, LENGTH), device=device)
    labels = torch.randint(0, ITEMS, (USERS, LENGTH), device=device)
    mask = torch.arange(LENGTH, device=device) < torch.randint(5, LENGTH // 2, (USERS, 1), device=device)

    def step():
        features = layer(items(bought))
        logits = features @ items.weight.T
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
        ((loss * mask.flatten()).sum() / mask.sum()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
