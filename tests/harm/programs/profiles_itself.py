# The program has torch.profiler on a schedule and exports its own trace; later it profiles once more, by
# hand.
# needs: cpu
# exact: no
import json

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function, schedule

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(32, 32).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def step():
    with record_function("train"):
        loss = model(torch.ones(4, 32, device=device)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def save(p):
    p.export_chrome_trace(f"step{p.step_num}.json")


activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (device == "cuda")
with profile(
    activities=activities, schedule=schedule(wait=5, warmup=2, active=3, repeat=2), on_trace_ready=save
) as p:
    for _ in range(30):
        step()
        p.step()
for name in ("step10.json", "step20.json"):
    with open(name) as file:
        events = json.load(file)["traceEvents"]
    print(
        name, sum(event.get("name") == "train" and event.get("cat") == "user_annotation" for event in events)
    )
for _ in range(30):
    step()
with profile(activities=activities) as p:
    step()
counts = {row.key: row.count for row in p.key_averages()}
print(counts["train"], counts["aten::addmm"], counts["aten::linear"])
