# torch.compile(mode="max-autotune-no-cudagraphs"): kernels are timed while it compiles.
# needs: cuda
# exact: no
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 64)).cuda().half()
compiled = torch.compile(model, mode="max-autotune-no-cudagraphs")
with torch.inference_mode():
    for step in range(60):
        y = compiled(torch.randn(128, 128, device="cuda", dtype=torch.half))
        if step % 20 == 0:
            print(step, tuple(y.shape), bool(y.isfinite().all()))
