"""How good are generated shapes? Distances of all clouds to all, and what follows: coverage, MMD, 1-NNA."""

import os
import time

import torch
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 128))  # clouds whose distances to all are computed
CLOUDS, POINTS, BATCH, LATENT, WIDTH = (6, 40, 3, 8, 16) if TINY else (128, 2048, 32, 128, 512)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)


class Generator(nn.Module):
    """Points of noise to points of a shape; stands in for a trained flow."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(3 + LATENT, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 3)
        )

    def forward(self, noise, latent):
        x = torch.cat([noise, latent[:, None].expand(-1, noise.size(1), -1)], 2)
        return 0.5 * noise + 2 * self.layers(x)


def chairs(count):
    """Points on boxes: a seat, a back and legs, of any proportions."""
    found = []
    for _ in range(count):
        sizes = torch.rand(6, 3, device=device) * 0.5 + 0.1
        middles = torch.randn(6, 3, device=device) * 0.6
        which = torch.randint(6, (POINTS,), device=device)
        found.append(middles[which] + sizes[which] * (2 * torch.rand(POINTS, 3, device=device) - 1))
    return torch.stack(found)


def normalised(clouds):
    clouds = clouds - clouds.mean(1, keepdim=True)
    return clouds / clouds.flatten(1).std(1)[:, None, None]


def chamfer(a, b):
    """Squared distances of each point to the nearest of the other cloud, both ways."""
    xy = torch.bmm(a, b.transpose(2, 1))
    if "squares-summed" in FIX:
        rx, ry = a.square().sum(2)[:, :, None], b.square().sum(2)[:, None, :]
    else:
        xx, yy = torch.bmm(a, a.transpose(2, 1)), torch.bmm(b, b.transpose(2, 1))
        diagonal = torch.arange(a.size(1), device=a.device)
        rx = xx[:, diagonal, diagonal].unsqueeze(2).expand_as(xy)
        ry = yy[:, diagonal, diagonal].unsqueeze(1).expand_as(xy)
    distance = rx + ry - 2 * xy
    return distance.min(1)[0], distance.min(2)[0]


if "compiled" in FIX:
    chamfer = torch.compile(chamfer, backend="inductor" if device.type == "cuda" else "aot_eager")


def distances(cloud, others):
    """Of one cloud to all others."""
    found = []
    for some in others.split(BATCH):
        there, back = chamfer(cloud[None].expand(len(some), -1, -1).contiguous(), some)
        both = there.mean(1) + back.mean(1)
        found.append(both if "read-at-end" in FIX else both.cpu())
    return torch.cat(found)


def scores(own, across, theirs):
    """Minimum matching distance, coverage, and how often the nearest neighbour is of the same kind."""
    mmd = across.min(0)[0].mean().item()
    coverage = len(across.min(1)[1].unique()) / across.size(1)
    n = len(own)
    both = torch.cat([torch.cat([own, across], 1), torch.cat([across.T, theirs], 1)])
    both.fill_diagonal_(float("inf"))
    kind = torch.cat([torch.zeros(n), torch.ones(n)])
    return mmd, coverage, (kind[both.argmin(1).cpu()] == kind).float().mean().item()


@torch.no_grad()
def main():
    net = Generator().to(device)
    references = normalised(chairs(CLOUDS))
    latents = torch.randn(CLOUDS, LATENT, device=device)
    drawn = [net(torch.randn(len(z), POINTS, 3, device=device), z) for z in latents.split(BATCH)]
    samples = normalised(torch.cat(drawn))
    tables, times = {"own": [], "across": [], "theirs": []}, []
    for step in range(STEPS):
        began = time.perf_counter()
        sample, reference = samples[step % CLOUDS], references[step % CLOUDS]
        tables["own"].append(distances(sample, samples))
        tables["across"].append(distances(sample, references))
        tables["theirs"].append(distances(reference, references))
        if "read-at-end" in FIX and step == STEPS - 1 and device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
        if step % 20 == 0:
            print(f"{step} clouds compared")
    n = min(STEPS, CLOUDS)
    own, across, theirs = (torch.stack(rows[:n]).cpu()[:, :n] for rows in tables.values())
    mmd, coverage, nna = scores(own, across, theirs)
    kept = times[min(STEPS // 2, 2) :]
    print(
        f"MMD {mmd:.5f}, COV {coverage:.3f}, 1-NNA {nna:.3f}; {1e3 * sum(kept) / len(kept):.3f} ms per cloud"
    )


main()
