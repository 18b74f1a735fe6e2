"""Complete pictures with a gated PixelCNN: the upper half is given, the lower drawn pixel by pixel."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 20 if TINY else 160))  # pixels
SIDE, GREYS, WIDTH, BLOCKS, SAMPLES, CLASSES = (16, 4, 8, 2, 2, 3) if TINY else (28, 16, 128, 5, 144, 10)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
torch.backends.cudnn.benchmark = True


class VerticalConv(nn.Conv2d):
    """Sees rows above the pixel only."""

    def __init__(self, inputs, outputs, kernel, own):
        super().__init__(inputs, outputs, kernel, padding=kernel // 2)
        mask = torch.zeros(kernel, kernel)
        mask[: kernel // 2 + own] = 1
        self.register_buffer("mask", mask)

    def forward(self, x):
        return F.conv2d(x, self.weight * self.mask, self.bias, padding=self.padding)


class HorizontalConv(nn.Conv2d):
    """Sees pixels to the left in the same row."""

    def __init__(self, inputs, outputs, kernel, own):
        super().__init__(inputs, outputs, (1, kernel), padding=(0, kernel // 2))
        mask = torch.zeros(1, kernel)
        mask[:, : kernel // 2 + own] = 1
        self.register_buffer("mask", mask)

    def forward(self, x):
        return F.conv2d(x, self.weight * self.mask, self.bias, padding=self.padding)


def gate(x, label):
    first, second = (x + label[:, :, None, None]).chunk(2, 1)
    return torch.tanh(first) * torch.sigmoid(second)


class GatedBlock(nn.Module):
    def __init__(self, inputs, kernel, first):
        super().__init__()
        self.vertical = VerticalConv(inputs, 2 * WIDTH, kernel, 0 if first else 1)
        self.horizontal = HorizontalConv(inputs, 2 * WIDTH, kernel, 0 if first else 1)
        self.across, self.out = nn.Conv2d(2 * WIDTH, 2 * WIDTH, 1), nn.Conv2d(WIDTH, WIDTH, 1)
        self.label, self.first = nn.Embedding(CLASSES, 4 * WIDTH), first

    def forward(self, v, h, classes):
        own_v, own_h = self.label(classes).chunk(2, 1)
        seen = self.vertical(v)
        y = self.out(gate(self.horizontal(h) + self.across(seen), own_h))
        return gate(seen, own_v), y if self.first else h + y


class GatedPixelCNN(nn.Module):
    def __init__(self):
        super().__init__()
        blocks = [GatedBlock(1, 7, True), *(GatedBlock(WIDTH, 3, False) for _ in range(BLOCKS))]
        self.blocks = nn.ModuleList(blocks)
        self.head = nn.Sequential(nn.Conv2d(WIDTH, 4 * WIDTH, 1), nn.ReLU(), nn.Conv2d(4 * WIDTH, GREYS, 1))
        self.reach = 3 + BLOCKS  # rows above that a pixel may see

    def forward(self, x, classes):
        v = h = x
        for block in self.blocks:
            v, h = block(v, h, classes)
        return self.head(h)


def next_logits(model, pictures, classes, row, column):
    """What may come at one place."""
    scaled = pictures / (GREYS / 2) - 1
    if "rows-above" in FIX:
        top = max(0, row - model.reach)
        return model(scaled[:, :, top : row + 1], classes)[:, :, -1, column]
    return model(scaled, classes)[:, :, row, column]


class Progress:
    """How far a set of pictures is, and how bright they are: shown now and then."""

    def __init__(self):
        self.brightness = 0.0

    def update(self, drawn):
        bright = drawn.float().mean()
        self.brightness = bright if "progress-rarely" in FIX else bright.item()


@torch.no_grad()
def main():
    model = GatedPixelCNN().to(device).eval()
    progress, times, step, sheets = Progress(), [], 0, 0
    while step < STEPS:
        classes = torch.arange(SAMPLES, device=device) % CLASSES
        pictures = torch.zeros(SAMPLES, 1, SIDE, SIDE, device=device)
        half = SIDE // 2
        pictures[:, :, :half] = torch.randint(GREYS, (SAMPLES, 1, half, SIDE), device=device).float()
        for place in range(half * SIDE, SIDE * SIDE):
            if step == STEPS:
                break
            began = time.perf_counter()
            row, column = divmod(place, SIDE)
            logits = next_logits(model, pictures, classes, row, column)
            drawn = torch.multinomial(F.softmax(logits, 1), 1)
            pictures[:, :, row, column] = drawn.float()
            progress.update(drawn)
            times.append(time.perf_counter() - began)
            step += 1
        sheets += 1
    mean = pictures.mean().item()
    kept = times[min(STEPS // 2, 10) :]
    print(f"mean grey {mean:.4f}, last {float(progress.brightness):.3f}, {sheets} sheets")
    print(f"{1e3 * sum(kept) / len(kept):.3f} ms per pixel")


main()
