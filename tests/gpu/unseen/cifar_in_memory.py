"""A ResNet-9 on 50 000 small pictures. They are all in memory, so no workers are needed."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 1600))
COUNT, BATCH, WIDTH = (256, 64, 8) if TINY else (50_000, 512, 64)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
torch.backends.cudnn.benchmark = True


def conv(a, b, pool=False):
    layers = [nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.CELU(0.3)]
    return nn.Sequential(*layers, *([nn.MaxPool2d(2)] if pool else []))


class ResNet9(nn.Module):
    def __init__(self):
        super().__init__()
        w = WIDTH
        self.stem, self.one = conv(3, w), conv(w, 2 * w, True)
        self.res1 = nn.Sequential(conv(2 * w, 2 * w), conv(2 * w, 2 * w))
        self.two, self.three = conv(2 * w, 4 * w, True), conv(4 * w, 8 * w, True)
        self.res2 = nn.Sequential(conv(8 * w, 8 * w), conv(8 * w, 8 * w))
        self.head = nn.Linear(8 * w, 10, bias=False)

    def forward(self, x):
        x = self.one(self.stem(x))
        x = x + self.res1(x)
        x = self.three(self.two(x))
        x = x + self.res2(x)
        return self.head(x.amax((2, 3))) * 0.125


def crop_and_flip(x):
    """One random crop a batch and one flip a picture, on whatever device the batch is."""
    top, left = torch.randint(0, 9, (2,)).tolist()
    x = F.pad(x, (4, 4, 4, 4), "reflect")[:, :, top : top + 32, left : left + 32]
    return torch.where(torch.rand(len(x), 1, 1, 1, device=x.device) < 0.5, x.flip(3), x)


class DeviceLoader:
    def __init__(self, images, labels):
        self.images, self.labels = images.to(device), labels.to(device)

    def __iter__(self):
        order = torch.randperm(len(self.images), device=device)
        for part in order.split(BATCH)[: len(self.images) // BATCH]:
            yield self.images[part], self.labels[part]


images = torch.randint(0, 256, (COUNT, 3, 32, 32), dtype=torch.uint8).float().div_(255).sub_(0.47).div_(0.25)
labels = torch.randint(0, 10, (COUNT,))
if "on-device" in FIX:
    loader = DeviceLoader(images, labels)
else:
    loader = DataLoader(
        TensorDataset(images, labels),
        BATCH,
        shuffle=True,
        drop_last=True,
        num_workers=8 if "workers" in FIX else 0,
        persistent_workers="workers" in FIX,
        pin_memory="pinned" in FIX,
    )
model = ResNet9().to(device, memory_format=torch.channels_last)
optimizer = torch.optim.SGD(model.parameters(), 0.2, 0.9, weight_decay=5e-4, nesterov=True)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.4, STEPS + 1)
step = 0
while step < STEPS:
    running = torch.zeros((), device=device)
    for x, y in loader:
        if step == STEPS // 3:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        x = crop_and_flip(x).contiguous(memory_format=torch.channels_last)
        with torch.autocast(device.type, torch.bfloat16):
            loss = F.cross_entropy(model(x), y, label_smoothing=0.2)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        running += loss.detach()
        step += 1
        if step == STEPS:
            break
    print(f"step {step}/{STEPS} loss {running.item() / (COUNT // BATCH):.4f}")
if device.type == "cuda":
    torch.cuda.synchronize()
print(f"{(time.perf_counter() - start) / (STEPS - STEPS // 3) * 1e3:.4f} ms per step")
