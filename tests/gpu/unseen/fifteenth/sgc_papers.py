"""Subjects of papers by who cites whom: simple graph convolution, tested after each pass over the graph."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 6 if TINY else 200))  # passes
PAPERS, CITED, FEATURES, WIDE, SUBJECTS, HOPS = (
    (60, 200, 12, 16, 4, 2) if TINY else (169_000, 1_160_000, 128, 256, 40, 3)
)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
torch.backends.cuda.matmul.allow_tf32 = True


class SGConv(nn.Module):
    """Features of those that are a few citations away, then one matrix."""

    def __init__(self, enter, leave, hops, cached=False):
        super().__init__()
        self.lin, self.hops, self.cached, self.kept = nn.Linear(enter, leave), hops, cached, None

    def norm(self, edges, count):
        """Each paper cites itself, too; an edge counts by the degrees of its ends."""
        loops = torch.arange(count, device=edges.device).expand(2, -1)
        edges = torch.cat([edges, loops], 1)
        degree = torch.zeros(count, device=edges.device)
        degree.index_add_(0, edges[1], torch.ones(edges.shape[1], device=edges.device))
        root = degree.rsqrt()
        return edges, root[edges[0]] * root[edges[1]]

    def propagate(self, x, edges, weight):
        messages = x[edges[0]] * weight[:, None]
        return torch.zeros_like(x).index_add_(0, edges[1], messages)

    def forward(self, x, edges):
        if self.kept is not None:
            return self.lin(self.kept)
        edges, weight = self.norm(edges, len(x))
        for _ in range(self.hops):
            x = self.propagate(x, edges, weight)
        if self.cached:
            self.kept = x
        return self.lin(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = SGConv(FEATURES, WIDE, HOPS, cached="spread-once" in FIX)
        self.norm, self.last = nn.BatchNorm1d(WIDE), nn.Linear(WIDE, SUBJECTS)

    def forward(self, x, edges):
        return self.last(F.relu(self.norm(self.conv(x, edges)))).log_softmax(1)


def citations():
    """Papers cite those of their own subject mostly, older ones more often."""
    subjects = torch.randint(SUBJECTS, (PAPERS,), device=device)
    order = subjects.argsort()
    place = torch.empty_like(order)
    place[order] = torch.arange(PAPERS, device=device)
    source = torch.randint(PAPERS, (CITED,), device=device)
    near = place[source] + torch.randint(-PAPERS // 60, PAPERS // 60 + 1, (CITED,), device=device)
    target = order[near.clamp(0, PAPERS - 1)]
    x = torch.randn(PAPERS, FEATURES, device=device)
    x[torch.arange(PAPERS, device=device), subjects % FEATURES] += 1.0
    edges = torch.stack([torch.cat([source, target]), torch.cat([target, source])])
    return x, edges, subjects, torch.rand(PAPERS, device=device)


@torch.no_grad()
def test(model, x, edges, subjects, splits):
    model.eval()
    right = model(x, edges).argmax(1) == subjects
    if "figures-rarely" in FIX:
        return [right[split].float().mean() for split in splits]
    return [right[split].float().mean().item() for split in splits]


def main():
    x, edges, subjects, drawn = citations()
    splits = [
        torch.nonzero(part)[:, 0] for part in (drawn < 0.54, (drawn >= 0.54) & (drawn < 0.72), drawn >= 0.72)
    ]
    with device:
        model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-5, fused=device.type == "cuda")
    lead, began, shown, best, figures = min(STEPS // 2, 8), 0.0, 0.0, 0.0, []
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        model.train()
        optimizer.zero_grad()
        loss = F.nll_loss(model(x, edges)[splits[0]], subjects[splits[0]])
        loss.backward()
        optimizer.step()
        figures.append(test(model, x, edges, subjects, splits))
        if "figures-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown = loss.item()
            best = max(best, *(float(valid) for _, valid, _ in figures))
            figures.clear()
        if step % 20 == 0:
            print(f"pass {step}: loss {shown:.4f}, best {best:.4f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.5f}, best {best:.4f}; {each:.3f} ms per pass")


main()
