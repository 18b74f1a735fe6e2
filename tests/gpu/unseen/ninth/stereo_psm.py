"""How far is what two cameras see? A volume of matches at all disparities, and 3-D convolutions over it."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 150))
WARM = min(STEPS // 2, 6)
PAIRS, BATCH, HEIGHT, WIDTH, CHANNELS, FARTHEST = (
    (4, 2, 16, 32, 4, 16) if TINY else (48, 4, 256, 512, 16, 192)
)
SHIFTS = FARTHEST // 4
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)


def clock():
    """Seconds, once the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def conv(inner, outer, stride=1):
    return nn.Sequential(
        nn.Conv2d(inner, outer, 3, stride, 1, bias=False), nn.BatchNorm2d(outer), nn.ReLU(inplace=True)
    )


def conv3d(inner, outer):
    return nn.Sequential(nn.Conv3d(inner, outer, 3, 1, 1, bias=False), nn.BatchNorm3d(outer))


class Features(nn.Module):
    """A quarter of the size, and spatial pyramid pooling."""

    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(conv(3, 32, 2), conv(32, 32), conv(32, 64, 2), conv(64, 64))
        self.branches = nn.ModuleList(conv(64, 16) for _ in range(2))
        self.last = nn.Sequential(conv(96, 64), nn.Conv2d(64, CHANNELS, 1, bias=False))

    def forward(self, x):
        x = self.first(x)
        pooled = [x]
        for size, branch in zip((2, 4), self.branches, strict=True):
            small = branch(F.avg_pool2d(x, size))
            pooled.append(F.interpolate(small, size=x.shape[2:], mode="bilinear"))
        return self.last(torch.cat(pooled, 1))


def matches(left, right):
    """Features of the left picture with those of the right one, for each disparity."""
    if "volume-stacked" in FIX:
        lefts = [F.pad(left[..., shift:], (shift, 0)) for shift in range(SHIFTS)]
        rights = [F.pad(right[..., : right.shape[3] - shift], (shift, 0)) for shift in range(SHIFTS)]
        return torch.cat([torch.stack(lefts, 2), torch.stack(rights, 2)], 1)
    batch, channels, height, width = left.shape
    cost = left.new_zeros(batch, 2 * channels, SHIFTS, height, width)
    for shift in range(SHIFTS):
        if shift > 0:
            cost[:, :channels, shift, :, shift:] = left[..., shift:]
            cost[:, channels:, shift, :, shift:] = right[..., :-shift]
        else:
            cost[:, :channels, shift] = left
            cost[:, channels:, shift] = right
    return cost.contiguous()


class StereoNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = Features()
        self.first = nn.Sequential(conv3d(2 * CHANNELS, CHANNELS), nn.ReLU(inplace=True))
        self.second = nn.Sequential(conv3d(CHANNELS, CHANNELS), nn.ReLU(inplace=True))
        self.classify = nn.Conv3d(CHANNELS, 1, 3, 1, 1, bias=False)
        self.register_buffer("disparities", torch.arange(SHIFTS).float().view(1, -1, 1, 1))

    def forward(self, left, right):
        cost = self.first(matches(self.features(left), self.features(right)))
        cost = self.classify(cost + self.second(cost)).squeeze(1)
        small = (F.softmax(cost, 1) * self.disparities).sum(1, keepdim=True)
        return 4 * F.interpolate(small, size=left.shape[2:], mode="bilinear").squeeze(1)


lefts, rights = (torch.randn(PAIRS, 3, HEIGHT, WIDTH, device=device) for _ in range(2))
truths = FARTHEST * torch.rand(PAIRS, HEIGHT, WIDTH, device=device)
model = StereoNet().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
order, shown = torch.Generator().manual_seed(1), (0.0, 0.0)
for step in range(STEPS):
    if step == WARM:
        began = clock()
    chosen = torch.randint(0, PAIRS, (BATCH,), generator=order).to(device)
    left, right, truth = (data[chosen] for data in (lefts, rights, truths))
    found = model(left, right)
    known = truth < FARTHEST
    loss = (F.smooth_l1_loss(found, truth, reduction="none") * known).sum() / known.sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    wrong = (((found.detach() - truth).abs() > 3) & known).sum() / known.sum()
    if "errors-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
        shown = loss.item(), wrong.item()
each = 1e3 * (clock() - began) / (STEPS - WARM)
print(f"loss {shown[0]:.4f}, wrong by three pixels {shown[1]:.4f}; {each:.3f} ms per step")
