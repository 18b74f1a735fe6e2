"""Evaluate an optical flow network (RAFT): 32 updates of the flow, end-point errors over a film."""

import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 3 if TINY else 16))  # batches of pairs
BATCH, HEIGHT, WIDTH, ITERATIONS, DIM, RADIUS, LEVELS = (
    (1, 64, 64, 3, 16, 1, 2) if TINY else (8, 440, 1024, 32, 128, 4, 4)
)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
torch.backends.cudnn.benchmark = True
torch.set_float32_matmul_precision("high")


class ResidualBlock(nn.Module):
    def __init__(self, inputs, outputs, norm, stride):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(inputs, outputs, 3, stride, 1), norm(outputs)
        self.conv2, self.norm2 = nn.Conv2d(outputs, outputs, 3, 1, 1), norm(outputs)
        self.down = None
        if stride != 1:
            self.down = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride), norm(outputs))

    def forward(self, x):
        y = F.relu(self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x))))))
        return F.relu(y + (x if self.down is None else self.down(x)))


class Encoder(nn.Module):
    def __init__(self, outputs, norm):
        super().__init__()
        a, b, c = DIM // 2, 3 * DIM // 4, DIM
        self.net = nn.Sequential(
            nn.Conv2d(3, a, 7, 2, 3),
            norm(a),
            nn.ReLU(),
            ResidualBlock(a, a, norm, 1),
            ResidualBlock(a, a, norm, 1),
            ResidualBlock(a, b, norm, 2),
            ResidualBlock(b, b, norm, 1),
            ResidualBlock(b, c, norm, 2),
            ResidualBlock(c, c, norm, 1),
            nn.Conv2d(c, outputs, 1),
        )

    def forward(self, x):
        return self.net(x)


class CorrBlock:
    """All pairs of places, at four scales; lookups around where the flow points."""

    def __init__(self, one, two):
        b, c, h, w = one.shape
        corr = torch.matmul(one.flatten(2).transpose(1, 2), two.flatten(2)) / c**0.5
        corr = corr.view(b * h * w, 1, h, w)
        self.pyramid = [corr]
        for _ in range(LEVELS - 1):
            corr = F.avg_pool2d(corr, 2, stride=2)
            self.pyramid.append(corr)
        d = torch.linspace(-RADIUS, RADIUS, 2 * RADIUS + 1, device=one.device)
        self.delta = torch.stack(torch.meshgrid(d, d, indexing="ij"), -1)[None]

    def __call__(self, coords):
        b, _, h, w = coords.shape
        centre = coords.permute(0, 2, 3, 1).reshape(b * h * w, 1, 1, 2)
        out = []
        for i, corr in enumerate(self.pyramid):
            place = centre / 2**i + self.delta
            x, y = place.split(1, -1)
            grid = torch.cat([2 * x / (corr.size(3) - 1) - 1, 2 * y / (corr.size(2) - 1) - 1], -1)
            sampled = F.grid_sample(corr, grid, align_corners=True)
            out.append(sampled.view(b, h, w, -1))
        return torch.cat(out, -1).permute(0, 3, 1, 2).contiguous()


class SepConvGRU(nn.Module):
    def __init__(self):
        super().__init__()
        both = 3 * DIM
        for name, size, pad in (("1", (1, 5), (0, 2)), ("2", (5, 1), (2, 0))):
            for gate in "zrq":
                setattr(self, f"conv{gate}{name}", nn.Conv2d(both, DIM, size, padding=pad))

    def half(self, h, x, convz, convr, convq):
        hx = torch.cat([h, x], 1)
        z, r = torch.sigmoid(convz(hx)), torch.sigmoid(convr(hx))
        q = torch.tanh(convq(torch.cat([r * h, x], 1)))
        return (1 - z) * h + z * q

    def forward(self, h, x):
        h = self.half(h, x, self.convz1, self.convr1, self.convq1)
        return self.half(h, x, self.convz2, self.convr2, self.convq2)


class UpdateBlock(nn.Module):
    def __init__(self):
        super().__init__()
        corr = LEVELS * (2 * RADIUS + 1) ** 2
        self.convc1, self.convc2 = nn.Conv2d(corr, 2 * DIM, 1), nn.Conv2d(2 * DIM, 3 * DIM // 2, 3, padding=1)
        self.convf1, self.convf2 = nn.Conv2d(2, DIM, 7, padding=3), nn.Conv2d(DIM, DIM // 2, 3, padding=1)
        self.conv = nn.Conv2d(2 * DIM, DIM - 2, 3, padding=1)
        self.gru = SepConvGRU()
        self.flow1, self.flow2 = nn.Conv2d(DIM, 2 * DIM, 3, padding=1), nn.Conv2d(2 * DIM, 2, 3, padding=1)
        self.mask = nn.Sequential(
            nn.Conv2d(DIM, 2 * DIM, 3, padding=1), nn.ReLU(), nn.Conv2d(2 * DIM, 64 * 9, 1)
        )

    def forward(self, net, inp, corr, flow):
        c = F.relu(self.convc2(F.relu(self.convc1(corr))))
        f = F.relu(self.convf2(F.relu(self.convf1(flow))))
        motion = torch.cat([F.relu(self.conv(torch.cat([c, f], 1))), flow], 1)
        net = self.gru(net, torch.cat([inp, motion], 1))
        return net, self.flow2(F.relu(self.flow1(net)))


class RAFT(nn.Module):
    def __init__(self):
        super().__init__()
        self.fnet, self.cnet = Encoder(2 * DIM, nn.InstanceNorm2d), Encoder(2 * DIM, nn.BatchNorm2d)
        self.update_block = UpdateBlock()

    @staticmethod
    def upsample(flow, mask):
        """Each fine place is a convex combination of nine coarse ones."""
        n, _, h, w = flow.shape
        mask = mask.view(n, 1, 9, 8, 8, h, w).softmax(2)
        up = F.unfold(8 * flow, (3, 3), padding=1).view(n, 2, 9, 1, 1, h, w)
        up = torch.sum(mask * up, 2)
        return up.permute(0, 1, 4, 2, 5, 3).reshape(n, 2, 8 * h, 8 * w)

    def forward(self, one, two, iters, test_mode=False):
        one, two = 2 * (one / 255.0) - 1.0, 2 * (two / 255.0) - 1.0
        f1, f2 = self.fnet(torch.cat([one, two])).chunk(2)
        corr_fn = CorrBlock(f1, f2)
        net, inp = self.cnet(one).chunk(2, 1)
        net, inp = torch.tanh(net), torch.relu(inp)
        n, _, h, w = f1.shape
        ys, xs = torch.meshgrid(
            torch.arange(h, device=one.device), torch.arange(w, device=one.device), indexing="ij"
        )
        coords0 = torch.stack([xs, ys]).float().expand(n, -1, -1, -1)
        coords1 = coords0.clone()
        predictions = []
        for i in range(iters):
            flow = coords1 - coords0
            net, delta = self.update_block(net, inp, corr_fn(coords1), flow)
            coords1 = coords1 + delta
            if "last-upsampled" in FIX and test_mode and i < iters - 1:
                continue
            flow_up = self.upsample(coords1 - coords0, 0.25 * self.update_block.mask(net))
            predictions.append(flow_up)
        return (coords1 - coords0, flow_up) if test_mode else predictions


def film(count):
    """A texture that is shifted by a smooth field."""
    texture = torch.rand(count, 3, HEIGHT // 8, WIDTH // 8, device=device)
    texture = 255 * F.interpolate(texture, size=(HEIGHT, WIDTH), mode="bilinear")
    flow = 6 * torch.randn(count, 2, HEIGHT // 64 + 1, WIDTH // 64 + 1, device=device)
    flow = F.interpolate(flow, size=(HEIGHT, WIDTH), mode="bilinear")
    shifted = torch.roll(texture, (2, 3), (2, 3))
    return texture.to(torch.uint8), shifted.to(torch.uint8), flow


model = RAFT().to(device).eval()
first, second, truth = film(2 * BATCH)
errors, below, times = [], {1: [], 3: [], 5: []}, []
with torch.no_grad():
    for step in range(STEPS):
        began = time.perf_counter()
        rows = slice(BATCH * (step % 2), BATCH * (step % 2) + BATCH)
        _, flow = model(first[rows].float(), second[rows].float(), iters=ITERATIONS, test_mode=True)
        if "errors-together" in FIX:
            epe = (flow - truth[rows]).square().sum(1).sqrt().flatten(1)
            numbers = torch.stack([epe.mean(1)] + [(epe < px).float().mean(1) for px in below]).tolist()
            errors += numbers[0]
            for px, part in zip(below, numbers[1:], strict=True):
                below[px] += part
        else:
            for i in range(BATCH):
                epe = (flow[i] - truth[rows][i]).square().sum(0).sqrt().view(-1)
                errors.append(epe.mean().item())
                for px in below:
                    below[px].append((epe < px).float().mean().item())
        times.append(time.perf_counter() - began)
kept = times[min(STEPS // 2, 3) :]
parts = ", ".join(f"{px}px: {np.mean(part):.4f}" for px, part in below.items())
print(f"Validation EPE: {np.mean(errors):.4f}, {parts}; {1e3 * sum(kept) / len(kept):.3f} ms per batch")
