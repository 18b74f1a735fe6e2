# Mixed precision with a GradScaler that meets infinities and skips steps.
# needs: cpu
import fingerprint
import torch
from torch import nn

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
dtype = torch.float16 if device == "cuda" else torch.bfloat16
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
scaler = torch.amp.GradScaler(device, init_scale=2.0**20, growth_interval=10)
for step in range(80):
    x = torch.randn(16, 32, device=device)
    with torch.autocast(device, dtype):
        loss = (model(x) - x).square().mean()
    scaler.scale(loss).backward()
    if step == 40:
        model[0].weight.grad.fill_(float("inf"))
    scaler.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    if step % 10 == 0:
        print(step, f"{loss.item():.5f}", scaler.get_scale(), bool(norm.isfinite()))
print(fingerprint.weights(model), fingerprint.draws())
