# A program that trains little and asks its terminal much: streams, encodings, arguments, limits, its own
# memory.
# needs: cpu
import os
import resource
import sys
import threading

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
print(sys.stdin.read(), sys.stdin.isatty(), sys.stdout.encoding, sys.stdout.line_buffering, sys.argv[1:])
print(sys.flags, sys.getrecursionlimit(), sys.getswitchinterval(), threading.stack_size(), len(sys.path))
print(
    resource.getrlimit(resource.RLIMIT_NOFILE), resource.getrlimit(resource.RLIMIT_CORE), os.getpriority(0, 0)
)
names = ("KINETO", "TORCH", "INDUCTOR", "PYTHON")
print([name for name in sorted(os.environ) if name.startswith(names) and "TEST_SEED" not in name])
print(
    torch.get_num_threads(),
    torch.is_grad_enabled(),
    torch.get_float32_matmul_precision(),
    torch.is_inference_mode_enabled(),
)
