# A capture that the program itself breaks by waiting for the device within it; training goes on eagerly.
# needs: cuda
import fingerprint
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def train(steps):
    for _ in range(steps):
        x = torch.randn(16, 64).cuda()  # torch draws none on a device whose capture has failed
        loss = (model(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"{loss.item():.6f}")


train(20)
graph = torch.cuda.CUDAGraph()
static = torch.randn(16, 64, device="cuda")
try:
    with torch.no_grad(), torch.cuda.graph(graph):
        model(static).sum().item()
except RuntimeError as error:
    print("the capture failed:", "captur" in str(error).lower())
torch.cuda.set_stream(torch.cuda.default_stream())
print(torch.cuda.is_current_stream_capturing())
train(60)
print(fingerprint.weights(model))
