# Every way in which a program that trains may end by itself.
# needs: cpu
# arguments: exception | thread_exception | string
# status: 1
import sys
import threading

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


class Wrong(Exception):
    pass


def fail(text):
    try:
        raise Wrong(text)
    except Wrong as error:
        raise ValueError("because of it") from error


for step in range(40):
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
print("trained", flush=True)
way = sys.argv[1]
if way == "exception":
    fail("own")
elif way == "thread_exception":
    thread = threading.Thread(target=fail, args=("in a thread",), name="failing")
    thread.start()
    thread.join()
    sys.exit(1)
else:
    sys.exit("said on stderr")
