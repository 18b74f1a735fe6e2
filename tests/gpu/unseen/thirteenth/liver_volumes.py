"""Livers and what grows in them: a network for volumes, piece by piece, supervised at several depths."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 60))
SCANS, WHOLE, PIECE, BATCH, KINDS, WIDTHS = (
    (2, 20, 16, 2, 3, (4, 8, 8)) if TINY else (4, 192, 96, 2, 3, (32, 64, 128, 256, 320))
)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low = device.type == "cuda"
torch.manual_seed(0)
torch.backends.cudnn.benchmark = True


class Convs(nn.Sequential):
    def __init__(self, enter, wide, stride=1):
        layers = []
        for i in range(2):
            layers += [nn.Conv3d(wide if i else enter, wide, 3, 1 if i else stride, 1)]
            layers += [nn.InstanceNorm3d(wide, affine=True), nn.LeakyReLU(0.01, inplace=True)]
        super().__init__(*layers)


class UNet3d(nn.Module):
    """The last maps of each depth but the lowest are answers, too."""

    def __init__(self):
        super().__init__()
        enters = (1, *WIDTHS[:-1])
        self.downs = nn.ModuleList(
            Convs(enter, wide, 1 + (i > 0))
            for i, (enter, wide) in enumerate(zip(enters, WIDTHS, strict=True))
        )
        pairs = list(zip(WIDTHS[:0:-1], WIDTHS[-2::-1], strict=True))
        self.ups = nn.ModuleList(nn.ConvTranspose3d(enter, wide, 2, 2) for enter, wide in pairs)
        self.joins = nn.ModuleList(Convs(2 * wide, wide) for _, wide in pairs)
        self.heads = nn.ModuleList(nn.Conv3d(wide, KINDS, 1) for _, wide in pairs)

    def forward(self, x):
        seen, answers = [], []
        for down in self.downs:
            x = down(x)
            seen.append(x)
        for up, join, head, skip in zip(self.ups, self.joins, self.heads, seen[-2::-1], strict=True):
            x = join(torch.cat([up(x), skip], 1))
            answers.append(head(x))
        return answers[::-1]


def scans():
    """Bodies with a bright ball, in which there is a small dark one, on the device."""
    grid = torch.stack(torch.meshgrid(*[torch.linspace(-1, 1, WHOLE, device=device)] * 3, indexing="ij"))
    images, labels = [], []
    for _ in range(SCANS):
        centre = 0.4 * torch.rand(3, 1, 1, 1, device=device) - 0.2
        far = (grid - centre).square().sum(0).sqrt()
        label = (far < 0.5).long() + (far < 0.15).long()
        images.append(label % 2 + 0.5 * torch.randn_like(far))
        labels.append(label)
    return images, labels


def piece(data, rng):
    """Some place of some scan."""
    images, labels = data
    chosen = []
    for _ in range(BATCH):
        scan, *corner = torch.randint(0, WHOLE - PIECE + 1, (4,), generator=rng).tolist()
        box = tuple(slice(start, start + PIECE) for start in corner)
        chosen.append((images[scan % SCANS][box], labels[scan % SCANS][box]))
    return torch.stack([x for x, _ in chosen])[:, None], torch.stack([y for _, y in chosen])


def loss_of(logits, labels):
    chances = logits.softmax(1)
    losses, overlaps = F.cross_entropy(logits, labels), []
    for kind in range(1, KINDS):
        there = (labels == kind).float()
        both = (chances[:, kind] * there).sum()
        overlaps.append((2 * both + 1e-5) / (chances[:, kind].sum() + there.sum() + 1e-5))
    overlaps = torch.stack(overlaps)
    return losses + 1 - overlaps.mean(), overlaps.detach()


def train_step(model, optimizer, images, labels):
    with torch.autocast(device.type, torch.bfloat16, enabled=low):
        answers = model(images)
    loss, overlaps = loss_of(answers[0].float(), labels)
    for i, answer in enumerate(answers[1:], 1):
        loss = loss + 0.5**i * loss_of(answer.float(), labels[:, :: 2**i, :: 2**i, :: 2**i])[0]
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 12.0)
    optimizer.step()
    return loss.detach(), overlaps


def main():
    data, rng = scans(), torch.Generator().manual_seed(0)
    with device:
        model = UNet3d()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.99, nesterov=True, weight_decay=3e-5)
    lead, began, shown, found = min(STEPS // 2, 5), 0.0, 0.0, [0.0]
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        images, labels = piece(data, rng)
        loss, overlaps = train_step(model, optimizer, images, labels)
        if "figures-rarely" not in FIX or step % 10 == 0 or step == STEPS - 1:
            shown, found = loss.item(), overlaps.tolist()
        if step % 10 == 0:
            print(f"step {step}: loss {shown:.4f}, overlaps", ", ".join(f"{one:.3f}" for one in found))
        del images, labels, loss, overlaps
        if "keep-memory" not in FIX and device.type == "cuda":
            torch.cuda.empty_cache()
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.5f}; {each:.3f} ms per step")


main()
