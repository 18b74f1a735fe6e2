"""The logits stay in bfloat16."""

import torch

RECORD = {"memory": True, "fresh_process": True}


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = torch.nn.Embedding(32000, 256), torch.nn.Linear(256, 32000)

    def forward(self, tokens):
        return self.head(self.embedding(tokens))


def build(device):
    model = Model().to(device, torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    tokens = torch.randint(32000, (4096,), device=device)

    def step():
        optimizer.zero_grad()
        logits = model(tokens)
        torch.nn.functional.cross_entropy(logits, tokens).backward()
        optimizer.step()

    return step
