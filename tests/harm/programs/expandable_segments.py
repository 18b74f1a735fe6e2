# The allocator with expandable segments and a limit on splitting, shapes that change, and a peak that it
# prints.
# needs: cuda
# variables: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
import fingerprint
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512)).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, foreach=True)
for step in range(60):
    x = torch.randn(64 * (1 + step % 7), 512, device="cuda")
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 15 == 0:
        torch.cuda.empty_cache()
        print(step, f"{loss.item():.6f}", torch.cuda.max_memory_allocated())
print(fingerprint.weights(model), fingerprint.draws())
