# A loop that saves its state when it is interrupted, as training scripts do.
# needs: cpu
# interrupted: saved
import signal
import time

import fingerprint
import torch
from torch import nn

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(16, 16).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
try:
    print("ready", flush=True)
    for _ in range(150):
        loss = model(torch.ones(2, 16, device=device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.01)
except KeyboardInterrupt:
    torch.save(model.state_dict(), "interrupted.pt")
    print("saved", flush=True)
    raise
finally:
    print("finally", flush=True)
print(fingerprint.weights(model), fingerprint.draws())
