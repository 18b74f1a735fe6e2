# A TorchDispatchMode and a TorchFunctionMode are active in the loop and count what passes through them,
# also while a loader gives masks and numbers of the host are read.
# needs: cpu
from collections import Counter

import fingerprint
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader

ops, functions = Counter(), Counter()


class Ops(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        ops[str(func)] += 1
        return func(*args, **(kwargs or {}))


class Functions(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        functions[getattr(func, "__name__", str(func))] += 1
        return func(*args, **(kwargs or {}))


torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = [{"input_ids": torch.arange(16), "attention_mask": torch.arange(16) < 3 + i} for i in range(8)]
loader = DataLoader(data, batch_size=4)
with Ops(), Functions():
    for step in range(60):
        if step % 20 == 0:
            words = sum(int(batch["attention_mask"].sum()) for batch in loader)
        x = torch.stack([torch.full((16,), float(range(10)[i])) for i in torch.randint(10, (4,))]).to(device)
        loss = (model(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print(words, sorted(ops.items()))
print(sorted(functions.items()))
print(f"{loss.item():.6f}", fingerprint.weights(model), fingerprint.draws())
