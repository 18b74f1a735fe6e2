# A thread copies pinned batches to the device on a stream of its own, ahead of the loop.
# needs: cuda
import queue
import threading

import fingerprint
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batches = [(torch.randn(64, 256), torch.randint(0, 10, (64,))) for _ in range(20)]
ready = queue.Queue(maxsize=3)


def load(epochs):
    stream = torch.cuda.Stream()
    for _ in range(epochs):
        for batch in batches:
            with torch.cuda.stream(stream):
                moved = [part.pin_memory().cuda(non_blocking=True) for part in batch]
                event = torch.cuda.Event()
                event.record(stream)
            ready.put((moved, event))
    ready.put(None)


thread = threading.Thread(target=load, args=(6,), daemon=True)
thread.start()
count = 0
while (item := ready.get()) is not None:
    (x, y), event = item
    torch.cuda.current_stream().wait_event(event)
    x.record_stream(torch.cuda.current_stream())
    y.record_stream(torch.cuda.current_stream())
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if count % 20 == 0:
        print(count, f"{loss.item():.6f}")
    count += 1
thread.join()
print(fingerprint.weights(model), fingerprint.draws())
