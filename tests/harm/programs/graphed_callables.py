# Trains with parts of the model made into graphs by torch.cuda.make_graphed_callables.
# needs: cuda
import fingerprint
import torch
from torch import nn

torch.manual_seed(0)
first = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.1)).cuda()
second = nn.Sequential(nn.Linear(128, 128), nn.ReLU()).cuda()
head = nn.Linear(128, 10).cuda()
x = torch.randn(32, 64, device="cuda")
h = torch.randn(32, 128, device="cuda", requires_grad=True)
first, second = torch.cuda.make_graphed_callables((first, second), ((x,), (h,)))
parameters = [*first.parameters(), *second.parameters(), *head.parameters()]
optimizer = torch.optim.SGD(parameters, lr=0.05)
for step in range(70):
    data = torch.randn(32, 64, device="cuda")
    target = torch.randint(0, 10, (32,), device="cuda")
    optimizer.zero_grad(set_to_none=True)
    hidden = first(data)
    if step % 2:
        hidden = second(hidden)
    loss = nn.functional.cross_entropy(head(hidden), target)
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(step, f"{loss.item():.6f}")
print(fingerprint.weights(first, second, head), fingerprint.draws())
