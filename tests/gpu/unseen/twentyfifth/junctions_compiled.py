"""Where will a car go? A transformer looks at pieces of lanes and of others' ways, and says six futures."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 200))
SCENES, BATCH, PIECES, WIDE, LAYERS, HEAD, LATER = (
    (16, 4, 26, 32, 2, 16, 5) if TINY else (4096, 128, 506, 512, 8, 64, 80)
)
FEATURES, WAYS = 16, 6
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low, backend = (True, "inductor") if device.type == "cuda" else (False, "eager")
torch.manual_seed(0)


class Enter(nn.Module):
    """Pieces become vectors; behind them stand those that become futures."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(FEATURES, WIDE), nn.Linear(WIDE, WIDE)
        self.ways = nn.Parameter(torch.randn(WAYS, WIDE))

    def forward(self, pieces):
        x = self.down(F.gelu(self.up(pieces)))
        return torch.cat([x, self.ways.to(x.dtype).expand(len(x), -1, -1)], 1)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDE), nn.LayerNorm(WIDE)
        self.qkv, self.out = nn.Linear(WIDE, 3 * WIDE), nn.Linear(WIDE, WIDE)
        self.up, self.down = nn.Linear(WIDE, 4 * WIDE), nn.Linear(4 * WIDE, WIDE)

    def forward(self, x):
        qkv = self.qkv(self.norm1(x)).unflatten(2, (3, -1, HEAD)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(*qkv.unbind(0)).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Leave(nn.Module):
    """The future that is nearest to what came learns from it, and should be thought the likeliest."""

    def __init__(self):
        super().__init__()
        self.norm, self.way, self.chance = nn.LayerNorm(WIDE), nn.Linear(WIDE, 2 * LATER), nn.Linear(WIDE, 1)

    def forward(self, x, future):
        x = self.norm(x[:, -WAYS:])
        ways, chances = self.way(x).float().unflatten(2, (LATER, 2)), self.chance(x).float()[..., 0]
        far = (ways.detach() - future[:, None]).square().sum(3).sqrt().mean(2)
        best = far.argmin(1)
        off = F.huber_loss(ways, future[:, None].expand_as(ways), reduction="none").mean((2, 3))
        return off.gather(1, best[:, None]).mean() + F.cross_entropy(chances, best), far.min(1)[0].mean()


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.leave = Enter(), Leave()
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))

    def forward(self, pieces, future):
        x = self.enter(pieces)
        for block in self.blocks:
            x = block(x)
        return self.leave(x, future)

    def compile_parts(self):
        for part in (self.enter, self.leave, *self.blocks):
            part.compile(backend=backend, dynamic=False)


def recorded():
    """Pieces around a car, and where it went: on with some turn, of which the first piece tells."""
    pieces = torch.randn(SCENES, PIECES, FEATURES, device=device)
    later = torch.arange(1, LATER + 1, device=device) / 10
    turn, fast = 0.2 * pieces[:, 0, :1], 2 + pieces[:, 0, 1:2].abs()
    return pieces.to(torch.bfloat16 if low else torch.float32), torch.stack(
        [fast * later * torch.cos(turn * later), fast * later * torch.sin(turn * later)], 2
    )


def main():
    pieces, futures = recorded()
    with device:
        model = Forecaster()
    model.compile_parts()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4, weight_decay=0.01, fused=low)
    lead, began, shown = min(STEPS // 2, 8), 0.0, (0.0, 0.0)
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        chosen = torch.randint(SCENES, (BATCH,), device=device)
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            loss, far = model(pieces[chosen], futures[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if "loss-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown = torch.stack([loss.detach(), far]).tolist()
        if step % 20 == 0:
            print(f"step {step}: loss {shown[0]:.4f}, {shown[1]:.3f} m off")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown[0]:.5f}, {shown[1]:.4f} m off; {each:.3f} ms per step")


main()
