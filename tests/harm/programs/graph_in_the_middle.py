# Trains eagerly, captures a graph for inference in the middle of the loop, and again every few steps.
# needs: cuda
import fingerprint
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
static = torch.randn(32, 64, device="cuda")
graphs = []
for step in range(80):
    x = torch.randn(32, 64, device="cuda")
    loss = nn.functional.mse_loss(model(x), x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step >= 10 and step % 7 == 3:
        graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(graph):
            out = model(static)
        graphs.append((graph, out))
    if graphs and step % 3 == 0:
        graph, out = graphs[-1]
        graph.replay()
        print(step, f"{loss.item():.6f}", fingerprint.tensors(out))
    if len(graphs) > 4:
        graphs.pop(0)[0].reset()
print(fingerprint.weights(model), fingerprint.draws())
