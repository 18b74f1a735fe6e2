# Two threads train a model each, at the same time; the main thread waits.
# needs: cpu
import threading

import fingerprint
import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
lines = {}


def train(number):
    x = torch.randn(64, 32, generator=torch.Generator().manual_seed(number)).to(device)
    model, optimizer = models[number], optimizers[number]
    for _ in range(80):
        loss = (model(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    lines[number] = f"{number} {loss.item():.6f} {fingerprint.weights(model)}"


torch.manual_seed(0)
models = [nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 32)).to(device) for _ in range(2)]
optimizers = [torch.optim.Adam(model.parameters(), lr=1e-3) for model in models]
threads = [threading.Thread(target=train, args=(number,), name=f"trainer-{number}") for number in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(lines[0], lines[1], [thread.name for thread in threading.enumerate()])
print(fingerprint.draws())
