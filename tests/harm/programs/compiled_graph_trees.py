# torch.compile(mode="reduce-overhead") with many shapes: graph trees that warm up, record and replay, with
# training.
# needs: cuda
import fingerprint
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(48, 96), nn.GELU(), nn.LayerNorm(96), nn.Linear(96, 48)).cuda()
compiled = torch.compile(model, mode="reduce-overhead", dynamic=False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(8):
    for size in (4, 8, 16, 24):
        torch.compiler.cudagraph_mark_step_begin()
        x = torch.randn(size, 48, device="cuda")
        loss = nn.functional.mse_loss(compiled(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        torch.compiler.cudagraph_mark_step_begin()
        out = compiled(torch.ones(4, 48, device="cuda")).clone()
    print(epoch, f"{loss.item():.6f}", fingerprint.tensors(out))
print(fingerprint.weights(model), fingerprint.draws())
