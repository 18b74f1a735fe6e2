# The model is copied, pickled, saved and loaded while it trains; training goes on with the copy.
# needs: cpu
import copy
import io
import pickle

import fingerprint
import torch
from torch import nn

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(70):
    x = torch.randn(4, 16, device=device)
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 9:
        how = step // 10 % 3
        if how == 0:
            model, optimizer = copy.deepcopy((model, optimizer))
        elif how == 1:
            model, optimizer = pickle.loads(pickle.dumps((model, optimizer)))
        else:
            buffer = io.BytesIO()
            torch.save((model, optimizer.state_dict()), buffer)
            buffer.seek(0)
            model, state = torch.load(buffer, weights_only=False)
            optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
            optimizer.load_state_dict(state)
        print(step, f"{loss.item():.6f}", sorted(vars(optimizer)), sorted(vars(model)))
torch.save(model.state_dict(), "model.pt")
print(fingerprint.weights(model), fingerprint.draws())
