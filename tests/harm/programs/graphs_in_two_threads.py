# Two threads serve two models; each captures graphs, one at a time, while the other replays its own.
# needs: cuda
import threading

import fingerprint
import torch
from torch import nn

capturing = threading.Lock()
lines = [[], []]
failures = []


def serve(which):
    try:
        stream = torch.cuda.Stream()
        model, x = models[which], inputs[which]
        with torch.cuda.stream(stream), torch.inference_mode():
            for _ in range(3):
                model(x)
            stream.synchronize()
            for turn in range(8):
                graph = torch.cuda.CUDAGraph()
                with capturing:
                    graph.capture_begin(capture_error_mode="thread_local")
                    y = model(x)
                    graph.capture_end()
                for _ in range(20):
                    graph.replay()
                stream.synchronize()
                lines[which].append(f"{which} {turn} {fingerprint.tensors(y)}")
    except Exception as error:
        failures.append(f"{which}: {type(error).__name__}: {error}")


torch.manual_seed(0)
models = [nn.Sequential(*(nn.Linear(96, 96) for _ in range(12))).cuda().eval() for _ in range(2)]
inputs = [torch.randn(4, 96, device="cuda") for _ in range(2)]
torch.cuda.synchronize()
threads = [threading.Thread(target=serve, args=(which,)) for which in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("\n".join(lines[0] + lines[1] + failures))
print(fingerprint.weights(*models), fingerprint.draws())
