"""Pictures of things by their names, in bulk: a diffusion transformer with guidance, a step in one graph."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 5 if TINY else 150))  # of denoising
BATCH, GRID, CHANNELS, WIDE, LAYERS, HEAD, KINDS, PLAN = (
    (2, 4, 16, 32, 1, 16, 5, 3) if TINY else (24, 16, 16, 1152, 16, 72, 1000, 50)
)
GUIDANCE = 4.0
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(WIDE, elementwise_affine=False) for _ in range(2))
        self.qkv, self.out = nn.Linear(WIDE, 3 * WIDE), nn.Linear(WIDE, WIDE)
        self.up, self.down = nn.Linear(WIDE, 4 * WIDE), nn.Linear(4 * WIDE, WIDE)
        self.change = nn.Linear(WIDE, 6 * WIDE)

    def forward(self, x, given):
        shift1, scale1, gate1, shift2, scale2, gate2 = self.change(given)[:, None].chunk(6, 2)
        y = self.norm1(x) * (1 + scale1) + shift1
        q, k, v = self.qkv(y).unflatten(2, (3, -1, HEAD)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + gate1 * self.out(y)
        y = self.norm2(x) * (1 + scale2) + shift2
        return x + gate2 * self.down(F.gelu(self.up(y), approximate="tanh"))


class DiT(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.kinds = nn.Linear(CHANNELS, WIDE), nn.Embedding(KINDS + 1, WIDE)
        self.places = nn.Parameter(0.02 * torch.randn(1, GRID * GRID, WIDE))
        self.when = nn.Sequential(nn.Linear(256, WIDE), nn.SiLU(), nn.Linear(WIDE, WIDE))
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.last = nn.LayerNorm(WIDE), nn.Linear(WIDE, CHANNELS)
        self.register_buffer("rates", torch.exp(-9.2 * torch.arange(128) / 128))

    def forward(self, x, t, kinds):
        angles = 1000 * t * self.rates.float()
        when = self.when(torch.cat([angles.cos(), angles.sin()]).to(x.dtype)[None])
        given = F.silu(when + self.kinds(kinds))
        x = self.enter(x) + self.places
        for block in self.blocks:
            x = block(x, given)
        return self.last(self.norm(x))


class Denoising:
    """Both halves of the guidance in one batch, and the whole step as a graph over the same memory."""

    def __init__(self, model):
        self.model, self.graph = model, None
        self.x = torch.zeros(BATCH, GRID * GRID, CHANNELS, device=device)
        self.kinds = torch.full((2 * BATCH,), KINDS, device=device)  # the second half is without a name
        self.times = torch.linspace(1, 0, PLAN + 1, device=device)
        self.at = torch.zeros(1, dtype=torch.long, device=device)
        if device.type != "cuda":
            return
        for block in model.blocks:
            block.compile(dynamic=False)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self.step()
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.step()

    def step(self):
        """One of Euler's, from noise to a picture."""
        now, then = self.times[self.at], self.times[self.at + 1]
        with_name, without = self.model(self.x.repeat(2, 1, 1).to(dtype), now, self.kinds).float().chunk(2)
        self.x.add_((then - now) * (without + GUIDANCE * (with_name - without)))
        self.at.add_(1).remainder_(PLAN)

    def begin(self, kinds):
        self.kinds[:BATCH] = kinds
        self.x.normal_()
        self.at.zero_()

    def __call__(self):
        if self.graph is None:
            self.step()
        else:
            self.graph.replay()


@torch.no_grad()
def main():
    with device:
        model = DiT().to(dtype).eval()
        for weight in model.parameters():
            if weight.dim() == 2:
                weight.normal_(0, 0.02)
    denoising = Denoising(model)
    asked = torch.randint(KINDS, (4, BATCH), device=device)
    pictures = torch.empty(4, *denoising.x.shape, device=device)
    lead, began, spread = min(STEPS // 2, 8), 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        if step % PLAN == 0:
            denoising.begin(asked[step // PLAN % 4])
        denoising()
        if step % PLAN == PLAN - 1:
            pictures[step // PLAN % 4] = denoising.x
        if "spread-rarely" not in FIX or step % PLAN == PLAN - 1 or step == STEPS - 1:
            spread = denoising.x.std().item()
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"spread {spread:.4f}; {each:.3f} ms per step")


main()
