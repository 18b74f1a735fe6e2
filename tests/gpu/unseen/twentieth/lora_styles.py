"""Pictures in a mixture of styles: a transformer that denoises latents, with three adapters in it."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 6 if TINY else 120))
BATCH, GRID, CHANNELS, WORDS, WIDE, LAYERS, HEAD, RANK, PLAN = (
    (2, 4, 4, 5, 32, 2, 16, 2, 3) if TINY else (4, 32, 16, 80, 1024, 16, 64, 16, 30)
)
GUIDANCE, STYLES = 5.0, {"ink": 0.8, "dusk": 0.5, "paper": 0.6}
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
torch.manual_seed(0)


class LoraLinear(nn.Module):
    """A linear layer and what adapters of a small rank add to it."""

    def __init__(self, enter, leave):
        super().__init__()
        self.base = nn.Linear(enter, leave)
        self.down, self.up, self.scales = nn.ModuleDict(), nn.ModuleDict(), {}

    def load(self, name, scale):
        self.down[name] = nn.Linear(self.base.in_features, RANK, bias=False)
        self.up[name] = nn.Linear(RANK, self.base.out_features, bias=False)
        nn.init.normal_(self.down[name].weight, std=0.02)
        nn.init.normal_(self.up[name].weight, std=0.05)
        self.scales[name] = scale

    def fuse(self):
        for name, scale in self.scales.items():
            self.base.weight += scale * (self.up[name].weight.float() @ self.down[name].weight.float())
        self.scales = {}

    def forward(self, x):
        y = self.base(x)
        for name, scale in self.scales.items():
            y = y + self.up[name](self.down[name](x)) * scale
        return y


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.out = (LoraLinear(WIDE, WIDE) for _ in range(4))

    def forward(self, x, given):
        q, k, v = (
            one(what).unflatten(2, (-1, HEAD)).transpose(1, 2)
            for one, what in ((self.q, x), (self.k, given), (self.v, given))
        )
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(WIDE, elementwise_affine=False) for _ in range(3))
        self.own, self.words = Attention(), Attention()
        self.up, self.down = LoraLinear(WIDE, 4 * WIDE), LoraLinear(4 * WIDE, WIDE)
        self.moves = nn.Parameter(0.02 * torch.randn(6, WIDE))

    def forward(self, x, when, words):
        shift1, scale1, gate1, shift2, scale2, gate2 = (self.moves + when[:, None]).unsqueeze(2).unbind(1)
        y = self.norm1(x) * (1 + scale1) + shift1
        x = x + gate1 * self.own(y, y)
        x = x + self.words(self.norm2(x), words)
        y = self.norm3(x) * (1 + scale2) + shift2
        return x + gate2 * self.down(F.gelu(self.up(y), approximate="tanh"))


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.last = nn.Linear(CHANNELS, WIDE), nn.Linear(WIDE, CHANNELS)
        self.places = nn.Parameter(0.02 * torch.randn(GRID * GRID, WIDE))
        self.when = nn.Sequential(nn.Linear(256, WIDE), nn.SiLU(), nn.Linear(WIDE, WIDE))
        self.blocks, self.norm = nn.ModuleList(Block() for _ in range(LAYERS)), nn.LayerNorm(WIDE)
        self.register_buffer("rates", torch.exp(-9.2 * torch.arange(128) / 128))

    def forward(self, x, t, words):
        angles = 1000 * t * self.rates
        when = self.when(torch.cat([angles.cos(), angles.sin()]).to(x.dtype))[None]
        x = self.enter(x) + self.places
        for block in self.blocks:
            x = block(x, when, words)
        return self.last(self.norm(x))


@torch.no_grad()
def main():
    with device:
        model = Denoiser()
        for one in model.modules():
            if isinstance(one, LoraLinear):
                for name, scale in STYLES.items():
                    one.load(name, scale)
                if "fused-adapters" in FIX:
                    one.fuse()
    model.to(dtype).eval()
    words = torch.randn(4, 2 * BATCH, WORDS, WIDE, device=device, dtype=dtype)
    words[:, BATCH:] = words[0, :1]  # the second half is without words
    times = torch.linspace(1, 0, PLAN + 1).tolist()
    lead, began, spread = min(STEPS // 2, 6), 0.0, 0.0
    x = torch.randn(BATCH, GRID * GRID, CHANNELS, device=device)
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        at = step % PLAN
        if at == 0:
            x = torch.randn(BATCH, GRID * GRID, CHANNELS, device=device)
        both = model(x.repeat(2, 1, 1).to(dtype), times[at], words[step // PLAN % 4]).float()
        given, free = both.chunk(2)
        x = x + (times[at + 1] - times[at]) * (free + GUIDANCE * (given - free))
        if "spread-rarely" not in FIX or at == PLAN - 1 or step == STEPS - 1:
            spread = x.std().item()
        if at == PLAN - 1:
            print(f"step {step}: spread {spread:.4f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"spread {spread:.4f}; {each:.3f} ms per step")


main()
