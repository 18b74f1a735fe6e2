# A capture that the program itself breaks (it waits for the device inside), catches, and does right then.
# needs: cuda
import fingerprint
import torch

torch.manual_seed(0)
x = torch.randn(64, 64, device="cuda")
for turn in range(6):
    broken = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(broken):
            y = x @ x
            y.sum().item()
    except RuntimeError as error:
        print(turn, "broken:", type(error).__name__, "captur" in str(error).lower())
    del broken
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = torch.tanh(x @ x)
    for _ in range(10):
        graph.replay()
    print(turn, fingerprint.tensors(y), torch.cuda.is_current_stream_capturing())
print(fingerprint.draws())
