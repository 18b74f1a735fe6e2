"""Which trees grow where? A table of places, and a network that looks at a few columns at a time."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 80))
ROWS, BATCH, VIRTUAL, COLUMNS, WIDTH, LOOKS, KINDS = (
    (64, 16, 4, 10, 4, 2, 3) if TINY else (262_144, 8192, 128, 54, 64, 3, 7)
)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)


class GhostBatchNorm(nn.Module):
    """Batch norm of small parts of a large batch, as if they were batches."""

    def __init__(self, width, momentum=0.02):
        super().__init__()
        self.bn = nn.BatchNorm1d(width, momentum=momentum)

    def forward(self, x):
        if "one-norm" in FIX:
            return self.together(x)
        parts = x.chunk(x.size(0) // VIRTUAL, 0)
        return torch.cat([self.bn(part) for part in parts], 0)

    def together(self, x):
        parts = x.view(-1, VIRTUAL, x.size(1))
        var, mean = torch.var_mean(parts, 1, correction=0)
        with torch.no_grad():  # as the parts would have updated them one after the other
            left = (1 - self.bn.momentum) ** torch.arange(len(parts) - 1, -1, -1, device=x.device)
            all_left = (1 - self.bn.momentum) ** len(parts)
            for kept, found in (
                (self.bn.running_mean, mean),
                (self.bn.running_var, var * (VIRTUAL / (VIRTUAL - 1))),
            ):
                kept.mul_(all_left).add_(self.bn.momentum * (left @ found))
            self.bn.num_batches_tracked += len(parts)
        y = (parts - mean[:, None]) * torch.rsqrt(var + self.bn.eps)[:, None]
        return (y * self.bn.weight + self.bn.bias).flatten(0, 1)


class GLU(nn.Module):
    def __init__(self, fc, width):
        super().__init__()
        self.fc, self.norm, self.width = fc, GhostBatchNorm(2 * width), width

    def forward(self, x):
        x = self.norm(self.fc(x))
        return x[:, : self.width] * torch.sigmoid(x[:, self.width :])


class FeatureTransformer(nn.Module):
    """Two layers that all looks share, and two of its own."""

    def __init__(self, shared):
        super().__init__()
        own = [nn.Linear(2 * WIDTH, 4 * WIDTH, bias=False) for _ in range(2)]
        self.layers = nn.ModuleList(GLU(fc, 2 * WIDTH) for fc in (*shared, *own))

    def forward(self, x):
        x = self.layers[0](x)
        for layer in self.layers[1:]:
            x = (x + layer(x)) * 0.5**0.5
        return x


def sparsemax(x):
    """The nearest point whose numbers are positive and add up to one."""
    x = x - x.amax(1, keepdim=True)
    ordered = x.sort(1, descending=True).values
    counts = torch.arange(1, x.size(1) + 1, device=x.device)
    sums = ordered.cumsum(1) - 1
    size = (counts * ordered > sums).sum(1, keepdim=True)
    return (x - sums.gather(1, size - 1) / size).clamp(min=0)


class TabNet(nn.Module):
    def __init__(self):
        super().__init__()
        shared = nn.ModuleList(
            [nn.Linear(COLUMNS, 4 * WIDTH, bias=False), nn.Linear(2 * WIDTH, 4 * WIDTH, bias=False)]
        )
        self.norm = nn.BatchNorm1d(COLUMNS, momentum=0.01)
        self.first = FeatureTransformer(shared)
        self.looks = nn.ModuleList(FeatureTransformer(shared) for _ in range(LOOKS))
        self.asks = nn.ModuleList(nn.Linear(WIDTH, COLUMNS, bias=False) for _ in range(LOOKS))
        self.ask_norms = nn.ModuleList(GhostBatchNorm(COLUMNS) for _ in range(LOOKS))
        self.out = nn.Linear(WIDTH, KINDS, bias=False)

    def forward(self, x):
        x = self.norm(x)
        prior, asked = torch.ones_like(x), self.first(x)[:, WIDTH:]
        total, entropy = 0.0, 0.0
        for look, ask, norm in zip(self.looks, self.asks, self.ask_norms, strict=True):
            mask = sparsemax(norm(ask(asked)) * prior)
            entropy = entropy - (mask * torch.log(mask + 1e-15)).sum(1).mean()
            prior = prior * (1.3 - mask)
            found = look(mask * x)
            total = total + F.relu(found[:, :WIDTH])
            asked = found[:, WIDTH:]
        return self.out(total), entropy / LOOKS


def main():
    table = torch.randn(ROWS, COLUMNS, device=device)
    labels = (table[:, :3] * table[:, 3:6]).sum(1).mul(1.2).round().long().clamp(0, KINDS - 1)
    model = TabNet().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    lead, began, shown = min(STEPS // 2, 4), 0.0, 0.0
    order, at = torch.randperm(ROWS, device=device), 0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        if at + BATCH > ROWS:
            order, at = torch.randperm(ROWS, device=device), 0
        chosen = order[at : at + BATCH]
        at += BATCH
        output, entropy = model(table[chosen])
        loss = F.cross_entropy(output, labels[chosen]) + 1e-3 * entropy
        for parameter in model.parameters():
            parameter.grad = None
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if "loss-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown = loss.item()
        if step % 20 == 0:
            print(f"step {step}: loss {shown:.4f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.5f}; {each:.3f} ms per step")


main()
