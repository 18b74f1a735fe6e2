"""Distil a wide residual network into a narrow one; the teacher answers for every augmented batch."""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 900))
BATCH, CLASSES, TEMPERATURE, ALPHA = 4 if TINY else 256, 100, 4.0, 0.9
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(3)
torch.backends.cudnn.benchmark = True


class Pictures(Dataset):
    def __init__(self):
        self.images = torch.randint(0, 256, (64 if TINY else 20_000, 3, 32, 32), dtype=torch.uint8)
        self.labels = torch.randint(0, CLASSES, (len(self.images),))

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        image = F.pad(self.images[i].float() / 255, (4, 4, 4, 4))
        top, left = torch.randint(0, 9, (2,)).tolist()
        image = image[:, top : top + 32, left : left + 32]
        if torch.rand(()) < 0.5:
            image = image.flip(2)
        return (image - 0.5) / 0.25, self.labels[i]


class Residual(nn.Module):
    def __init__(self, a, b, stride):
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(a), nn.Conv2d(a, b, 3, stride, 1, bias=False)
        self.bn2, self.conv2 = nn.BatchNorm2d(b), nn.Conv2d(b, b, 3, 1, 1, bias=False)
        self.skip = nn.Conv2d(a, b, 1, stride, bias=False) if a != b else None

    def forward(self, x):
        y = F.relu(self.bn1(x))
        h = self.conv2(F.relu(self.bn2(self.conv1(y))))
        return h + (x if self.skip is None else self.skip(y))


def wide_resnet(width, depth):
    layers, channels = [nn.Conv2d(3, 16, 3, 1, 1, bias=False)], 16
    for stage in range(3):
        for block in range(depth):
            out = 16 * width * 2**stage
            layers.append(Residual(channels, out, 2 if stage and not block else 1))
            channels = out
    return nn.Sequential(
        *layers,
        nn.BatchNorm2d(channels),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(channels, CLASSES),
    )


class AverageMeter:
    def __init__(self):
        self.total = self.count = 0

    def update(self, value, n=1):
        self.total += value * n
        self.count += n

    @property
    def avg(self):
        return self.total / max(1, self.count)


teacher = wide_resnet(1 if TINY else 10, 1 if TINY else 4).to(device).eval()
student = wide_resnet(1 if TINY else 2, 1 if TINY else 2).to(device)
if "channels-last" in FIX:
    teacher, student = (m.to(memory_format=torch.channels_last) for m in (teacher, student))
optimizer = torch.optim.SGD(student.parameters(), 0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)
loader = DataLoader(
    Pictures(), BATCH, shuffle=True, num_workers=8, pin_memory=device.type == "cuda", drop_last=True
)


def train_epoch(step):
    losses, accuracy, batch_time, end = AverageMeter(), AverageMeter(), AverageMeter(), time.time()
    for images, labels in loader:
        images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        if "channels-last" in FIX:
            images = images.contiguous(memory_format=torch.channels_last)
        with torch.autocast(device.type, torch.bfloat16, enabled="teacher-bf16" in FIX):
            if "no-grad" in FIX:
                with torch.no_grad():
                    soft = teacher(images)
            else:
                soft = teacher(images).detach()
        hard = student(images)
        distilled = F.kl_div(
            F.log_softmax(hard / TEMPERATURE, 1),
            F.softmax(soft.float() / TEMPERATURE, 1),
            reduction="batchmean",
        )
        loss = ALPHA * TEMPERATURE**2 * distilled + (1 - ALPHA) * F.cross_entropy(hard, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.update(loss.item(), len(images))
        accuracy.update((hard.argmax(1) == labels).float().mean().item(), len(images))
        batch_time.update(time.time() - end)
        times.append(time.time() - end)
        end = time.time()
        step += 1
        if step % 25 == 0:
            print(f"step {step} time {batch_time.avg:.4f} loss {losses.avg:.3f} acc {accuracy.avg:.3f}")
        if step == STEPS:
            break
    return step


times, step = [], 0
while step < STEPS:
    step = train_epoch(step)
times = sorted(times[STEPS // 4 :])
print(f"batch time: median {times[len(times) // 2]:.5f} s, mean {sum(times) / len(times):.5f} s")
