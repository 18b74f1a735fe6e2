"""Lanes of a road, one from the other: a network that puts pixels of a lane near to each other."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 80))
SIZE, BATCH, HIGH, BROAD, LANES, PLACE, WIDTHS = (
    (8, 3, 16, 32, 4, 4, (8, 8, 16)) if TINY else (128, 16, 256, 512, 5, 4, (32, 64, 128, 256))
)
NEAR, FAR = 0.5, 3.0
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low = device.type == "cuda"
torch.manual_seed(0)
torch.backends.cudnn.benchmark = True


def block(enter, leave, stride=1):
    layers = []
    for i in range(2):
        layers += [nn.Conv2d(leave if i else enter, leave, 3, 1 if i else stride, 1, bias=False)]
        layers += [nn.BatchNorm2d(leave), nn.ReLU()]
    return nn.Sequential(*layers)


class LaneNet(nn.Module):
    """Is a pixel of a lane, and a place in a space where lanes are apart."""

    def __init__(self):
        super().__init__()
        enters = (3, *WIDTHS[:-1])
        self.downs = nn.ModuleList(block(enter, wide, 2) for enter, wide in zip(enters, WIDTHS, strict=True))
        pairs = list(zip(WIDTHS[:0:-1], WIDTHS[-2::-1], strict=True))
        self.ups = nn.ModuleList(nn.ConvTranspose2d(enter, wide, 2, 2) for enter, wide in pairs)
        self.joins = nn.ModuleList(block(2 * wide, wide) for _, wide in pairs)
        self.binary = nn.ConvTranspose2d(WIDTHS[0], 2, 2, 2)
        self.place = nn.ConvTranspose2d(WIDTHS[0], PLACE, 2, 2)

    def forward(self, x):
        seen = []
        for down in self.downs:
            x = down(x)
            seen.append(x)
        for up, join, skip in zip(self.ups, self.joins, seen[-2::-1], strict=True):
            x = join(torch.cat([up(x), skip], 1))
        return self.binary(x), self.place(x)


def discriminative(places, labels):
    """Pixels to the mean of their lane, means away from each other."""
    pull = push = places.new_zeros(())
    for found, lanes in zip(places, labels, strict=True):
        kinds = lanes.unique()
        kinds = kinds[kinds != 0]
        count = len(kinds)
        if count == 0:
            continue
        means = []
        for kind in kinds:
            own = found[:, lanes == kind]
            mean = own.mean(1)
            means.append(mean)
            off = F.relu((own - mean[:, None]).norm(dim=0) - NEAR)
            pull = pull + off.square().mean() / count
        if count > 1:
            apart = F.relu(FAR - F.pdist(torch.stack(means)))
            push = push + apart.square().mean()
    return pull / len(places), push / len(places)


def discriminative_at_once(places, labels):
    """The same for all pictures and lanes, whether they are there or not."""
    places, labels = places.flatten(2), labels.flatten(1)
    member = F.one_hot(labels, LANES + 1)[:, :, 1:].float()
    sizes = member.sum(1)
    there = (sizes > 0).float()
    count = there.sum(1)
    means = torch.bmm(places, member) / sizes.clamp(min=1)[:, None]  # picture, dimension, lane
    own = torch.bmm(means, member.transpose(1, 2))
    # Where there is no lane, a distance of one: no weight, but a gradient that is a number.
    known = labels > 0
    distance = torch.where(known, (places - own).square().sum(1), 1.0).sqrt()
    off = F.relu(distance - NEAR).square()
    off = torch.bmm(off[:, None], member)[:, 0] / sizes.clamp(min=1)
    pull = ((off * there).sum(1) / count.clamp(min=1)).sum()
    pairs = torch.triu(there[:, :, None] * there[:, None], 1)
    apart = (means[:, :, :, None] - means[:, :, None]).square().sum(1)
    apart = F.relu(FAR - torch.where(pairs > 0, apart, 1.0).sqrt()).square()
    push = ((apart * pairs).sum((1, 2)) / pairs.sum((1, 2)).clamp(min=1)).sum()
    return pull / len(places), push / len(places)


def roads():
    """Two to five lines that meet at some point, on the device."""
    y, x = torch.meshgrid(
        torch.linspace(0, 1, HIGH, device=device), torch.linspace(-1, 1, BROAD, device=device), indexing="ij"
    )
    images = torch.randn(SIZE, 3, HIGH, BROAD, device=device) / 2
    labels = torch.zeros(SIZE, HIGH, BROAD, dtype=torch.long, device=device)
    counts = torch.randint(2, LANES + 1, (SIZE,)).tolist()
    for i, count in enumerate(counts):
        for lane in range(count):
            line = y * (1.6 * (lane + 0.5) / count - 0.8)
            labels[i][((x - line).abs() < 0.02 + 0.02 * y) & (y > 0.2)] = lane + 1
    images += (labels > 0)[:, None]
    images = images.to(torch.bfloat16 if low else torch.float32)
    return images.contiguous(memory_format=torch.channels_last), labels


def main():
    images, labels = roads()
    with device:
        model = LaneNet()
    model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-4, weight_decay=2e-4, fused=low)
    weight = torch.tensor([0.2, 1.0], device=device)
    apart = discriminative_at_once if "lanes-at-once" in FIX else discriminative
    lead, began, shown = min(STEPS // 2, 6), 0.0, (0.0, 0.0, 0.0)
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        chosen = torch.randint(SIZE, (BATCH,), device=device)
        lanes = labels[chosen]
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            binary, places = model(images[chosen])
        found = F.cross_entropy(binary.float(), (lanes > 0).long(), weight)
        pull, push = apart(places.float(), lanes)
        loss = found + pull + push
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if "losses-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown = found.item(), pull.item(), push.item()
        if step % 20 == 0:
            print(f"step {step}: lanes {shown[0]:.4f}, pull {shown[1]:.4f}, push {shown[2]:.4f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {sum(shown):.5f}; {each:.3f} ms per step")


main()
