"""ResNet-50 from a folder of images, as torchvision's examples train it.

vision.py --workers 2              decoding is slow, and batches lie in pageable memory
vision.py --workers 12 --pinned    enough workers, pinned batches
"""

import argparse
import time

import numpy as np
import torch
import torchvision
from torch import nn
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--workers", type=int, default=2)
parser.add_argument("--pinned", action="store_true")
parser.add_argument("--work-ms", type=float, default=1.2, help="of decoding an image")
parser.add_argument("--steps", type=int, default=120)
args = parser.parse_args()


class Images(Dataset):
    def __len__(self):
        return 64 * args.steps

    def __getitem__(self, i):
        until = time.perf_counter() + args.work_ms / 1e3
        image = np.full((3, 224, 224), i % 7, np.float32)
        while time.perf_counter() < until:  # decoding
            image[0, :8] += 1
        return torch.from_numpy(image), i % 1000


model = torchvision.models.resnet50().cuda().to(memory_format=torch.channels_last).train()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
loader = DataLoader(Images(), 64, shuffle=True, num_workers=args.workers, pin_memory=args.pinned)
began = 0.0
for number, (images, labels) in enumerate(loader):
    if number == args.steps // 4:
        torch.cuda.synchronize()
        began = time.perf_counter()
    images = images.to("cuda", non_blocking=args.pinned, memory_format=torch.channels_last)
    labels = labels.to("cuda", non_blocking=args.pinned)
    optimizer.zero_grad()
    with torch.autocast("cuda", torch.bfloat16):
        loss = nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
torch.cuda.synchronize()
print(f"step_ms {(time.perf_counter() - began) / (args.steps - args.steps // 4) * 1e3:.3f}")
