"""Learn to recognise faces: a small residual network and an additive angular margin over many identities."""

import math
import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 5 if TINY else 300))
WARM = min(STEPS // 2, 8)
FACES, IDENTITIES, BATCH, SIDE, WIDTHS, FEATURES = (
    (40, 30, 8, 16, (4, 8), 16) if TINY else (4096, 120_000, 512, 112, (32, 64, 128, 256), 512)
)
SCALE, MARGIN = 64.0, 0.5
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.backends.cuda.matmul.allow_tf32 = True
torch.manual_seed(0)


def clock():
    """Seconds, once the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


class Block(nn.Module):
    def __init__(self, inner, outer):
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(inner, outer, 3, 2, 1, bias=False),
            nn.BatchNorm2d(outer),
            nn.PReLU(outer),
            nn.Conv2d(outer, outer, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outer),
        )
        self.short = nn.Sequential(nn.Conv2d(inner, outer, 1, 2, bias=False), nn.BatchNorm2d(outer))

    def forward(self, x):
        return self.main(x) + self.short(x)


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        first = WIDTHS[0]
        self.stem = nn.Sequential(
            nn.Conv2d(3, first, 3, 1, 1, bias=False), nn.BatchNorm2d(first), nn.PReLU(first)
        )
        pairs = zip((first, *WIDTHS[:-1]), WIDTHS, strict=True)
        self.blocks = nn.Sequential(*(Block(inner, outer) for inner, outer in pairs))
        left = SIDE // 2 ** len(WIDTHS)
        self.out = nn.Sequential(
            nn.Flatten(),
            nn.Linear(WIDTHS[-1] * left * left, FEATURES, bias=False),
            nn.BatchNorm1d(FEATURES),
        )

    def forward(self, x):
        return self.out(self.blocks(self.stem(x)))


class ArcMarginProduct(nn.Module):
    """Cosines to all identities; that of the right one with a margin added to its angle."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(nn.init.xavier_uniform_(torch.empty(IDENTITIES, FEATURES, device=device)))
        self.cos_m, self.sin_m = math.cos(MARGIN), math.sin(MARGIN)
        self.th, self.mm = math.cos(math.pi - MARGIN), math.sin(math.pi - MARGIN) * MARGIN

    def margin(self, cosine):
        sine = torch.sqrt((1.0 - torch.pow(cosine, 2)).clamp(1e-7, 1))
        phi = cosine * self.cos_m - sine * self.sin_m
        return torch.where(cosine > self.th, phi, cosine - self.mm)

    def forward(self, features, labels):
        cosine = F.linear(F.normalize(features), F.normalize(self.weight))
        if "margin-of-one" in FIX:
            right = self.margin(cosine.gather(1, labels[:, None]))
            return SCALE * cosine.scatter(1, labels[:, None], right)
        phi = self.margin(cosine)
        one_hot = torch.zeros_like(cosine)
        one_hot.scatter_(1, labels[:, None], 1)
        return SCALE * (one_hot * phi + (1.0 - one_hot) * cosine)


labels_of = torch.randint(0, IDENTITIES, (FACES,), device=device)
photos = torch.randint(0, 256, (FACES, 3, SIDE, SIDE), dtype=torch.uint8, device=device)
backbone = Backbone().to(device, memory_format=torch.channels_last)
head = ArcMarginProduct()
optimizer = torch.optim.SGD(
    [*backbone.parameters(), *head.parameters()], lr=0.02, momentum=0.9, weight_decay=5e-4
)
order, shown = torch.Generator().manual_seed(1), (0.0, 0.0)
for step in range(STEPS):
    if step == WARM:
        began = clock()
    chosen = torch.randperm(FACES, generator=order)[:BATCH].to(device)
    x, labels = photos[chosen].to(memory_format=torch.channels_last), labels_of[chosen]
    with torch.autocast(device.type, torch.bfloat16):
        features = backbone((x.float() - 127.5) / 127.5)
    output = head(features.float(), labels)
    loss = F.cross_entropy(output, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    right = (output.detach().argmax(1) == labels).float().mean()
    if "accuracy-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
        shown = loss.item(), right.item()
each = 1e3 * (clock() - began) / (STEPS - WARM)
print(f"loss {shown[0]:.4f}, accuracy {shown[1]:.3f}; {each:.3f} ms per step")
