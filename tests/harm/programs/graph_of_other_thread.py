# A graph is captured by one thread while the main thread trains: one process for each capture mode. The
# mode "global" forbids unsafe calls in every thread, so that the main thread stands still meanwhile.
# needs: cuda
# arguments: global | thread_local | relaxed
import sys
import threading

import fingerprint
import torch
from torch import nn

MODE = sys.argv[1]
torch.manual_seed(0)
trained = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64)).cuda()
served = nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 64)).cuda()
optimizer = torch.optim.SGD(trained.parameters(), lr=0.01, momentum=0.9)
data = torch.randn(16, 64, device="cuda")
static = torch.randn(8, 64, device="cuda")
captured = []


def capture(count):
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.default_stream())
    with torch.no_grad(), torch.cuda.stream(stream):
        served(static)
    stream.synchronize()
    for _ in range(count):
        graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.stream(stream):
            graph.capture_begin(capture_error_mode=MODE)
            out = static
            for _ in range(20):
                out = served(out)
            graph.capture_end()
        graph.replay()
        torch.cuda.current_stream().synchronize()
        captured.append(fingerprint.tensors(out))


def train(steps):
    for _ in range(steps):
        loss = (trained(data) - data).square().mean()
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        optimizer.step()
    return loss.item()


print(f"{train(10):.6f}")
for _ in range(6):
    thread = threading.Thread(target=capture, args=(3,))
    if MODE != "global":
        torch.cuda.synchronize()
        thread.start()
        print(f"{train(12):.6f}")
        thread.join()
    else:
        torch.cuda.synchronize()
        thread.start()
        thread.join()
        print(f"{train(12):.6f}")
print(len(captured), set(captured))
print(fingerprint.weights(trained, served), fingerprint.draws())
