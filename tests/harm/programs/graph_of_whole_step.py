# Captures a whole training step: forward, backward and a capturable optimizer; the replays are the loop.
# needs: cuda
# sanitize: yes
import fingerprint
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 1)).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, capturable=True)
x = torch.zeros(64, 32, device="cuda")
y = torch.zeros(64, 1, device="cuda")


def step():
    optimizer.zero_grad(set_to_none=True)
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    return loss


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        x.normal_()
        y.copy_(x.sum(1, keepdim=True))
        step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = step()
for number in range(200):
    x.normal_()
    y.copy_(x.sum(1, keepdim=True))
    graph.replay()
    if number % 40 == 0:
        print(number, f"{loss.item():.6f}")
print(fingerprint.weights(model), fingerprint.draws())
