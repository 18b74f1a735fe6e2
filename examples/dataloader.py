"""A training loop that waits for its data: DataLoader workers that sleep longer than a step takes.

python dataloader.py --workers 2 --delay 0.01
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class SlowDataset(Dataset):
    """Random samples, each ``delay`` seconds in the making."""

    def __init__(self, samples: int, size: int, delay: float) -> None:
        self.samples, self.size, self.delay = samples, size, delay

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(self.delay)
        return torch.randn(self.size), index % 10


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--delay", type=float, default=0.002, help="seconds to make one sample")
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()

    dataset = SlowDataset(options.steps * options.batch, options.size, options.delay)
    loader = DataLoader(
        dataset, options.batch, num_workers=options.workers, pin_memory=options.device != "cpu"
    )
    model = nn.Sequential(nn.Linear(options.size, 512), nn.ReLU(), nn.Linear(512, 10)).to(options.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loss = torch.zeros(())
    for inputs, labels in loader:
        inputs = inputs.to(options.device, non_blocking=True)
        loss = nn.functional.cross_entropy(model(inputs), labels.to(options.device, non_blocking=True))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f} after {options.steps} steps")


if __name__ == "__main__":
    main()
