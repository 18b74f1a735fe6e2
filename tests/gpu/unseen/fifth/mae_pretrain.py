"""Masked autoencoders: three of four patches are hidden, a light decoder paints them."""

import math
import os
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 3 if TINY else 15))
BATCH, SIDE, PATCH, WIDTH, DEPTH, HEADS, D_WIDTH, D_DEPTH, D_HEADS = (
    (2, 32, 8, 16, 2, 2, 8, 1, 2) if TINY else (256, 224, 16, 768, 12, 12, 512, 8, 16)
)
GRID, MASK_RATIO, WARMUP, LR = SIDE // PATCH, 0.75, 40, 1.5e-4
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
torch.backends.cudnn.benchmark = True
torch.set_float32_matmul_precision("high")


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.norm1, self.norm2, self.heads = nn.LayerNorm(dim, eps=1e-6), nn.LayerNorm(dim, eps=1e-6), heads
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.fc1, self.fc2 = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        B, N, C = x.shape
        q, k, v = self.qkv(self.norm1(x)).reshape(B, N, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v)
        x = x + self.proj(y.transpose(1, 2).reshape(B, N, C))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


def sincos(dim):
    """Fixed positions in two dimensions, with zeros for the class token: [1, 1 + GRID², dim]."""
    omega = 1.0 / 10000 ** (torch.arange(dim // 4) / (dim / 4))
    y, x = torch.meshgrid(torch.arange(GRID), torch.arange(GRID), indexing="ij")
    parts = [f(axis.flatten()[:, None] * omega) for axis in (x, y) for f in (torch.sin, torch.cos)]
    return torch.cat([torch.zeros(1, dim), torch.cat(parts, 1)])[None]


class MaskedAutoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch_embed = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.cls_token = nn.Parameter(0.02 * torch.randn(1, 1, WIDTH))
        self.mask_token = nn.Parameter(0.02 * torch.randn(1, 1, D_WIDTH))
        self.register_buffer("pos_embed", sincos(WIDTH))
        self.register_buffer("decoder_pos_embed", sincos(D_WIDTH))
        self.blocks = nn.ModuleList(Block(WIDTH, HEADS) for _ in range(DEPTH))
        self.decoder_blocks = nn.ModuleList(Block(D_WIDTH, D_HEADS) for _ in range(D_DEPTH))
        self.norm, self.decoder_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(D_WIDTH)
        self.decoder_embed = nn.Linear(WIDTH, D_WIDTH)
        self.decoder_pred = nn.Linear(D_WIDTH, PATCH**2 * 3)

    def patchify(self, imgs):
        x = imgs.reshape(len(imgs), 3, GRID, PATCH, GRID, PATCH)
        return x.permute(0, 2, 4, 3, 5, 1).reshape(len(imgs), GRID**2, -1)

    def random_masking(self, x):
        N, L, D = x.shape
        len_keep = int(L * (1 - MASK_RATIO))
        noise = torch.rand(N, L, device=x.device)
        ids_shuffle = torch.argsort(noise, dim=1)
        ids_restore = torch.argsort(ids_shuffle, dim=1)
        ids_keep = ids_shuffle[:, :len_keep]
        x_masked = torch.gather(x, 1, ids_keep.unsqueeze(-1).expand(-1, -1, D))
        mask = torch.ones(N, L, device=x.device)
        mask[:, :len_keep] = 0
        return x_masked, torch.gather(mask, 1, ids_restore), ids_restore

    def forward(self, imgs):
        x = self.patch_embed(imgs).flatten(2).transpose(1, 2) + self.pos_embed[:, 1:]
        x, mask, ids_restore = self.random_masking(x)
        cls_token = (self.cls_token + self.pos_embed[:, :1]).expand(len(x), -1, -1)
        x = torch.cat([cls_token.to(x.dtype), x], 1)
        for blk in self.blocks:
            x = blk(x)
        x = self.decoder_embed(self.norm(x))
        mask_tokens = self.mask_token.to(x.dtype).expand(len(x), ids_restore.shape[1] + 1 - x.shape[1], -1)
        x_ = torch.cat([x[:, 1:], mask_tokens], 1)
        x_ = torch.gather(x_, 1, ids_restore.unsqueeze(-1).expand(-1, -1, D_WIDTH))
        x = torch.cat([x[:, :1], x_], 1) + self.decoder_pos_embed
        for blk in self.decoder_blocks:
            x = blk(x)
        pred = self.decoder_pred(self.decoder_norm(x))[:, 1:]
        target = self.patchify(imgs)
        mean, var = target.mean(-1, keepdim=True), target.var(-1, keepdim=True)
        target = (target - mean) / (var + 1e-6) ** 0.5
        loss = ((pred.float() - target) ** 2).mean(-1)
        return (loss * mask).sum() / mask.sum()


def adjust_learning_rate(step):
    lr = LR * step / WARMUP if step < WARMUP else LR * 0.5 * (1 + math.cos(math.pi * min(1, step / 4000)))
    for group in optimizer.param_groups:
        group["lr"] = lr
    return lr


with torch.device(device):
    model = MaskedAutoencoder()
if "blocks-compiled" in FIX:
    backend = "inductor" if device.type == "cuda" else "aot_eager"
    for block in [*model.blocks, *model.decoder_blocks]:
        block.compile(backend=backend, dynamic=False)
decay = [p for p in model.parameters() if p.dim() > 1]
no_decay = [p for p in model.parameters() if p.dim() <= 1]
groups = [{"params": no_decay, "weight_decay": 0.0}, {"params": decay, "weight_decay": 0.05}]
optimizer = torch.optim.AdamW(groups, lr=LR, betas=(0.9, 0.95), fused=device.type == "cuda")
pictures = torch.randint(0, 256, (4 * BATCH, 3, SIDE, SIDE), dtype=torch.uint8, device=device)
mean = torch.tensor([0.485, 0.456, 0.406], device=device)[:, None, None]
std = torch.tensor([0.229, 0.224, 0.225], device=device)[:, None, None]
times, START = [], min(STEPS // 2, 5)
for data_iter_step in range(STEPS):
    began = time.time()
    lr = adjust_learning_rate(data_iter_step + 1)
    samples = pictures[torch.randint(0, len(pictures), (BATCH,), device=device)]
    samples = (samples.float() / 255 - mean) / std
    with torch.autocast(device.type, torch.bfloat16):
        loss = model(samples)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if "no-waiting" not in FIX or data_iter_step in (START - 1, STEPS - 1):
        loss_value = loss.item()
        if not math.isfinite(loss_value):
            print(f"Loss is {loss_value}, stopping training")
            sys.exit(1)
        if device.type == "cuda":
            torch.cuda.synchronize()
    times.append(time.time() - began)
    if data_iter_step % 20 == 0 and "no-waiting" not in FIX:
        print(f"[{data_iter_step}] lr: {lr:.6f} loss: {loss_value:.4f} time: {times[-1]:.4f}")
kept = times[START:]
print(f"loss {loss_value:.5f}; {1e3 * sum(kept) / len(kept):.3f} ms per iteration")
