# Starts Python and other programs as children, with the environment it sees; one of them imports torch.
# needs: cpu
import os
import subprocess
import sys

import torch
from torch import nn

CHILD = """
import os, sys, torch
print(sorted(name for name in os.environ if "KINETO" in name and "TEST_SEED" not in name))
print(sys.argv[1:], torch.ones(3).sum().item())
"""

torch.manual_seed(0)
model = nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(45):
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    if step in (3, 30):
        done = subprocess.run([sys.executable, "-c", CHILD, str(step)], capture_output=True, text=True)
        print(step, done.returncode, done.stdout, done.stderr)
print(subprocess.run(["sh", "-c", "echo $PYTHONPATH; exit 4"], capture_output=True, text=True).returncode)
print(
    os.environ.get("PYTHONPATH")
    == subprocess.check_output(["sh", "-c", "echo $PYTHONPATH"], text=True).strip()
)
