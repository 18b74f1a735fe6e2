# Ranges for Nsight by emit_nvtx and torch.cuda.nvtx, between cudaProfilerStart and cudaProfilerStop.
# needs: cuda
import fingerprint
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def steps(count):
    for _ in range(count):
        with torch.cuda.nvtx.range("step"):
            x = torch.randn(16, 64, device="cuda")
            loss = (model(x) - x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print(f"{loss.item():.6f}")


steps(12)
torch.cuda.cudart().cudaProfilerStart()
try:
    with torch.autograd.profiler.emit_nvtx(record_shapes=True):
        steps(12)
except RuntimeError as error:
    print(type(error).__name__)
torch.cuda.cudart().cudaProfilerStop()
steps(40)
print(fingerprint.weights(model), fingerprint.draws())
