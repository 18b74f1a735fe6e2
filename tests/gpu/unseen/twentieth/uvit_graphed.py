"""Latents of pictures from noise along straight lines: a transformer with long skips is trained."""

import copy
import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 80))
SIZE, BATCH, SIDE, CHANNELS, PATCH, KINDS, WIDE, HALF, HEAD = (
    (8, 4, 8, 4, 2, 5, 32, 1, 16) if TINY else (4096, 128, 32, 4, 2, 1000, 768, 6, 64)
)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low = device.type == "cuda"
torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self, skips):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDE), nn.LayerNorm(WIDE)
        self.qkv, self.out = nn.Linear(WIDE, 3 * WIDE), nn.Linear(WIDE, WIDE)
        self.mlp = nn.Sequential(nn.Linear(WIDE, 4 * WIDE), nn.GELU(), nn.Linear(4 * WIDE, WIDE))
        self.join = nn.Linear(2 * WIDE, WIDE) if skips else None

    def forward(self, x, skip=None):
        if self.join is not None:
            x = self.join(torch.cat([x, skip], 2))
        qkv = self.qkv(self.norm1(x)).unflatten(2, (3, -1, HEAD)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(*qkv.unbind(0)).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class UViT(nn.Module):
    def __init__(self):
        super().__init__()
        pixels = CHANNELS * PATCH**2
        self.enter, self.norm, self.last = (
            nn.Linear(pixels, WIDE),
            nn.LayerNorm(WIDE),
            nn.Linear(WIDE, pixels),
        )
        self.places = nn.Parameter(0.02 * torch.randn((SIDE // PATCH) ** 2, WIDE))
        self.kinds = nn.Embedding(KINDS, WIDE)
        self.when = nn.Sequential(nn.Linear(256, WIDE), nn.SiLU(), nn.Linear(WIDE, WIDE))
        self.first = nn.ModuleList(Block(False) for _ in range(HALF))
        self.second = nn.ModuleList(Block(True) for _ in range(HALF))
        self.register_buffer("rates", torch.exp(-9.2 * torch.arange(128) / 128))

    def forward(self, x, t, kinds):
        angles = 1000 * t[:, None] * self.rates
        given = self.when(torch.cat([angles.cos(), angles.sin()], 1)) + self.kinds(kinds)
        x, kept = self.enter(x) + self.places + given[:, None], []
        for block in self.first:
            x = block(x)
            kept.append(x)
        for block in self.second:
            x = block(x, kept.pop())
        return self.last(self.norm(x))


class Training:
    """A whole step over the same memory: draws, both passes, the optimizer and an average of the weights."""

    def __init__(self, model, latents, kinds):
        self.model, self.latents, self.kinds = model, latents, kinds
        self.average = copy.deepcopy(model).requires_grad_(False)
        for block in [*model.first, *model.second]:
            block.compile(backend="inductor" if low else "eager", dynamic=False)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4, fused=low, capturable=low)
        self.loss = torch.zeros((), device=device)
        self.graph = None
        if not low:
            return
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self.step()
        torch.cuda.current_stream().wait_stream(stream)
        self.optimizer.zero_grad(set_to_none=True)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.step()

    def step(self):
        chosen = torch.randint(SIZE, (BATCH,), device=device)
        x, t = self.latents[chosen], torch.randn(BATCH, device=device).sigmoid()
        noise = torch.randn_like(x)
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            off = self.model(torch.lerp(x, noise, t[:, None, None]), t, self.kinds[chosen])
        loss = F.mse_loss(off.float(), noise - x)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0, foreach=True)
        self.optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(list(self.average.parameters()), list(self.model.parameters()), 1e-3)
        self.loss.copy_(loss.detach())

    def __call__(self):
        if self.graph is None:
            self.step()
        else:
            self.graph.replay()


def main():
    kinds = torch.randint(KINDS, (SIZE,), device=device)
    latents = torch.randn(SIZE, (SIDE // PATCH) ** 2, CHANNELS * PATCH**2, device=device)
    latents += (kinds / KINDS)[:, None, None]
    with device:
        model = UViT()
    training = Training(model, latents, kinds)
    lead, began, shown = min(STEPS // 2, 6), 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        training()
        if "loss-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown = training.loss.item()
        if step % 20 == 0:
            print(f"step {step}: loss {shown:.4f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.5f}; {each:.3f} ms per step")


main()
