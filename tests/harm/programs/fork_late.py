# Loaders whose workers are forked anew at every epoch, in the midst of training, and one that is left half
# read.
# needs: cpu
import os

import fingerprint
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Stream(IterableDataset):
    def __iter__(self):
        worker = get_worker_info()
        assert os.getpid() != parent
        for index in range(worker.id, 40, worker.num_workers):
            yield torch.full((8,), float(index))


if __name__ == "__main__":
    parent = os.getpid()
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Linear(8, 1).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(4):
        loader = DataLoader(Stream(), batch_size=2, num_workers=2)
        for number, x in enumerate(loader):
            loss = (model(x.to(device)) - x.to(device).sum(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if epoch == 2 and number == 5:
                break
        print(epoch, number, f"{loss.item():.4f}")
    print(fingerprint.weights(model), fingerprint.draws())
