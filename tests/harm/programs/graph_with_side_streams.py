# Captures work that forks to two side streams and joins again, then replays it between eager work.
# needs: cuda
import fingerprint
import torch

torch.manual_seed(0)
a = torch.randn(256, 256, device="cuda") / 16
x = torch.randn(256, 256, device="cuda")
sides = [torch.cuda.Stream(), torch.cuda.Stream(priority=-1)]


def work():
    current = torch.cuda.current_stream()
    parts = []
    for side in sides:
        side.wait_stream(current)
        with torch.cuda.stream(side):
            y = x
            for _ in range(4):
                y = torch.tanh(a @ y)
            parts.append(y)
    for side in sides:
        current.wait_stream(side)
    return parts[0] + parts[1]


with torch.cuda.stream(torch.cuda.Stream()):
    work()
torch.cuda.synchronize()
for turn in range(12):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = work()
    for _ in range(5):
        graph.replay()
        x.copy_(out / 2 + torch.rand(256, 256, device="cuda"))
    print(turn, fingerprint.tensors(out), f"{x.sum().item():.4f}")
print(fingerprint.draws())
