# Runs out of memory within a limit of its own, in the midst of training, and dies of it.
# needs: cuda
# status: 1
import torch
from torch import nn

torch.manual_seed(0)
total = torch.cuda.get_device_properties(0).total_memory
torch.cuda.set_per_process_memory_fraction(min(1.0, (1 << 30) / total))
model = nn.Linear(256, 256).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
kept = []
for step in range(1000):
    x = torch.randn(1024, 256, device="cuda")
    model(x).square().mean().backward()
    optimizer.step()
    if step % 20 == 0:
        print(step, flush=True)
    if step > 30:
        kept.append(torch.zeros(1 << 26, device="cuda"))
