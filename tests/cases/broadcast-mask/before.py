"""Logits of the words are selected from those of all positions by a mask that is expanded to their size."""

import torch

VOCABULARY, WIDTH, TEXTS, LENGTH = 16_000, 512, 16, 256


def build(device):
    head = torch.nn.Linear(WIDTH, VOCABULARY).to(device, torch.bfloat16)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.01, fused=True)
    features = torch.randn(TEXTS, LENGTH, WIDTH, device=device, dtype=torch.bfloat16)
    lengths = torch.randint(LENGTH // 2, LENGTH, (TEXTS, 1), device=device)
    mask = torch.arange(LENGTH, device=device) < lengths
    labels = torch.randint(0, VOCABULARY, (int(lengths.sum()),), device=device)

    def words(logits, mask):
        return torch.masked_select(logits, mask.unsqueeze(-1).expand_as(logits)).view(-1, VOCABULARY)

    def step():
        torch.nn.functional.cross_entropy(words(head(features), mask), labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
