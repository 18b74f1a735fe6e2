# Changes its folder, removes it, clears its environment, closes descriptors that it did not open, and
# standard error.
# needs: cpu
import os
import shutil
import sys

import fingerprint
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(steps):
    for _ in range(steps):
        loss = model(torch.ones(2, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return f"{loss.item():.8f}"


print(train(2))
home = os.getcwd()
os.mkdir("deep")
os.chdir("deep")
os.environ.clear()
print(train(10))
shutil.rmtree("../deep")
os.closerange(3, 256)
print(train(30))
os.chdir(home)
os.umask(0o777)
sys.stderr.close()
os.close(2)
print(train(20), os.listdir("."))
print(fingerprint.weights(model), fingerprint.draws())
