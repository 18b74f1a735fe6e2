"""How sure is a network about photographs of eyes? Each is looked at many times, with dropout left on."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 3 if TINY else 60))  # batches
EYES, BATCH, SIZE, WIDE, DEPTHS, PASSES = (
    (12, 4, 32, 8, (1, 1), 4) if TINY else (1024, 64, 224, 64, (3, 4, 6, 3), 20)
)
GRADES, DROP = 5, 0.3
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
torch.manual_seed(0)
torch.backends.cudnn.benchmark = True


class Bottleneck(nn.Module):
    def __init__(self, enter, wide, stride):
        super().__init__()
        leave = 4 * wide
        self.body = nn.Sequential(
            nn.Conv2d(enter, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU(inplace=True),
            nn.Conv2d(wide, wide, 3, stride, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU(inplace=True),
            nn.Conv2d(wide, leave, 1, bias=False), nn.BatchNorm2d(leave),
        )  # fmt: skip
        self.short = nn.Identity()
        if stride > 1 or enter != leave:
            self.short = nn.Sequential(nn.Conv2d(enter, leave, 1, stride, bias=False), nn.BatchNorm2d(leave))

    def forward(self, x):
        return F.relu(self.body(x) + self.short(x))


class Grader(nn.Module):
    def __init__(self):
        super().__init__()
        layers = [nn.Conv2d(3, WIDE, 7, 2, 3, bias=False), nn.BatchNorm2d(WIDE), nn.ReLU(inplace=True)]
        layers.append(nn.MaxPool2d(3, 2, 1))
        enter = WIDE
        for i, depth in enumerate(DEPTHS):
            for j in range(depth):
                layers.append(Bottleneck(enter, WIDE << i, 2 if i and not j else 1))
                enter = 4 * (WIDE << i)
        self.features = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.classifier = nn.Sequential(
            nn.Dropout(DROP), nn.Linear(enter, enter // 4), nn.ReLU(), nn.Dropout(DROP),
            nn.Linear(enter // 4, GRADES),
        )  # fmt: skip

    def forward(self, x):
        return self.classifier(self.features(x))


def enable_dropout(model):
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.train()


def doubts(model, images):
    """What passes say on average, and how much they disagree."""
    features = model.features(images) if "features-once" in FIX else None
    passes = []
    for _ in range(PASSES):
        logits = model(images) if features is None else model.classifier(features)
        chances = F.softmax(logits.float(), dim=1)
        passes.append(chances if "kept-on-device" in FIX else chances.cpu())
    passes = torch.stack(passes)
    mean = passes.mean(0)
    entropy = -(mean * mean.clamp(min=1e-8).log()).sum(1)
    expected = -(passes * passes.clamp(min=1e-8).log()).sum(2).mean(0)
    return mean, entropy, entropy - expected


@torch.inference_mode()
def main():
    photographs = torch.randint(256, (EYES, 3, SIZE, SIZE), dtype=torch.uint8, device=device)
    grades = torch.randint(GRADES, (EYES,), device=device)
    with device:
        model = Grader()
    model = model.to(dtype).to(memory_format=torch.channels_last).eval()
    enable_dropout(model)
    lead, began, right, referred, spread = min(STEPS // 2, 4), 0.0, 0, 0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        rows = torch.arange(step * BATCH, (step + 1) * BATCH, device=device) % EYES
        images = photographs[rows].to(dtype, memory_format=torch.channels_last).div(127.5).sub(1)
        mean, entropy, mutual = doubts(model, images)
        right += (mean.argmax(1) == grades[rows].to(mean.device)).sum().item()
        referred += (entropy > 1.5).sum().item()
        spread += mutual.mean().item()
        if step % 20 == 0:
            print(f"batch {step}: {right} of {(step + 1) * BATCH} right, {referred} referred")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"{right} right, {referred} referred, information {spread / STEPS:.6f}; {each:.3f} ms per batch")


main()
