"""Where does it look? A square is laid over a photograph, here and there, and the score watched."""

# %%
import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 3 if TINY else 20))  # photographs
SIDE, SQUARE, STRIDE, WIDE, BLOCKS, CLASSES, AT_ONCE = (
    (32, 16, 8, 8, (1, 1), 5, 4) if TINY else (224, 56, 24, 64, (3, 4, 6, 3), 1000, 32)
)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)


# %%
class Bottleneck(nn.Module):
    def __init__(self, inputs, width, stride):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.norm2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.norm3 = nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)
        self.skip = nn.Identity()
        if stride > 1 or inputs != 4 * width:
            conv = nn.Conv2d(inputs, 4 * width, 1, stride, bias=False)
            self.skip = nn.Sequential(conv, nn.BatchNorm2d(4 * width))

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)))
        y = F.relu(self.norm2(self.conv2(y)))
        return F.relu(self.norm3(self.conv3(y)) + self.skip(x))


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Sequential(
            nn.Conv2d(3, WIDE, 7, 2, 3, bias=False), nn.BatchNorm2d(WIDE), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        parts, inputs = [], WIDE
        for stage, count in enumerate(BLOCKS):
            for place in range(count):
                parts.append(Bottleneck(inputs, WIDE * 2**stage, 2 if stage and not place else 1))
                inputs = 4 * WIDE * 2**stage
        self.blocks, self.last = nn.Sequential(*parts), nn.Linear(inputs, CLASSES)

    def forward(self, x):
        return self.last(self.blocks(self.enter(x)).mean((2, 3)))


model = ResNet().to(device).eval()  # weights were loaded here
photos = torch.randn(STEPS, 3, SIDE // 8, SIDE // 8).repeat_interleave(8, 2).repeat_interleave(8, 3)


# %%
def places():
    return [(i, j) for i in range(0, SIDE - SQUARE + 1, STRIDE) for j in range(0, SIDE - SQUARE + 1, STRIDE)]


@torch.no_grad()
def occlusion(photo):
    """How much the score of its class falls, for each place of the square."""
    photo = photo[None].to(device)
    chances = model(photo).softmax(1)
    label = chances.argmax(1).item()
    before, falls = chances[0, label].item(), []
    if "many-at-once" in FIX:
        for i in range(0, len(places()), AT_ONCE):
            some = places()[i : i + AT_ONCE]
            hidden = photo.repeat(len(some), 1, 1, 1)
            for one, (top, left) in zip(hidden, some, strict=True):
                one[:, top : top + SQUARE, left : left + SQUARE] = 0
            falls.append(before - model(hidden).softmax(1)[:, label])
        return torch.cat(falls).cpu(), label
    for top, left in places():
        hidden = photo.clone()
        hidden[:, :, top : top + SQUARE, left : left + SQUARE] = 0
        score = model(hidden).softmax(1)[0, label]
        falls.append(before - (score if "scores-at-end" in FIX else score.item()))
    return torch.tensor([float(fall) for fall in falls]), label


# %%
occlusion(photos[0])
lead, began, sums = min(STEPS // 2, 2), 0.0, []
for number, photo in enumerate(photos):
    if number == lead:
        began = time.perf_counter()
    heat, label = occlusion(photo)
    side = int(len(heat) ** 0.5)
    picture = F.interpolate(
        heat.view(1, 1, side, side), size=(SIDE, SIDE), mode="bilinear", align_corners=False
    )
    sums.append(picture.abs().mean().item())
each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
print(f"class {label}, falls of {1e3 * sum(sums) / len(sums):.5f} thousandths; {each:.3f} ms per photograph")
