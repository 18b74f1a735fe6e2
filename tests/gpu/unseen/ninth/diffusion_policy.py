"""Move an arm: a diffusion policy denoises the next sixteen motions from what was seen last."""

import os
import time
from itertools import pairwise

import numpy as np
import torch
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 250))  # decisions
STATE, ACTION, SEEN, HORIZON, DONE, WIDTHS, CODE, TRAINED, DENOISED = (
    (4, 2, 2, 8, 4, (8, 16), 8, 20, 4) if TINY else (20, 7, 2, 16, 8, (128, 256, 512), 128, 100, 16)
)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)


class ConvBlock(nn.Module):
    def __init__(self, inner, outer):
        super().__init__()
        self.block = nn.Sequential(nn.Conv1d(inner, outer, 5, padding=2), nn.GroupNorm(8, outer), nn.Mish())

    def forward(self, x):
        return self.block(x)


class Residual(nn.Module):
    """Two convolutions, the first of which is scaled and shifted by what was seen."""

    def __init__(self, inner, outer, given):
        super().__init__()
        self.first, self.second = ConvBlock(inner, outer), ConvBlock(outer, outer)
        self.film = nn.Sequential(nn.Mish(), nn.Linear(given, 2 * outer))
        self.short = nn.Conv1d(inner, outer, 1) if inner != outer else nn.Identity()

    def forward(self, x, given):
        scale, shift = self.film(given)[:, :, None].chunk(2, 1)
        return self.second(scale * self.first(x) + shift) + self.short(x)


class ConditionalUNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.code = nn.Sequential(nn.Linear(CODE, 4 * CODE), nn.Mish(), nn.Linear(4 * CODE, CODE))
        given, widths = CODE + SEEN * STATE, (ACTION, *WIDTHS)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        for i, (inner, outer) in enumerate(pairwise(widths)):
            last = i == len(WIDTHS) - 1
            smaller = nn.Identity() if last else nn.Conv1d(outer, outer, 3, 2, 1)
            blocks = Residual(inner, outer, given), Residual(outer, outer, given), smaller
            self.down.append(nn.ModuleList(blocks))
        self.middle = nn.ModuleList(Residual(WIDTHS[-1], WIDTHS[-1], given) for _ in range(2))
        for inner, outer in zip(WIDTHS[:0:-1], WIDTHS[-2::-1], strict=True):
            blocks = Residual(2 * inner, outer, given), Residual(outer, outer, given)
            self.up.append(nn.ModuleList((*blocks, nn.ConvTranspose1d(outer, outer, 4, 2, 1))))
        self.out = nn.Sequential(ConvBlock(WIDTHS[0], WIDTHS[0]), nn.Conv1d(WIDTHS[0], ACTION, 1))
        rates = torch.exp(-np.log(10_000) * torch.arange(CODE // 2) / (CODE // 2 - 1))
        self.register_buffer("rates", rates.float())

    def forward(self, x, moment, seen):
        angles = moment[:, None] * self.rates
        given = torch.cat([self.code(torch.cat([angles.sin(), angles.cos()], 1)), seen], 1)
        x, kept = x.transpose(1, 2), []
        for first, second, smaller in self.down:
            x = second(first(x, given), given)
            kept.append(x)
            x = smaller(x)
        for block in self.middle:
            x = block(x, given)
        for first, second, larger in self.up:
            x = larger(second(first(torch.cat([x, kept.pop()], 1), given), given))
        return self.out(x).transpose(1, 2)


class Graphed:
    """The network as one graph, whose inputs lie at fixed addresses."""

    def __init__(self, model, *inputs):
        self.inputs = [one.clone() for one in inputs]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                model(*self.inputs)
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.output = model(*self.inputs)

    def __call__(self, *inputs):
        for kept, one in zip(self.inputs, inputs, strict=True):
            kept.copy_(one)
        self.graph.replay()
        return self.output


class Policy:
    def __init__(self):
        self.model = ConditionalUNet().to(device).eval()
        kept = np.cos((np.linspace(0, 1, TRAINED + 1) + 0.008) / 1.008 * np.pi / 2) ** 2
        self.left = np.cumprod((kept[1:] / kept[:-1]).clip(0.001))  # of the motions at each moment
        self.moments = list(range(TRAINED - 1, -1, -(TRAINED // DENOISED)))[:DENOISED]
        self.kept = [torch.tensor([float(moment)], device=device) for moment in self.moments]
        self.noises = torch.Generator(device).manual_seed(1)
        self.call = self.model
        if "graphed" in FIX and device.type == "cuda":
            x = torch.zeros(1, HORIZON, ACTION, device=device)
            with torch.no_grad():
                self.call = Graphed(self.model, x, self.kept[0], torch.zeros(1, SEEN * STATE, device=device))

    @torch.no_grad()
    def decide(self, seen):
        """Sixteen motions, by implicit denoising from noise."""
        seen = torch.from_numpy(np.concatenate(seen)[None]).float().to(device)
        x = torch.randn(1, HORIZON, ACTION, device=device, generator=self.noises)
        for i, moment in enumerate(self.moments):
            at = self.kept[i] if "moments-kept" in FIX else torch.tensor([float(moment)], device=device)
            noise = self.call(x, at, seen)
            now = self.left[moment]
            then = self.left[self.moments[i + 1]] if i + 1 < len(self.moments) else 1.0
            clean = ((x - float(np.sqrt(1 - now)) * noise) / float(np.sqrt(now))).clamp(-1, 1)
            x = float(np.sqrt(then)) * clean + float(np.sqrt(1 - then)) * noise
        return x[0].cpu().numpy()


rng, policy = np.random.default_rng(0), Policy()
turn = rng.standard_normal((ACTION, STATE)) / np.sqrt(STATE)
state = rng.standard_normal(STATE)
seen, times, moved = [state] * SEEN, [], 0.0
for _ in range(STEPS):
    began = time.perf_counter()
    motions = policy.decide(seen[-SEEN:])
    for motion in motions[:DONE]:
        state = 0.98 * state + 0.05 * motion @ turn + 0.01 * rng.standard_normal(STATE)
        seen = [*seen[1 - SEEN :], state]
        moved += float(np.abs(motion).mean())
    times.append(time.perf_counter() - began)
kept = times[min(STEPS // 2, 10) :]
print(f"moved {moved / STEPS / DONE:.4f} on average; {1e3 * sum(kept) / len(kept):.3f} ms per decision")
