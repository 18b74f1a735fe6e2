# Runs out of memory within a limit of its own, catches it, halves its batch and goes on.
# needs: cuda
import fingerprint
import torch
from torch import nn

torch.manual_seed(0)
total = torch.cuda.get_device_properties(0).total_memory
torch.cuda.set_per_process_memory_fraction(min(1.0, (1 << 30) / total))
model = nn.Sequential(nn.Linear(256, 4096), nn.ReLU(), nn.Linear(4096, 256)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batch = 1 << 17
for step in range(60):
    try:
        x = torch.randn(batch, 256, device="cuda")
        loss = (model(x) - x).square().mean()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(step, batch, f"{loss.item():.6f}")
        batch = min(batch * 2, 1 << 14) if step % 10 else 1 << 17
    except torch.OutOfMemoryError:
        print(step, "out of memory at", batch)
        batch //= 16
    x = loss = None
    optimizer.zero_grad()
print(torch.cuda.memory_stats()["num_ooms"], torch.cuda.memory_allocated())
print(fingerprint.weights(model), fingerprint.draws())
