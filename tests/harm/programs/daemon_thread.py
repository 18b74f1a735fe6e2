# A daemon thread computes for a while, then waits without end, while the main thread trains and leaves.
# needs: cpu
import threading

import fingerprint
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(64, 64).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def compute():
    x = torch.ones(64, 64, device=device)
    for _ in range(300):
        x = torch.tanh(x @ x)
    threading.Event().wait()


threading.Thread(target=compute, daemon=True).start()
for _ in range(60):
    loss = model(torch.ones(2, 64, device=device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.8f}", fingerprint.weights(model), threading.active_count())
