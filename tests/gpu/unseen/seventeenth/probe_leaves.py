"""Which tree is it? A linear probe on a frozen vision transformer: epochs, each with a validation."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 6 if TINY else 120))  # of training
LEAVES, CHECKED, BATCH, SIDE, PATCH, WIDE, LAYERS, HEAD, KINDS = (
    (12, 4, 4, 32, 16, 32, 1, 16, 5) if TINY else (2048, 512, 256, 224, 16, 768, 12, 64, 185)
)
EPOCH = LEAVES // BATCH
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low = device.type == "cuda"
torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDE), nn.LayerNorm(WIDE)
        self.qkv, self.proj = nn.Linear(WIDE, 3 * WIDE), nn.Linear(WIDE, WIDE)
        self.mlp = nn.Sequential(nn.Linear(WIDE, 4 * WIDE), nn.GELU(), nn.Linear(4 * WIDE, WIDE))

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(2, (3, -1, HEAD)).permute(2, 0, 3, 1, 4)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class Backbone(nn.Module):
    """What was learned without labels."""

    def __init__(self):
        super().__init__()
        self.patches, self.first = nn.Conv2d(3, WIDE, PATCH, PATCH), nn.Parameter(torch.zeros(1, 1, WIDE))
        self.places = nn.Parameter(0.02 * torch.randn(1, (SIDE // PATCH) ** 2, WIDE))
        self.blocks, self.norm = nn.Sequential(*(Block() for _ in range(LAYERS))), nn.LayerNorm(WIDE)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2) + self.places
        x = self.norm(self.blocks(torch.cat([self.first.expand(len(x), -1, -1), x], 1)))
        return torch.cat([x[:, 0], x[:, 1:].mean(1)], 1)


class Probe(nn.Module):
    """The backbone as it is, and one layer that learns."""

    def __init__(self, backbone):
        super().__init__()
        self.backbone, self.head = backbone, nn.Linear(2 * WIDE, KINDS)
        nn.init.normal_(self.head.weight, std=0.01)
        self.backbone.requires_grad_(False)
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1))

    @torch.no_grad()
    def features(self, pictures):
        self.backbone.eval()
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            return self.backbone((pictures.float() / 255 - self.mean) / self.std).float()

    def forward(self, given):
        return self.head(given if given.dim() == 2 else self.features(given))


class Leaves:
    """Photographs of leaves, cut to their middle once, on the device; or what the backbone sees in them."""

    def __init__(self, count):
        self.kinds = torch.randint(KINDS, (count,), device=device)
        shape = (count, 3, SIDE, SIDE)
        self.given = torch.randint(0, 160, shape, dtype=torch.uint8, device=device)
        self.given += (self.kinds * 90 // KINDS).to(torch.uint8)[:, None, None, None]

    def seen_by(self, probe):
        self.given = torch.cat([probe.features(part) for part in self.given.split(BATCH)])

    def batches(self, order):
        for chosen in order.split(BATCH):
            yield self.given[chosen], self.kinds[chosen]


@torch.no_grad()
def validate(probe, leaves):
    probe.eval()
    right = torch.zeros((), device=device)
    for given, kinds in leaves.batches(torch.arange(CHECKED, device=device)):
        right += (probe(given).argmax(1) == kinds).sum()
    return right.item() / CHECKED


def main():
    trained, checked = Leaves(LEAVES), Leaves(CHECKED)
    with device:
        probe = Probe(Backbone())
    optimizer = torch.optim.SGD(probe.head.parameters(), lr=0.05, momentum=0.9)
    epochs = -(-STEPS // EPOCH)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    if "features-once" in FIX:
        trained.seen_by(probe)
        checked.seen_by(probe)
    ends, best, shown, step = [], 0.0, 0.0, 0
    for epoch in range(epochs):
        probe.train()
        for given, kinds in trained.batches(torch.randperm(LEAVES, device=device)):
            loss = F.cross_entropy(probe(given), kinds)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if "loss-rarely" not in FIX or step % EPOCH == EPOCH - 1:
                shown = loss.item()
            step += 1
        schedule.step()
        best = max(best, validate(probe, checked))
        ends.append(time.perf_counter())
        print(f"epoch {epoch}: loss {shown:.4f}, best {best:.3f}")
    each = 1e3 * (ends[-1] - ends[0]) / ((len(ends) - 1) * EPOCH)
    print(f"loss {shown:.5f}; {each:.3f} ms per step with its share of validation")


main()
