"""How well does a network find what stands out in photographs? Precision, recall and F-measures."""

import os
import time
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 3 if TINY else 40))  # batches
PICTURES, BATCH, SIZE, CHANNELS, LEVELS, THRESHOLDS = (
    (8, 2, 16, 8, 2, 15) if TINY else (256, 8, 352, 32, 4, 255)
)
BETA, TINIEST = 0.3, 1e-20
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
torch.manual_seed(0)
torch.backends.cudnn.benchmark = True


class Double(nn.Sequential):
    def __init__(self, enter, leave):
        super().__init__(
            nn.Conv2d(enter, leave, 3, padding=1, bias=False), nn.BatchNorm2d(leave), nn.ReLU(inplace=True),
            nn.Conv2d(leave, leave, 3, padding=1, bias=False), nn.BatchNorm2d(leave), nn.ReLU(inplace=True),
        )  # fmt: skip


class Saliency(nn.Module):
    def __init__(self):
        super().__init__()
        pairs = list(pairwise(CHANNELS * 2**i for i in range(LEVELS + 1)))
        self.enter = Double(3, CHANNELS)
        self.down = nn.ModuleList(Double(narrow, wide) for narrow, wide in pairs)
        self.join = nn.ModuleList(Double(wide + narrow, narrow) for narrow, wide in pairs)
        self.head = nn.Conv2d(CHANNELS, 1, 1)

    def forward(self, x):
        x = self.enter(x)
        kept = []
        for block in self.down:
            kept.append(x)
            x = block(F.max_pool2d(x, 2))
        for join in reversed(self.join):
            side = kept.pop()
            x = F.interpolate(x, size=side.shape[2:], mode="bilinear")
            x = join(torch.cat([x, side], 1))
        return self.head(x)


class Evaluator:
    def __init__(self):
        self.thresholds = torch.linspace(0, 1 - 1e-10, THRESHOLDS, device=device)
        self.precision = torch.zeros(THRESHOLDS, device=device)
        self.recall = torch.zeros(THRESHOLDS, device=device)
        self.mae, self.seen = 0.0, 0

    def curves(self, found, truth):
        """Precision and recall of a picture, for each threshold."""
        if "counted-once" in FIX:
            bins = torch.bucketize(found.flatten(), self.thresholds, right=True)
            chosen = torch.bincount(bins, minlength=THRESHOLDS + 1)
            hits = torch.bincount(bins, truth.flatten(), minlength=THRESHOLDS + 1)
            chosen, hits = (one.flip(0).cumsum(0).flip(0)[1:].float() for one in (chosen, hits))
            return hits / (chosen + TINIEST), hits / (truth.sum() + TINIEST)
        precision, recall = torch.zeros(THRESHOLDS), torch.zeros(THRESHOLDS)
        precision, recall = precision.to(device), recall.to(device)
        for i in range(THRESHOLDS):
            chosen = (found >= self.thresholds[i]).float()
            hits = (chosen * truth).sum()
            precision[i] = hits / (chosen.sum() + TINIEST)
            recall[i] = hits / (truth.sum() + TINIEST)
        return precision, recall

    def add(self, found, truth):
        found = (found - found.min()) / (found.max() - found.min() + 1e-8)
        precision, recall = self.curves(found, truth)
        self.precision += precision
        self.recall += recall
        mae = (found - truth).abs().mean()
        self.mae += mae if "mae-at-end" in FIX else mae.item()
        self.seen += 1

    def f_measure(self):
        precision, recall = self.precision / self.seen, self.recall / self.seen
        scores = (1 + BETA) * precision * recall / (BETA * precision + recall + TINIEST)
        return scores.max().item(), scores.mean().item()


def photographs():
    """Pictures of something round that is brighter, and where it is."""
    y, x = torch.meshgrid(*2 * [torch.linspace(-1, 1, SIZE, device=device)], indexing="ij")
    at = torch.rand(PICTURES, 3, 1, 1, device=device)
    masks = (x - at[:, :1] + 0.5).square() + (y - at[:, 1:2] + 0.5).square() < 0.05 + 0.2 * at[:, 2:]
    pictures = 60 * masks + 120 + 30 * torch.randn(PICTURES, 3, SIZE, SIZE, device=device)
    return pictures.clamp(0, 255).to(torch.uint8), masks


@torch.inference_mode()
def main():
    pictures, masks = photographs()
    with device:
        model = Saliency().to(dtype).to(memory_format=torch.channels_last).eval()
    evaluator = Evaluator()
    lead, began = min(STEPS // 2, 4), 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        start = step * BATCH % PICTURES
        images = pictures[start : start + BATCH].to(dtype, memory_format=torch.channels_last) / 255
        found = model(images).sigmoid().float()
        for one, mask in zip(found, masks[start : start + BATCH].float(), strict=True):
            evaluator.add(one, mask)
        if step % 10 == 0:
            print(f"batch {step}: {evaluator.seen} pictures")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    best, mean = evaluator.f_measure()
    mae = float(evaluator.mae) / evaluator.seen
    print(f"F {best:.6f} at best, {mean:.6f} on average, MAE {mae:.6f}; {each:.3f} ms per batch")


main()
