"""A compiled convolution net that keeps the device busy: the host runs steps ahead of it."""

import time

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 5, padding=2, groups=width)
        self.norm = nn.BatchNorm2d(width)
        self.expand, self.project = nn.Conv2d(width, 4 * width, 1), nn.Conv2d(4 * width, width, 1)

    def forward(self, x):
        y = nn.functional.silu(self.norm(self.depthwise(x)))
        return x + self.project(nn.functional.silu(self.expand(y)))


model = nn.Sequential(
    nn.Conv2d(3, 128, 7, stride=4),
    *[Block(128) for _ in range(8)],
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(128, 10),
).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
images, labels = torch.randn(128, 3, 224, 224, device="cuda"), torch.randint(0, 10, (128,), device="cuda")


@torch.compile
def forward(x, y):
    with torch.autocast("cuda", torch.bfloat16):
        return nn.functional.cross_entropy(model(x), y)


for number in range(110):
    if number == 50:
        torch.cuda.synchronize()
        began = time.perf_counter()
    optimizer.zero_grad()
    forward(images, labels).backward()
    optimizer.step()
torch.cuda.synchronize()
print(f"step_ms {(time.perf_counter() - began) / 60 * 1e3:.3f}")
