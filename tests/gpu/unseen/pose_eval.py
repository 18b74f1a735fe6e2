"""Evaluate a key-point network: heat maps with flip test, soft arg max on numpy, PCK over the whole set."""

import os
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
BATCHES = int(os.environ.get("STEPS", 3 if TINY else 500))
BATCH, JOINTS, WIDTH = (2, 17, 16) if TINY else (64, 17, 64)
PAIRS = [(1, 2), (3, 4), (5, 6), (7, 8), (9, 10), (11, 12), (13, 14), (15, 16)]
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)


class People(Dataset):
    mean, std = np.array([0.485, 0.456, 0.406], np.float32), np.array([0.229, 0.224, 0.225], np.float32)

    def __init__(self):
        self.pictures = np.random.default_rng(0).integers(0, 256, (64, 256, 192, 3), dtype=np.uint8)

    def __len__(self):
        return BATCHES * BATCH

    def __getitem__(self, i):
        picture = (self.pictures[i % 64].astype(np.float32) / 255 - self.mean) / self.std
        rng = np.random.default_rng(i)
        return torch.from_numpy(picture.transpose(2, 0, 1).copy()), rng.uniform(0, 48, (JOINTS, 2)).astype(
            np.float32
        )


class Bottleneck(nn.Module):
    def __init__(self, a, b, stride):
        super().__init__()
        self.path = nn.Sequential(
            nn.Conv2d(a, b // 4, 1, bias=False),
            nn.BatchNorm2d(b // 4),
            nn.ReLU(True),
            nn.Conv2d(b // 4, b // 4, 3, stride, 1, bias=False),
            nn.BatchNorm2d(b // 4),
            nn.ReLU(True),
            nn.Conv2d(b // 4, b, 1, bias=False),
            nn.BatchNorm2d(b),
        )
        self.skip = nn.Conv2d(a, b, 1, stride, bias=False) if a != b or stride > 1 else nn.Identity()

    def forward(self, x):
        return torch.relu(self.path(x) + self.skip(x))


def pose_net():
    layers = [
        nn.Conv2d(3, WIDTH, 7, 2, 3, bias=False),
        nn.BatchNorm2d(WIDTH),
        nn.ReLU(True),
        nn.MaxPool2d(3, 2, 1),
    ]
    channels = WIDTH
    for stage, blocks in enumerate((3, 4, 6, 3)):
        for block in range(blocks):
            out = 4 * WIDTH * 2**stage
            layers.append(Bottleneck(channels, out, 2 if stage and not block else 1))
            channels = out
    for _ in range(3):
        layers += [nn.ConvTranspose2d(channels, 4 * WIDTH, 4, 2, 1), nn.BatchNorm2d(4 * WIDTH), nn.ReLU(True)]
        channels = 4 * WIDTH
    return nn.Sequential(*layers, nn.Conv2d(channels, JOINTS, 1))


def flip_back(heatmaps):
    heatmaps = heatmaps.flip(3)
    for a, b in PAIRS:
        heatmaps[:, [a, b]] = heatmaps[:, [b, a]]
    return heatmaps


def peaks(heatmaps):
    """Coordinates of the maxima, moved a quarter pixel towards the higher neighbour."""
    n, joints, height, width = heatmaps.shape
    index = heatmaps.reshape(n, joints, -1).argmax(2)
    found = np.stack([index % width, index // width], 2).astype(np.float32)
    for i in range(n):
        for j in range(joints):
            x, y = int(found[i, j, 0]), int(found[i, j, 1])
            if 1 < x < width - 1 and 1 < y < height - 1:
                h = heatmaps[i, j]
                found[i, j] += 0.25 * np.sign([h[y, x + 1] - h[y, x - 1], h[y + 1, x] - h[y - 1, x]])
    return found


def peaks_on_device(heatmaps):
    index = heatmaps.flatten(2).argmax(2)
    height, width = heatmaps.shape[2:]
    x, y = (index % width).clamp(1, width - 2), (index // width).clamp(1, height - 2)
    flat, at = heatmaps.flatten(2), y * width + x
    value = lambda shift: flat.gather(2, (at + shift)[..., None])[..., 0]  # noqa: E731
    moved = torch.stack(
        [x + 0.25 * (value(1) - value(-1)).sign(), y + 0.25 * (value(width) - value(-width)).sign()], 2
    )
    return moved.cpu().numpy()


model = pose_net().to(device).eval()
loader = DataLoader(People(), BATCH, num_workers=12, pin_memory="pinned" in FIX)
correct, losses, end, batch_times = 0, [], time.time(), []
with torch.no_grad():
    for i, (pictures, joints) in enumerate(loader):
        pictures = pictures.to(device)
        with torch.autocast(device.type, torch.float16, enabled="half" in FIX):
            output = model(pictures)
            output = (output + flip_back(model(pictures.flip(3)))) * 0.5
        loss = output.float().square().mean()
        losses.append(loss.item())
        if "peaks-on-device" in FIX:
            found = peaks_on_device(output.float())
        else:
            found = peaks(output.float().cpu().numpy())
        correct += (np.linalg.norm(found - joints.numpy(), axis=2) < 5).sum()
        batch_times.append(time.time() - end)
        end = time.time()
        if i % 50 == 0:
            print(f"Test: [{i}/{len(loader)}] Time {batch_times[-1]:.3f} Loss {losses[-1]:.4f}")
warm = batch_times[BATCHES // 4 :]
print(f"PCK {correct / (BATCHES * BATCH * JOINTS):.4f}; {sum(warm) / len(warm):.5f} s a batch")
