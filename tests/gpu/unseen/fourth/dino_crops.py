"""Self-distillation without labels: a ViT-S/16 and its moving average; two large crops and six small."""

import copy
import math
import os
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 3 if TINY else 30))
DIM, DEPTH, HEADS, PATCH, GLOBAL, LOCAL = (32, 2, 2, 8, 32, 16) if TINY else (384, 12, 6, 16, 224, 96)
BATCH, CROPS, OUT, CLIP = (2, 3, 64, 3.0) if TINY else (32, 6, 65_536, 3.0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
if "tf32" in FIX:
    torch.set_float32_matmul_precision("high")


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.proj = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, DIM // HEADS)).permute(2, 0, 3, 1, 4)
        attn = (q @ k.transpose(-2, -1)) * (DIM // HEADS) ** -0.5
        return self.proj((attn.softmax(dim=-1) @ v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.attn, self.norm2 = nn.LayerNorm(DIM), Attention(), nn.LayerNorm(DIM)
        self.mlp = nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.GELU(), nn.Linear(4 * DIM, DIM))

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class VisionTransformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch_embed = nn.Conv2d(3, DIM, PATCH, stride=PATCH)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, DIM))
        self.pos_embed = nn.Parameter(torch.randn(1, 1 + (GLOBAL // PATCH) ** 2, DIM) * 0.02)
        self.blocks, self.norm = nn.ModuleList(Block() for _ in range(DEPTH)), nn.LayerNorm(DIM)

    def interpolate_pos_encoding(self, size):
        side = math.isqrt(self.pos_embed.shape[1] - 1)
        if size == side:
            return self.pos_embed
        grid = self.pos_embed[:, 1:].view(1, side, side, DIM).permute(0, 3, 1, 2)
        grid = F.interpolate(grid, size=(size, size), mode="bicubic")
        return torch.cat([self.pos_embed[:, :1], grid.flatten(2).transpose(1, 2)], 1)

    def forward(self, x):
        x = self.patch_embed(x)
        size = x.shape[-1]
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x.flatten(2).transpose(1, 2)], 1)
        x = x + self.interpolate_pos_encoding(size)
        for blk in self.blocks:
            x = blk(x)
        return self.norm(x)[:, 0]


class DINOHead(nn.Module):
    def __init__(self, hidden=2048, bottleneck=256):
        super().__init__()
        layers = nn.Linear(DIM, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU()
        self.mlp = nn.Sequential(*layers, nn.Linear(hidden, bottleneck))
        self.last_layer = nn.Parameter(torch.randn(OUT, bottleneck) * 0.02)

    def forward(self, x):
        return F.linear(F.normalize(self.mlp(x), dim=-1), F.normalize(self.last_layer, dim=-1))


class MultiCropWrapper(nn.Module):
    """One pass of the backbone for each resolution, one of the head for all."""

    def __init__(self):
        super().__init__()
        self.backbone, self.head = VisionTransformer(), DINOHead()

    def forward(self, crops):
        large = [one for one in crops if one.shape[-1] == GLOBAL]
        small = [one for one in crops if one.shape[-1] != GLOBAL]
        return self.head(torch.cat([self.backbone(torch.cat(group)) for group in (large, small) if group]))


class DINOLoss(nn.Module):
    def __init__(self, student_temp=0.1, teacher_temp=0.04, center_momentum=0.9):
        super().__init__()
        self.student_temp, self.teacher_temp, self.center_momentum = (
            student_temp,
            teacher_temp,
            center_momentum,
        )
        self.register_buffer("center", torch.zeros(1, OUT))

    def forward(self, student_output, teacher_output):
        student_out = (student_output / self.student_temp).chunk(CROPS + 2)
        teacher_out = F.softmax((teacher_output - self.center) / self.teacher_temp, dim=-1).detach().chunk(2)
        total_loss, n_loss_terms = 0, 0
        for iq, q in enumerate(teacher_out):
            for v in range(len(student_out)):
                if v == iq:
                    continue
                loss = torch.sum(-q * F.log_softmax(student_out[v], dim=-1), dim=-1)
                total_loss, n_loss_terms = total_loss + loss.mean(), n_loss_terms + 1
        with torch.no_grad():
            batch_center = teacher_output.mean(dim=0, keepdim=True)
            self.center = self.center * self.center_momentum + batch_center * (1 - self.center_momentum)
        return total_loss / n_loss_terms


def clip_gradients(model, clip):
    """Each parameter's gradient has a norm of at most clip."""
    if "clip-foreach" in FIX:
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        coefs = [(clip / (norm + 1e-6)).clamp(max=1) for norm in torch._foreach_norm(grads)]
        torch._foreach_mul_(grads, coefs)
        return coefs
    norms = []
    for p in model.parameters():
        if p.grad is not None:
            param_norm = p.grad.data.norm(2)
            norms.append(param_norm.item())
            clip_coef = clip / (param_norm + 1e-6)
            if clip_coef < 1:
                p.grad.data.mul_(clip_coef)
    return norms


student = MultiCropWrapper().to(device)
teacher = copy.deepcopy(student).requires_grad_(False)
dino_loss = DINOLoss().to(device)
optimizer = torch.optim.AdamW(student.parameters(), lr=5e-4 * BATCH / 256)
momentum_schedule = [1 - 0.004 * (math.cos(math.pi * it / STEPS) + 1) / 2 for it in range(STEPS)]
pictures = torch.randn(4 * BATCH, 3, GLOBAL + 32, GLOBAL + 32, device=device)
iter_times, end = [], time.time()
for it in range(STEPS):
    batch = pictures[torch.randint(0, len(pictures), (BATCH,), device=device)]
    images = []
    for crop in range(CROPS + 2):
        size = GLOBAL if crop < 2 else LOCAL
        top, left = (int(torch.randint(0, batch.shape[-1] - size + 1, ())) for _ in range(2))
        images.append(batch[..., top : top + size, left : left + size])
    with torch.no_grad():
        teacher_output = teacher(images[:2])
    loss = dino_loss(student(images), teacher_output)
    if not math.isfinite(loss.item()):
        print(f"Loss is {loss.item()}, stopping training")
        sys.exit(1)
    optimizer.zero_grad()
    loss.backward()
    clip_gradients(student, CLIP)
    optimizer.step()
    with torch.no_grad():
        m = momentum_schedule[it]
        for param_q, param_k in zip(student.parameters(), teacher.parameters(), strict=True):
            param_k.data.mul_(m).add_((1 - m) * param_q.detach().data)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    iter_times.append(time.time() - end)
    end = time.time()
    if it % 10 == 0 or it == STEPS - 1:
        print(f"Epoch: [0/100]  [{it}/{STEPS}]  loss: {loss.item():.6f}")
kept = iter_times[max(1, STEPS // 5) :]
print(f"Total time: {sum(iter_times):.2f} s ({sum(kept) / len(kept):.6f} s / it)")
