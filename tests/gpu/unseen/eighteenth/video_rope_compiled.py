"""Films from words: a diffusion transformer, whose blocks are compiled, with places in time and picture."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 5 if TINY else 60))  # of denoising
GRID, CHANNELS, WIDE, LAYERS, HEAD, WORDS, TEXT, PLAN = (
    ((2, 4, 4), 8, 32, 2, 16, 5, 16, 3) if TINY else ((13, 16, 24), 64, 1024, 12, 64, 128, 1024, 30)
)
TOKENS, GUIDANCE, MOST = GRID[0] * GRID[1] * GRID[2], 5.0, 64
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
dtype, backend = (torch.bfloat16, "inductor") if device.type == "cuda" else (torch.float32, "eager")
torch.manual_seed(0)


def frequencies():
    """For each number of a place, turns as complex numbers: of time, of height, of width."""
    across = 2 * (HEAD // 6)
    parts = []
    for wide in (HEAD - 2 * across, across, across):
        rates = 1.0 / 10000 ** (torch.arange(0, wide, 2, dtype=torch.float64) / wide)
        angles = torch.outer(torch.arange(MOST, dtype=torch.float64), rates)
        parts.append(torch.polar(torch.ones_like(angles), angles))
    return torch.cat(parts, 1)


def turned(x, sizes, turns):
    """Queries or keys of films, each as large as its sizes say, turned by where they are."""
    across = HEAD // 6
    parts = turns.split([HEAD // 2 - 2 * across, across, across], 1)
    films = []
    for i, (long, high, wide) in enumerate(sizes.tolist()):
        count = long * high * wide
        film = torch.view_as_complex(x[i, :count].to(torch.float64).reshape(count, x.shape[2], -1, 2))
        grid = torch.cat(
            [
                parts[0][:long].view(long, 1, 1, -1).expand(long, high, wide, -1),
                parts[1][:high].view(1, high, 1, -1).expand(long, high, wide, -1),
                parts[2][:wide].view(1, 1, wide, -1).expand(long, high, wide, -1),
            ],
            dim=3,
        ).reshape(count, 1, -1)
        film = torch.view_as_real(film * grid).flatten(2)
        films.append(torch.cat([film, x[i, count:]]))
    return torch.stack(films).float()


def turned_by_table(x, table):
    """The same with real numbers, of which cosines and sines are known before."""
    cosine, sine = table
    even, odd = x.float().unflatten(3, (-1, 2)).unbind(4)
    return torch.stack([even * cosine - odd * sine, even * sine + odd * cosine], 4).flatten(3)


class Attention(nn.Module):
    def __init__(self, context):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(WIDE, WIDE), nn.Linear(context, WIDE), nn.Linear(context, WIDE)
        self.out, self.norm_q, self.norm_k = nn.Linear(WIDE, WIDE), nn.RMSNorm(WIDE), nn.RMSNorm(WIDE)

    def forward(self, x, seen, sizes=None, turns=None):
        q, k, v = self.norm_q(self.q(x)), self.norm_k(self.k(seen)), self.v(seen)
        q, k, v = (one.unflatten(2, (-1, HEAD)) for one in (q, k, v))
        if turns is not None:
            if "real-turns" in FIX:
                q, k = turned_by_table(q, turns), turned_by_table(k, turns)
            else:
                q, k = turned(q, sizes, turns), turned(k, sizes, turns)
            q, k = q.to(v.dtype), k.to(v.dtype)
        y = F.scaled_dot_product_attention(*(one.transpose(1, 2) for one in (q, k, v)))
        return self.out(y.transpose(1, 2).flatten(2))


class VideoBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm3 = (nn.LayerNorm(WIDE, elementwise_affine=False) for _ in range(2))
        self.norm2, self.look, self.read = nn.LayerNorm(WIDE), Attention(WIDE), Attention(TEXT)
        self.up, self.down = nn.Linear(WIDE, 4 * WIDE), nn.Linear(4 * WIDE, WIDE)
        self.change = nn.Parameter(torch.randn(1, 6, WIDE) / WIDE**0.5)

    def forward(self, x, given, words, sizes, turns):
        shift1, scale1, gate1, shift2, scale2, gate2 = (self.change + given).chunk(6, 1)
        y = self.norm1(x) * (1 + scale1) + shift1
        x = x + gate1 * self.look(y, y, sizes, turns)
        x = x + self.read(self.norm2(x), words)
        y = self.norm3(x) * (1 + scale2) + shift2
        return x + gate2 * self.down(F.gelu(self.up(y), approximate="tanh"))


class Films(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.last = nn.Linear(CHANNELS, WIDE), nn.Linear(WIDE, CHANNELS)
        self.norm = nn.LayerNorm(WIDE)
        self.when = nn.Sequential(nn.Linear(256, WIDE), nn.SiLU(), nn.Linear(WIDE, 6 * WIDE))
        self.blocks = nn.ModuleList(VideoBlock() for _ in range(LAYERS))

    def forward(self, x, t, words, sizes, turns):
        rates = torch.exp(-9.2 * torch.arange(128, device=x.device) / 128)
        angles = 1000 * t * rates
        given = self.when(torch.cat([angles.cos(), angles.sin()]).to(x.dtype)).view(1, 6, WIDE)
        x = self.enter(x)
        for block in self.blocks:
            x = block(x, given, words, sizes, turns)
        return self.last(self.norm(x))


def table_of(turns):
    """Cosines and sines of the one size that there is."""
    across = HEAD // 6
    parts = turns.split([HEAD // 2 - 2 * across, across, across], 1)
    places = torch.cartesian_prod(*(torch.arange(count, device=device) for count in GRID))
    grid = torch.cat([part[places[:, i]] for i, part in enumerate(parts)], 1)[:, None]
    return grid.real.float(), grid.imag.float()


@torch.no_grad()
def main():
    with device:
        model = Films().to(dtype).eval()
    for block in model.blocks:
        block.compile(backend=backend, dynamic=False)
    sizes, turns = torch.tensor([GRID, GRID]), frequencies().to(device)
    if "real-turns" in FIX:
        turns = table_of(turns)
    times = torch.linspace(1, 0, PLAN + 1, device=device)
    lead, began, spread = min(STEPS // 2, 5), 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        at = step % PLAN
        if at == 0:  # another film
            x = torch.randn(1, TOKENS, CHANNELS, device=device)
            words = torch.randn(2, WORDS, TEXT, device=device, dtype=dtype)  # with words, and without
        flow = model(x.repeat(2, 1, 1).to(dtype), times[at], words, sizes, turns)
        asked, free = flow.float().chunk(2)
        x = x + (times[at + 1] - times[at]) * (free + GUIDANCE * (asked - free))
        if "spread-rarely" not in FIX or at == PLAN - 1 or step == STEPS - 1:
            spread = x.std().item()
        if at == PLAN - 1:
            print(f"film {step // PLAN}: spread {spread:.4f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"spread {spread:.4f}; {each:.3f} ms per step")


main()
