"""A neural radiance field, coarse to fine: the encoding, which is compiled, lets in more and more waves."""

import math
import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 12 if TINY else 60))
RAYS, COARSE, FINE, WIDTH, DEPTH, FREQS, VIEW_FREQS = (
    (8, 4, 8, 16, 3, 4, 2) if TINY else (2048, 64, 128, 256, 8, 10, 4)
)
NEAR, FAR, ANNEAL = 2.0, 6.0, 2000
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
if "tf32" in FIX:
    torch.set_float32_matmul_precision("high")


class AnnealedEncoding(nn.Module):
    """Sines and cosines of growing frequency; those above the present one are faded out."""

    def __init__(self, freqs):
        super().__init__()
        self.freqs, self.step = freqs, 0
        self.register_buffer("bands", 2.0 ** torch.arange(freqs))
        self.register_buffer("alpha", torch.zeros(()))
        self.out = 3 + 6 * freqs

    def set_step(self, step):
        if "step-as-tensor" in FIX:
            self.alpha.fill_(min(step / ANNEAL, 1.0) * self.freqs)
        else:
            self.step = step

    def forward(self, x):
        alpha = self.alpha if "step-as-tensor" in FIX else min(self.step / ANNEAL, 1.0) * self.freqs
        fade = torch.clamp(alpha - torch.arange(self.freqs, device=x.device), 0, 1)
        weight = (1 - torch.cos(math.pi * fade)) / 2
        angles = x[..., None, :] * self.bands[:, None]
        waves = torch.cat([angles.sin(), angles.cos()], -1) * weight[:, None]
        return torch.cat([x, waves.flatten(-2)], -1)


class NeRF(nn.Module):
    def __init__(self, inputs, views):
        super().__init__()
        self.skip = DEPTH // 2
        sizes = [inputs] + [WIDTH] * (DEPTH - 1)
        self.pts_linears = nn.ModuleList(
            nn.Linear(size + (inputs if i == self.skip else 0), WIDTH) for i, size in enumerate(sizes)
        )
        self.alpha_linear, self.feature_linear = nn.Linear(WIDTH, 1), nn.Linear(WIDTH, WIDTH)
        self.views_linear, self.rgb_linear = nn.Linear(WIDTH + views, WIDTH // 2), nn.Linear(WIDTH // 2, 3)

    def forward(self, points, views):
        h = points
        for i, layer in enumerate(self.pts_linears):
            h = F.relu(layer(torch.cat([points, h], -1) if i == self.skip else h))
        alpha = self.alpha_linear(h)
        h = F.relu(self.views_linear(torch.cat([self.feature_linear(h), views], -1)))
        return torch.cat([self.rgb_linear(h), alpha], -1)


def raw2outputs(raw, z_vals):
    dists = torch.cat([z_vals[:, 1:] - z_vals[:, :-1], torch.full_like(z_vals[:, :1], 1e10)], -1)
    alpha = 1 - torch.exp(-F.relu(raw[..., 3]) * dists)
    passed = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-10], -1), -1)[:, :-1]
    weights = alpha * passed
    return (weights[..., None] * torch.sigmoid(raw[..., :3])).sum(1), weights


def sample_pdf(bins, weights, count):
    weights = weights + 1e-5
    cdf = torch.cumsum(weights / weights.sum(-1, keepdim=True), -1)
    cdf = torch.cat([torch.zeros_like(cdf[:, :1]), cdf], -1)
    u = torch.rand(len(cdf), count, device=cdf.device)
    above = torch.searchsorted(cdf, u, right=True).clamp(max=cdf.shape[-1] - 1)
    below = (above - 1).clamp(min=0)
    low, high = cdf.gather(1, below), cdf.gather(1, above)
    start, stop = bins.gather(1, below), bins.gather(1, above.clamp(max=bins.shape[-1] - 1))
    span = torch.where(high - low < 1e-5, torch.ones_like(low), high - low)
    return start + (u - low) / span * (stop - start)


def render_rays(rays_o, rays_d):
    views = encode_views(F.normalize(rays_d, dim=-1))

    def run(network, z_vals):
        points = rays_o[:, None] + rays_d[:, None] * z_vals[..., None]
        return network(encode(points), views[:, None].expand(-1, z_vals.shape[1], -1))

    step = (FAR - NEAR) / COARSE
    z_vals = torch.linspace(NEAR, FAR, COARSE, device=device).expand(len(rays_o), -1)
    z_vals = z_vals + step * torch.rand_like(z_vals)
    rgb_coarse, weights = raw2outputs(run(coarse, z_vals), z_vals)
    middle = (z_vals[:, 1:] + z_vals[:, :-1]) / 2
    z_fine = sample_pdf(middle, weights[:, 1:-1].detach(), FINE)
    z_vals = torch.cat([z_vals, z_fine], -1).sort(-1).values
    rgb, _ = raw2outputs(run(fine, z_vals), z_vals)
    return rgb, rgb_coarse


def truth(rays_o, rays_d):
    """The colour of a ball in the middle, lit from above, before a grey wall."""
    d = F.normalize(rays_d, dim=-1)
    along = -(rays_o * d).sum(-1, keepdim=True)
    near = ((rays_o + along * d).norm(dim=-1, keepdim=True) < 1).float()
    return near * (0.5 + 0.5 * (rays_o + along * d).clamp(-1, 1)) + (1 - near) * 0.3


encoding, view_encoding = AnnealedEncoding(FREQS).to(device), AnnealedEncoding(VIEW_FREQS).to(device)
view_encoding.set_step(ANNEAL)
backend = "inductor" if torch.cuda.is_available() else "aot_eager"
encode, encode_views = torch.compile(encoding, backend=backend), view_encoding
coarse, fine = (NeRF(encoding.out, view_encoding.out).to(device) for _ in range(2))
optimizer = torch.optim.Adam([*coarse.parameters(), *fine.parameters()], lr=5e-4)
rays_o = torch.tensor([0.0, 0.0, 4.0], device=device).expand(40_000 if not TINY else 64, 3)
rays_d = torch.cat(
    [torch.rand(len(rays_o), 2, device=device) - 0.5, -torch.ones(len(rays_o), 1, device=device)], -1
)
colours = truth(rays_o, rays_d)
times = []
for i in range(STEPS):
    time0 = time.time()
    rows = torch.randint(0, len(rays_o), (RAYS,), device=device)
    encoding.set_step(i)
    rgb, rgb_coarse = render_rays(rays_o[rows], rays_d[rows])
    optimizer.zero_grad()
    img_loss = F.mse_loss(rgb, colours[rows])
    loss = img_loss + F.mse_loss(rgb_coarse, colours[rows])
    psnr = -10 * torch.log10(img_loss.detach())
    loss.backward()
    optimizer.step()
    for group in optimizer.param_groups:
        group["lr"] = 5e-4 * 0.1 ** (i / 250_000)
    psnr = psnr.item()
    times.append(time.time() - time0)
    if i % 20 == 0:
        print(f"[TRAIN] Iter: {i} Loss: {loss.item():.5f}  PSNR: {psnr:.3f}")
kept = times[min(STEPS // 2, 15) :]
print(f"PSNR {psnr:.3f}; {1e3 * sum(kept) / len(kept):.3f} ms per iteration")
