# An index out of range breaks the CUDA context for good; the program says so and leaves with a status of
# its own.
# needs: cuda
# status: 3
import sys

import torch
from torch import nn

torch.manual_seed(0)
words = nn.Embedding(10, 16).cuda()
head = nn.Linear(16, 10).cuda()
optimizer = torch.optim.SGD([*words.parameters(), *head.parameters()], lr=0.1)
for step in range(60):
    ids = torch.randint(0, 10 if step < 45 else 1000, (32,), device="cuda")
    try:
        loss = nn.functional.cross_entropy(head(words(ids)), ids % 10)
        loss.backward()
        optimizer.step()
        value = loss.item()
    except RuntimeError as error:
        print(step, "device-side assert" in str(error), flush=True)
        sys.exit(3)
