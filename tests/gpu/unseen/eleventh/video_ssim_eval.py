"""How well are the next ten frames foreseen? A test of a video predictor: MSE, MAE, PSNR and SSIM."""

import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 3 if TINY else 60))  # batches
CLIPS, BATCH, PAST, FUTURE, SIDE, WIDTH, INNER, DEPTH = (
    (8, 2, 3, 3, 16, 4, 8, 1) if TINY else (256, 16, 10, 10, 64, 64, 512, 8)
)
WINDOW, K1, K2 = 7, 0.01, 0.03
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)


def clips():
    """Bright spots that move, on the device."""
    y, x = torch.meshgrid(*[torch.arange(SIDE, device=device)] * 2, indexing="ij")
    times = torch.arange(PAST + FUTURE, device=device)
    video = torch.zeros(CLIPS, PAST + FUTURE, SIDE, SIDE, device=device)
    for _ in range(3):
        start, speed = torch.rand(2, CLIPS, 1, device=device) * SIDE, torch.randn(2, CLIPS, 1, device=device)
        cy, cx = ((start + 2 * speed * times) % SIDE)[..., None, None]
        video += torch.exp(-((y - cy) ** 2 + (x - cx) ** 2) / (SIDE / 4))
    return video.clamp(0, 1)[:, :, None]


class Mixer(nn.Module):
    """Space and time mixed by convolutions of several widths."""

    def __init__(self):
        super().__init__()
        channels = PAST * WIDTH
        self.narrow = nn.Conv2d(channels, INNER, 1)
        self.convs = nn.ModuleList(nn.Conv2d(INNER, INNER, k, padding=k // 2, groups=8) for k in (3, 5, 7))
        self.norm, self.widen = nn.GroupNorm(8, INNER), nn.Conv2d(INNER, channels, 1)

    def forward(self, x):
        y = self.narrow(x)
        return x + self.widen(F.leaky_relu(self.norm(sum(conv(y) for conv in self.convs)), 0.2))


class Predictor(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Conv2d(1, WIDTH, 3, 2, 1)
        self.encode = nn.Conv2d(WIDTH, WIDTH, 3, 2, 1)
        self.mix = nn.Sequential(*(Mixer() for _ in range(DEPTH)))
        self.decode = nn.ConvTranspose2d(WIDTH, WIDTH, 4, 2, 1)
        self.leave = nn.ConvTranspose2d(WIDTH, 1, 4, 2, 1)

    def forward(self, past):
        x = F.silu(self.enter(past.flatten(0, 1)))
        x = F.silu(self.encode(x)).unflatten(0, (-1, PAST)).flatten(1, 2)
        x = self.mix(x).unflatten(1, (PAST, WIDTH)).flatten(0, 1)
        x = self.leave(F.silu(self.decode(x))).unflatten(0, (-1, PAST))
        return (past[:, -1:] + 0.1 * x)[:, :FUTURE]


def box_mean(image):
    """Means of all windows, by running sums."""
    for axis in (0, 1):
        sums = np.cumsum(image, axis=axis, dtype=np.float64)
        sums = np.concatenate([np.zeros_like(sums.take([0], axis)), sums], axis)
        last = image.shape[axis] + 1
        image = (sums.take(range(WINDOW, last), axis) - sums.take(range(last - WINDOW), axis)) / WINDOW
    return image


def ssim(a, b):
    """Structural similarity of two pictures between 0 and 1."""
    count, c1, c2 = WINDOW**2, K1**2, K2**2
    a, b = a.astype(np.float64), b.astype(np.float64)
    ua, ub = box_mean(a), box_mean(b)
    unbiased = count / (count - 1)
    va, vb = unbiased * (box_mean(a * a) - ua * ua), unbiased * (box_mean(b * b) - ub * ub)
    vab = unbiased * (box_mean(a * b) - ua * ub)
    shares = ((2 * ua * ub + c1) * (2 * vab + c2)) / ((ua**2 + ub**2 + c1) * (va + vb + c2))
    return shares.mean()


def ssim_on_device(a, b):
    """The same of all pictures at once."""
    count, c1, c2 = WINDOW**2, K1**2, K2**2
    a, b = a.flatten(0, 1).double(), b.flatten(0, 1).double()
    ua, ub, aa, bb, ab = (F.avg_pool2d(one, WINDOW, 1) for one in (a, b, a * a, b * b, a * b))
    unbiased = count / (count - 1)
    va, vb, vab = unbiased * (aa - ua * ua), unbiased * (bb - ub * ub), unbiased * (ab - ua * ub)
    return (((2 * ua * ub + c1) * (2 * vab + c2)) / ((ua**2 + ub**2 + c1) * (va + vb + c2))).mean()


def measure(predicted, true):
    """The figures of a batch, as means over clips and frames."""
    difference = predicted - true
    mse = difference.square().sum((2, 3, 4)).mean()
    mae = difference.abs().sum((2, 3, 4)).mean()
    psnr = -10 * difference.square().mean((2, 3, 4)).log10().mean()
    figures = [mse, mae, psnr] if "figures-at-end" in FIX else [mse.item(), mae.item(), psnr.item()]
    if "ssim-on-device" in FIX:
        return [*figures, ssim_on_device(predicted, true)]
    predicted, true = predicted.cpu().numpy(), true.cpu().numpy()
    found = 0.0
    for clip in range(len(predicted)):
        for frame in range(FUTURE):
            found += ssim(predicted[clip, frame, 0], true[clip, frame, 0])
    return [*figures, found / (len(predicted) * FUTURE)]


@torch.no_grad()
def main():
    video, model = clips(), Predictor().to(device).eval()
    lead, began, seen = min(STEPS // 2, 3), 0.0, []
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        first = step * BATCH % CLIPS
        batch = video[first : first + BATCH]
        predicted = model(batch[:, :PAST]).clamp(0, 1)
        seen.append(measure(predicted, batch[:, PAST:]))
    mse, mae, psnr, similar = (float(sum(one)) / len(seen) for one in zip(*seen, strict=True))
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"MSE {mse:.3f}, MAE {mae:.3f}, PSNR {psnr:.3f}, SSIM {similar:.5f}; {each:.3f} ms per batch")


main()
