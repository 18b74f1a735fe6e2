# Hogwild: forked processes train one model in shared memory, in turn, and tensors pass through queues.
# needs: cpu
import fingerprint
import torch
import torch.multiprocessing as mp
from torch import nn


def train(model, turns, results):
    torch.set_num_threads(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    while (x := turns.get()) is not None:
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        results.put(loss.item())


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Linear(8, 8).share_memory()
    context = mp.get_context("fork")
    queues = [(context.Queue(), context.Queue()) for _ in range(2)]
    workers = [context.Process(target=train, args=(model, *pair)) for pair in queues]
    for worker in workers:
        worker.start()
    for step in range(20):
        turns, results = queues[step % 2]
        turns.put(torch.randn(4, 8))
        loss = results.get()
        if step % 5 == 0:
            print(step, f"{loss:.6f}")
    for turns, _ in queues:
        turns.put(None)
    for worker in workers:
        worker.join()
    print([worker.exitcode for worker in workers], fingerprint.weights(model), fingerprint.draws())
