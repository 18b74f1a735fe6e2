# Trains a model, drops it, trains another: each is freed when the program lets it go, without a collection.
# needs: cpu
# suite: yes
import gc
import weakref

import fingerprint
import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
gc.collect()
gc.disable()


def train(seed, steps):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(steps):
        x = torch.ones(4, 512, device=device)
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    refs = [weakref.ref(thing) for thing in (model, model[0], model[0].weight, optimizer, x, loss)]
    print(seed, fingerprint.weights(model))
    return refs


for seed, steps in enumerate((1, 2, 3, 8, 40, 60, 5)):
    refs = train(seed, steps)
    alive = torch.cuda.memory_allocated() if device == "cuda" else 0
    print("freed:", [ref() is None for ref in refs], alive)
