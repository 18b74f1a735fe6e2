"""A film of a call: people are cut out of each frame, and a plain wall is put behind them."""

import itertools
import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 5 if TINY else 100))  # frames
HIGH, LONG, SEEN, WIDE, DEPTH = (36, 64, (16, 32), 8, 3) if TINY else (1080, 1920, (288, 512), 32, 5)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low = "network-low" in FIX
torch.manual_seed(0)
torch.backends.cudnn.benchmark = True


class Separable(nn.Module):
    """An inverted bottleneck, as in MobileNet."""

    def __init__(self, enter, leave, stride):
        super().__init__()
        wide = 4 * enter
        self.body = nn.Sequential(
            nn.Conv2d(enter, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU6(),
            nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False), nn.BatchNorm2d(wide), nn.ReLU6(),
            nn.Conv2d(wide, leave, 1, bias=False), nn.BatchNorm2d(leave),
        )  # fmt: skip
        self.same = stride == 1 and enter == leave

    def forward(self, x):
        return x + self.body(x) if self.same else self.body(x)


class MattingNet(nn.Module):
    def __init__(self):
        super().__init__()
        widths = [min(WIDE << i, 8 * WIDE) for i in range(DEPTH)]
        self.enter = nn.Conv2d(3, WIDE, 3, 2, 1)
        self.down = nn.ModuleList(
            nn.Sequential(Separable(enter, leave, 2), Separable(leave, leave, 1), Separable(leave, leave, 1))
            for enter, leave in itertools.pairwise(widths)
        )
        self.up = nn.ModuleList(
            nn.Sequential(nn.Conv2d(deep + flat, flat, 3, padding=1), nn.BatchNorm2d(flat), nn.ReLU())
            for flat, deep in reversed(list(itertools.pairwise(widths)))
        )
        self.leave = nn.Conv2d(WIDE, 1, 3, padding=1)

    def forward(self, x):
        kept = [self.enter(x)]
        for down in self.down:
            kept.append(down(kept[-1]))
        x = kept.pop()
        for up, other in zip(self.up, reversed(kept), strict=True):
            x = F.interpolate(x, other.shape[2:], mode="bilinear", align_corners=False)
            x = up(torch.cat([x, other], 1))
        return torch.sigmoid(8 * self.leave(x))


def film():
    """Frames of a few seconds, which are shown again and again."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:HIGH, :LONG].astype(np.float32)
    frames = []
    for i in range(8):
        person = np.hypot(y - 0.6 * HIGH, x - (0.4 + 0.02 * i) * LONG) < 0.3 * HIGH
        frame = np.stack([90 + 100 * person, 60 + 60 * y / HIGH, 80 + 90 * person * x / LONG], 2)
        frames.append((frame + rng.integers(0, 20, frame.shape)).astype(np.uint8))
    return frames


@torch.no_grad()
def matte_of(model, frame):
    image = frame.permute(2, 0, 1)[None].float() / 127.5 - 1
    small = F.interpolate(image, SEEN, mode="bilinear", align_corners=False, antialias=True)
    with torch.autocast(device.type, torch.bfloat16, enabled=low):
        matte = model(small)
    return F.interpolate(matte.float(), (HIGH, LONG), mode="bilinear", align_corners=False)[0, 0]


def replaced(model, frame_np):
    """A frame with a white wall behind who is in it."""
    frame = torch.from_numpy(frame_np).to(device)
    matte = matte_of(model, frame)
    if "composed-on-device" in FIX:
        composed = matte[..., None] * frame + (1 - matte[..., None]) * 255.0
        return composed.to(torch.uint8).cpu().numpy()
    matte_np = matte.cpu().numpy()[:, :, None]
    wall = np.full(frame_np.shape, 255.0)
    composed = matte_np * frame_np + (1 - matte_np) * wall
    return composed.astype(np.uint8)


def main():
    frames, model = film(), MattingNet().to(device).eval()
    lead, began, written = min(STEPS // 2, 6), 0.0, 0.0
    for i in range(STEPS):
        if i == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        composed = replaced(model, frames[i % len(frames)])
        written += float(composed[::8, ::8].mean())  # in place of a video writer
        if i % 20 == 0:
            print(f"frame {i}: {written / (i + 1):.3f} bright")
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"brightness {written / STEPS:.4f}; {each:.3f} ms per frame")


main()
