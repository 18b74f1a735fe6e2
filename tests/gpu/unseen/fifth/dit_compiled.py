"""A diffusion transformer on latents: bfloat16, compiled blocks, an averaged copy of its weights."""

import copy
import math
import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 20))
BATCH, SIDE, PATCH, WIDTH, DEPTH, HEADS = (2, 8, 2, 16, 2, 2) if TINY else (128, 32, 2, 768, 12, 12)
CLASSES = 5 if TINY else 1000
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
torch.set_float32_matmul_precision("high")


class DiTBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH, elementwise_affine=False, eps=1e-6)
        self.norm2 = nn.LayerNorm(WIDTH, elementwise_affine=False, eps=1e-6)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.fc1, self.fc2 = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.adaLN = nn.Linear(WIDTH, 6 * WIDTH)
        nn.init.zeros_(self.adaLN.weight)
        nn.init.zeros_(self.adaLN.bias)

    def forward(self, x, c):
        B, N, C = x.shape
        shift1, scale1, gate1, shift2, scale2, gate2 = self.adaLN(F.silu(c))[:, None].chunk(6, -1)
        h = self.norm1(x) * (1 + scale1) + shift1
        q, k, v = self.qkv(h).view(B, N, 3, HEADS, -1).permute(2, 0, 3, 1, 4).unbind(0)
        h = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(B, N, C)
        x = x + gate1 * self.proj(h)
        h = self.norm2(x) * (1 + scale2) + shift2
        return x + gate2 * self.fc2(F.gelu(self.fc1(h), approximate="tanh"))


class DiT(nn.Module):
    def __init__(self):
        super().__init__()
        tokens = (SIDE // PATCH) ** 2
        self.x_embedder = nn.Conv2d(4, WIDTH, PATCH, PATCH)
        self.t_embedder = nn.Sequential(nn.Linear(256, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH))
        self.y_embedder = nn.Embedding(CLASSES + 1, WIDTH)
        self.pos_embed = nn.Parameter(0.02 * torch.randn(1, tokens, WIDTH), requires_grad=False)
        self.blocks = nn.ModuleList(DiTBlock() for _ in range(DEPTH))
        self.norm = nn.LayerNorm(WIDTH, elementwise_affine=False, eps=1e-6)
        self.adaLN, self.final = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, PATCH**2 * 4)
        for layer in (self.adaLN, self.final):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)
        self.register_buffer("freqs", torch.exp(-math.log(10000) * torch.arange(128) / 128))

    def forward(self, x, t, y):
        drop = torch.rand(len(y), device=y.device) < 0.1
        args = t[:, None].float() * self.freqs
        c = self.t_embedder(torch.cat([args.cos(), args.sin()], -1))
        c = c + self.y_embedder(torch.where(drop, CLASSES, y))
        x = self.x_embedder(x).flatten(2).transpose(1, 2) + self.pos_embed
        for block in self.blocks:
            x = block(x, c)
        shift, scale = self.adaLN(F.silu(c))[:, None].chunk(2, -1)
        x = self.final(self.norm(x) * (1 + scale) + shift)
        side = SIDE // PATCH
        x = x.view(len(x), side, side, PATCH, PATCH, 4)
        return x.permute(0, 5, 1, 3, 2, 4).reshape(len(x), 4, SIDE, SIDE)


@torch.no_grad()
def update_ema(ema_model, model, decay=0.9999):
    if "ema-foreach" in FIX:
        torch._foreach_lerp_(list(ema_model.parameters()), list(model.parameters()), 1 - decay)
        return
    ema_params, model_params = dict(ema_model.named_parameters()), dict(model.named_parameters())
    for name, param in model_params.items():
        ema_params[name].mul_(decay).add_(param.data, alpha=1 - decay)


with torch.device(device):
    model = DiT()
ema = copy.deepcopy(model).requires_grad_(False)
for block in model.blocks:
    block.compile(backend="inductor" if device.type == "cuda" else "aot_eager", dynamic=False)
parameters = [p for p in model.parameters() if p.requires_grad]
opt = torch.optim.AdamW(parameters, lr=1e-4, weight_decay=0, fused=device.type == "cuda")
betas = torch.linspace(1e-4, 0.02, 1000, device=device)
alphas = torch.cumprod(1 - betas, 0)
latents = torch.randn(16 * BATCH, 4, SIDE, SIDE, device=device)
labels = torch.randint(0, CLASSES, (16 * BATCH,), device=device)
log_steps, running_loss, times, began = 0, 0.0, [], time.time()
for train_steps in range(STEPS):
    rows = torch.randint(0, len(latents), (BATCH,), device=device)
    x, y = latents[rows], labels[rows]
    t = torch.randint(0, 1000, (BATCH,), device=device)
    noise = torch.randn_like(x)
    a = alphas[t][:, None, None, None]
    noised = a.sqrt() * x + (1 - a).sqrt() * noise
    with torch.autocast(device.type, torch.bfloat16):
        predicted = model(noised, t, y)
    loss = F.mse_loss(predicted.float(), noise)
    opt.zero_grad()
    loss.backward()
    grad_norm = torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    opt.step()
    update_ema(ema, model)
    if "log-rarely" in FIX:
        running_loss = running_loss + loss.detach()
    else:
        running_loss += loss.item()
        norm = grad_norm.item()
    log_steps += 1
    if (train_steps + 1) % 20 == 0:
        print(f"(step={train_steps + 1:07d}) Train Loss: {float(running_loss) / log_steps:.4f}")
        running_loss, log_steps = 0.0, 0
    if train_steps == min(STEPS // 2, 9):
        float(running_loss)
        began, since = time.time(), train_steps
final = loss.item()
each = (time.time() - began) / (STEPS - 1 - since)
print(f"loss {final:.5f}; {1 / each:.4f} steps/sec")
