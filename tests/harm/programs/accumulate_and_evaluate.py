# Accumulated gradients, an average of weights, and an evaluation every few steps under no_grad and in eval
# mode.
# needs: cpu
import fingerprint
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(
    nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 16)
).to(device)
average = AveragedModel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(120):
    x = torch.randn(8, 16, device=device)
    ((model(x) - x).square().mean() / 3).backward()
    if step % 3 == 2:
        optimizer.step()
        optimizer.zero_grad()
        average.update_parameters(model)
    if step % 30 == 29:
        model.eval()
        with torch.no_grad():
            losses = [(model(x) - x).square().mean().item() for x in torch.randn(10, 8, 16, device=device)]
        model.train()
        print(step, f"{sum(losses):.6f}", model.training)
print(fingerprint.weights(model, average), fingerprint.draws())
