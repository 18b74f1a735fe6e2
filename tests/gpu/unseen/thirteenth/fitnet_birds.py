"""A small network for birds learns from a large one: its answers, and what it sees half way."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 100))
SIZE, BATCH, SIDE, KINDS, LARGE, SMALL, DEPTHS = (
    (8, 4, 32, 5, 8, 8, (1, 1, 1, 1)) if TINY else (1024, 128, 160, 200, 64, 32, (3, 4, 6, 3))
)
WARM, ALPHA, BETA = 4.0, 0.9, 50.0
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low = device.type == "cuda"
torch.manual_seed(0)
torch.backends.cudnn.benchmark = True


class Bottleneck(nn.Module):
    def __init__(self, enter, wide, stride):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(enter, wide, 1, bias=False), nn.BatchNorm2d(wide)
        self.conv2, self.norm2 = nn.Conv2d(wide, wide, 3, stride, 1, bias=False), nn.BatchNorm2d(wide)
        self.conv3, self.norm3 = nn.Conv2d(wide, 4 * wide, 1, bias=False), nn.BatchNorm2d(4 * wide)
        self.skip = nn.Identity() if enter == 4 * wide else nn.Conv2d(enter, 4 * wide, 1, stride, bias=False)

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)))
        y = F.relu(self.norm2(self.conv2(y)))
        return F.relu(self.norm3(self.conv3(y)) + self.skip(x))


class ResNet(nn.Module):
    def __init__(self, wide, depths):
        super().__init__()
        self.enter = nn.Sequential(
            nn.Conv2d(3, wide, 7, 2, 3), nn.BatchNorm2d(wide), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        stages, enter = [], wide
        for i, depth in enumerate(depths):
            blocks = []
            for j in range(depth):
                blocks.append(Bottleneck(enter, wide << i, 2 if i and not j else 1))
                enter = 4 * (wide << i)
            stages.append(nn.Sequential(*blocks))
        self.stages, self.head = nn.ModuleList(stages), nn.Linear(enter, KINDS)

    def forward(self, x):
        x = self.enter(x)
        for i, stage in enumerate(self.stages):
            x = stage(x)
            if i == 2:
                seen = x
        return self.head(x.mean((2, 3))), seen


class Distiller(nn.Module):
    """The regressor makes the student's features as wide as the teacher's."""

    def __init__(self, teacher, student):
        super().__init__()
        self.teacher, self.student = teacher, student
        self.regressor = nn.Conv2d(16 * SMALL, 16 * LARGE, 1)

    def forward(self, images, labels):
        self.teacher.eval()
        if "no-grad" in FIX:
            with torch.no_grad():
                taught, hint = self.teacher(images)
        else:
            taught, hint = self.teacher(images)
        logits, seen = self.student(images)
        soft = F.kl_div(
            F.log_softmax(logits.float() / WARM, 1),
            F.softmax(taught.float() / WARM, 1),
            reduction="batchmean",
        )
        hard = F.cross_entropy(logits.float(), labels)
        near = F.mse_loss(self.regressor(seen).float(), hint.float())
        return ALPHA * WARM**2 * soft + (1 - ALPHA) * hard + BETA * near, logits


def main():
    labels = torch.randint(KINDS, (SIZE,), device=device)
    images = torch.randn(SIZE, 3, SIDE, SIDE, device=device, dtype=torch.bfloat16 if low else torch.float32)
    images[:, 0] += (labels / KINDS)[:, None, None].to(images.dtype)
    images = images.to(memory_format=torch.channels_last)
    with device:
        distiller = Distiller(ResNet(LARGE, DEPTHS), ResNet(SMALL, (1, 1, 1, 1)))
    distiller.to(memory_format=torch.channels_last)
    parameters = [*distiller.student.parameters(), *distiller.regressor.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.01, momentum=0.9, weight_decay=1e-4)
    lead, began, shown, right = min(STEPS // 2, 6), 0.0, 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        chosen = torch.randint(SIZE, (BATCH,), device=device)
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            loss, logits = distiller(images[chosen], labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        hits = (logits.argmax(1) == labels[chosen]).float().mean()
        if "figures-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown, right = loss.item(), hits.item()
        if step % 20 == 0:
            print(f"step {step}: loss {shown:.4f}, right {right:.3f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.5f}; {each:.3f} ms per step")


main()
