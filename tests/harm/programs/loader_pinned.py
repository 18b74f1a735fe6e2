# A DataLoader with workers and pinned memory, shuffled, with seeds of the workers' own.
# needs: cpu
import random

import fingerprint
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Noise(Dataset):
    def __len__(self):
        return 256

    def __getitem__(self, index):
        return torch.randn(32) + random.random(), index % 4


if __name__ == "__main__":
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Linear(32, 4).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(7)
    loader = DataLoader(
        Noise(), 8, shuffle=True, num_workers=2, pin_memory=device == "cuda", generator=generator
    )
    for epoch in range(2):
        for x, y in loader:
            x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(epoch, f"{loss.item():.6f}")
    print(fingerprint.weights(model), fingerprint.draws())
