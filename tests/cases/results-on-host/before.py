"""Each step's guesses are read row by row, and their edit distances computed in Python."""

import torch


def distance(a, b):
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        before, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (x != y))
    return row[-1]


def build(device):
    model = torch.nn.Sequential(
        torch.nn.Linear(256, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 2048), torch.nn.ReLU(),
        torch.nn.Linear(2048, 32),
    ).to(device)  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    x = torch.randn(32, 40, 256, device=device)
    y = torch.randint(0, 32, (32, 40), device=device)

    def step():
        scores = model(x)
        loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        guesses = scores.detach().argmax(-1)
        rows = zip(guesses, y, strict=True)
        return sum(distance(torch.unique_consecutive(row).tolist(), truth.tolist()) for row, truth in rows)

    return step
