# Forks children that use CUDA, which works only as long as the parent has not; the parent trains on the CPU.
# needs: cuda
import os

import fingerprint
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Linear(16, 16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(60):
    loss = model(torch.ones(2, 16)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step in (5, 25, 55):
        print(step, f"{loss.item():.8f}", torch.cuda.is_initialized(), flush=True)
        child = os.fork()
        if not child:
            with torch.no_grad():
                out = model.cuda()(torch.ones(2, 16, device="cuda"))
            print("child", tuple(out.shape), bool(out.isfinite().all()), flush=True)
            os._exit(0)
        print(os.waitpid(child, 0)[1], flush=True)
print(fingerprint.weights(model), fingerprint.draws())
