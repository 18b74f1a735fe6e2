# The root logger writes everything to stdout and a file; so do torch's own loggers.
# needs: cpu
import logging
import sys

import torch
from torch import nn

form = "%(levelname)s %(name)s %(message)s"
logging.basicConfig(
    level=logging.DEBUG,
    format=form,
    handlers=[logging.StreamHandler(sys.stdout), logging.FileHandler("own.log")],
)
logging.captureWarnings(True)
log = logging.getLogger("train")
torch.manual_seed(0)
model = nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(50):
    loss = model(torch.ones(2, 8)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 10 == 0:
        log.info("step %d %.6f", step, loss.item())
print(
    len(logging.root.handlers),
    logging.root.level,
    [name for name in sorted(logging.root.manager.loggerDict) if "kineto" in name],
)
