# Anomaly detection finds a NaN in the backward pass; the error is caught and training goes on.
# needs: cpu
import fingerprint
import torch
from torch import nn

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(8, 8).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with torch.autograd.set_detect_anomaly(True):
    for step in range(50):
        x = torch.randn(4, 8, device=device)
        y = model(x)
        loss = (y.square().sum() - y.square().sum()).sqrt() if step % 20 == 19 else y.square().mean()
        try:
            loss.backward()
            optimizer.step()
        except RuntimeError as error:
            print(step, str(error).split("'")[1])
        optimizer.zero_grad()
print(torch.is_anomaly_enabled(), fingerprint.weights(model), fingerprint.draws())
