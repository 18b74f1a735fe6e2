"""Find faulty parts without having seen a fault (PatchCore): a memory of patches of good parts."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 10 if TINY else 12_000))  # patches that are kept
GOOD, TESTED, SIDE, WIDTH, BATCH = (6, 4, 64, 8, 2) if TINY else (100, 60, 224, 128, 20)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
torch.backends.cudnn.benchmark = True


def parts(count, faulty):
    """Brushed metal with holes; a faulty part has a scratch somewhere."""
    grain = torch.randn(count, 3, SIDE, 1, device=device).expand(-1, -1, -1, SIDE) * 0.2
    images = grain + 0.05 * torch.randn(count, 3, SIDE, SIDE, device=device)
    axis = torch.arange(SIDE, device=device)
    holes = ((axis % (SIDE // 4) - SIDE // 8)[:, None] ** 2 + (axis % (SIDE // 4) - SIDE // 8) ** 2) < SIDE
    images = torch.where(holes, images - 1, images)
    if faulty:
        for image in images[::2]:
            top, left = torch.randint(SIDE * 3 // 4, (2,)).tolist()
            image[:, top : top + SIDE // 16, left : left + SIDE // 4] += 1
    return images


class Backbone(nn.Module):
    """Stands in for a pretrained residual network; its second and third stage are used."""

    def __init__(self):
        super().__init__()
        w = WIDTH
        self.stem = nn.Sequential(self.block(3, w // 2, 2), self.block(w // 2, w, 2))
        self.layer2 = nn.Sequential(self.block(w, 4 * w, 2), self.block(4 * w, 4 * w, 1))
        self.layer3 = nn.Sequential(self.block(4 * w, 4 * w, 2), self.block(4 * w, 4 * w, 1))

    @staticmethod
    def block(inputs, outputs, stride):
        conv = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        nn.init.kaiming_normal_(conv.weight)
        return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ReLU())

    def forward(self, images):
        second = self.layer2(self.stem(images))
        return second, self.layer3(second)


@torch.no_grad()
def patch_features(backbone, images):
    """A row for each patch: both stages, each averaged with its neighbours."""
    second, third = (F.avg_pool2d(stage, 3, 1, 1) for stage in backbone(images))
    third = F.interpolate(third, size=second.shape[2:], mode="bilinear")
    both = torch.cat([second, third], 1)
    return both.permute(0, 2, 3, 1).flatten(0, 2), both.shape[2:]


class KCenterGreedy:
    """Patches that are far from each other: the next is that which is farthest from all before."""

    def __init__(self, features):
        self.features, self.least = features, None
        if "squares-once" in FIX:
            self.squares = features.square().sum(1)

    def update(self, index):
        center = self.features[index].view(-1)
        if "squares-once" in FIX:
            squares = self.squares + self.squares[index] - 2 * (self.features @ center)
            distance = squares.clamp(min=0).sqrt()
        else:
            distance = torch.linalg.norm(self.features - center, ord=2, dim=1)
        self.least = distance if self.least is None else torch.minimum(self.least, distance)

    def select(self, count):
        chosen, times = [], []
        index = len(self.features) // 2
        if "index-on-device" in FIX:
            index = torch.tensor([index], device=device)
        for _ in range(count):
            began = time.perf_counter()
            self.update(index)
            index = self.least.argmax(0, keepdim=True)
            if "index-on-device" not in FIX:
                index = int(index.item())
            chosen.append(index)
            times.append(time.perf_counter() - began)
        chosen = torch.cat(chosen) if "index-on-device" in FIX else torch.tensor(chosen, device=device)
        return chosen, times


@torch.no_grad()
def anomaly_maps(backbone, memory, images):
    """How far each patch is from the nearest that is remembered, as large as the picture."""
    features, size = patch_features(backbone, images)
    distance = torch.cat([torch.cdist(some, memory).amin(1) for some in features.split(2048)])
    maps = F.interpolate(distance.view(len(images), 1, *size), size=(SIDE, SIDE), mode="bilinear")
    axis = torch.arange(-8, 9, device=device).float()
    blur = torch.exp(-(axis**2) / 32)
    blur = blur / blur.sum()
    maps = F.conv2d(maps, blur[None, None, :, None], padding=(8, 0))
    return F.conv2d(maps, blur[None, None, None, :], padding=(0, 8))[:, 0]


backbone = Backbone().to(device).eval()
bank = torch.cat([patch_features(backbone, parts(BATCH, False))[0] for _ in range(GOOD // BATCH)])
print(f"{len(bank)} patches of {GOOD} good parts, {bank.size(1)} numbers each")
greedy = KCenterGreedy(bank)
greedy.select(2)
greedy.least = None
began = time.perf_counter()
chosen, times = greedy.select(min(STEPS, len(bank)))
radius = greedy.least.max().item()
spent = time.perf_counter() - began
memory = bank[chosen]
good, bad = [], []
for _ in range(TESTED // BATCH):
    worst = anomaly_maps(backbone, memory, parts(BATCH, True)).flatten(1).amax(1)
    bad.append(worst[::2])
    good.append(worst[1::2])
right = (torch.cat(bad)[:, None] > torch.cat(good)).float().mean().item()
each = 1e3 * spent / len(times)
print(f"all within {radius:.4f} of {len(chosen)}, AUROC {right:.3f}; {each:.5f} ms per patch")
