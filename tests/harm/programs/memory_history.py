# The program keeps the allocator's history itself, and writes its snapshot.
# needs: cuda
# exact: no
import pickle

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(256, 256).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def steps(count):
    for _ in range(count):
        model(torch.ones(8, 256, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


steps(6)
torch.cuda.memory._record_memory_history(max_entries=100_000)
steps(40)
kept = torch.randn(1234, 16, device="cuda")
torch.cuda.memory._dump_snapshot("snapshot.pickle")
torch.cuda.memory._record_memory_history(enabled=None)
steps(20)
with open("snapshot.pickle", "rb") as file:
    snapshot = pickle.load(file)
events = snapshot["device_traces"][0]
print(
    len(events) > 100, any(event["action"] == "alloc" and event["size"] >= 1234 * 16 * 4 for event in events)
)
print(any(frame["filename"] == __file__ for event in events for frame in event.get("frames", ())))
