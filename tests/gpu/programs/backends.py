"""One small network compiled by each of torch's own backends, and by one of the user's."""

import torch


def mine(graph, inputs):
    return graph.forward


device = "cuda" if torch.cuda.is_available() else "cpu"
backends = ["eager", "aot_eager", "inductor", mine] + (["cudagraphs"] if device == "cuda" else [])
x = torch.rand(64, 256, device=device)
compiled = []
for backend in backends:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.GELU(), torch.nn.Linear(256, 8)).to(
        device
    )
    compiled.append(torch.compile(model, backend=backend))
with torch.no_grad():
    for _ in range(40):
        outputs = [model(x) for model in compiled]
print(f"backends: {max((y - outputs[0]).abs().max().item() for y in outputs):.2g} apart")
