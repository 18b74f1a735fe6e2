# Training processes by torch.multiprocessing.spawn, after the parent has trained itself.
# needs: cpu
import fingerprint
import torch
import torch.multiprocessing as mp
from torch import nn


def train(rank, results):
    torch.manual_seed(rank)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Linear(8, 8).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(30):
        loss = model(torch.ones(2, 8, device=device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    results.put((rank, f"{loss.item():.8f}", fingerprint.weights(model)))


if __name__ == "__main__":
    queue = mp.get_context("spawn").SimpleQueue()
    train(9, queue)
    print(queue.get())
    mp.spawn(train, args=(queue,), nprocs=2)
    print(sorted(queue.get() for _ in range(2)))
    print(fingerprint.draws())
