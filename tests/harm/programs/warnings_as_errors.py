# Every warning is an error, by the command line and in the program.
# needs: cpu
# flags: -W error
import warnings

import fingerprint
import torch
from torch import nn

warnings.simplefilter("error")
torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(60):
    loss = model(torch.ones(2, 16, device=device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 25 == 24:
        try:
            warnings.warn("own", UserWarning, stacklevel=1)
        except UserWarning as error:
            print(step, "raised", error)
print(f"{loss.item():.8f}", fingerprint.weights(model), fingerprint.draws())
