# Four threads of a pool call one model; on a GPU each has a stream of its own.
# needs: cpu
import threading
from concurrent.futures import ThreadPoolExecutor

import fingerprint
import torch
from torch import nn

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 16)).to(device).eval()
local = threading.local()


@torch.inference_mode()
def infer(number):
    x = torch.randn(8, 64, generator=torch.Generator().manual_seed(number))
    if device == "cpu":
        return fingerprint.tensors(model(x))
    if not hasattr(local, "stream"):
        local.stream = torch.cuda.Stream()
    with torch.cuda.stream(local.stream):
        return fingerprint.tensors(model(x.cuda()))


if device == "cuda":
    torch.cuda.synchronize()
with ThreadPoolExecutor(4) as pool:
    answers = list(pool.map(infer, range(200)))
print(len(set(answers)), answers[::40])
print(fingerprint.weights(model), fingerprint.draws())
