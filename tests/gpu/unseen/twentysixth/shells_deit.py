"""Shells: a tiny vision transformer learns from labels and from what a large one says of them."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 60))
SHELLS, BATCH, SIZE, PATCH, LAYERS, SMALL, LARGE, HEAD, KINDS = (
    (16, 4, 16, 8, 2, 16, 32, 8, 10) if TINY else (1024, 128, 224, 16, 12, 192, 768, 64, 1000)
)
HEAT, TRUST = 3.0, 0.5
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low = device.type == "cuda"
torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self, wide):
        super().__init__()
        self.before, self.between = nn.LayerNorm(wide), nn.LayerNorm(wide)
        self.qkv, self.out = nn.Linear(wide, 3 * wide), nn.Linear(wide, wide)
        self.mlp = nn.Sequential(nn.Linear(wide, 4 * wide), nn.GELU(), nn.Linear(4 * wide, wide))

    def forward(self, x):
        batch, long, wide = x.shape
        q, k, v = self.qkv(self.before(x)).view(batch, long, 3, wide // HEAD, HEAD).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, long, wide))
        return x + self.mlp(self.between(x))


class VisionTransformer(nn.Module):
    """With a token for the kind and one for what the teacher says."""

    def __init__(self, wide):
        super().__init__()
        self.patches = nn.Conv2d(3, wide, PATCH, PATCH)
        self.tokens = nn.Parameter(0.02 * torch.randn(1, 2, wide))
        self.places = nn.Parameter(0.02 * torch.randn(1, (SIZE // PATCH) ** 2 + 2, wide))
        self.blocks = nn.Sequential(*(Block(wide) for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(wide)
        self.head, self.head_distilled = nn.Linear(wide, KINDS), nn.Linear(wide, KINDS)

    def forward(self, images):
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.tokens.expand(len(x), -1, -1), x], 1) + self.places
        x = self.norm(self.blocks(x)[:, :2])
        return self.head(x[:, 0]), self.head_distilled(x[:, 1])


class DistillationLoss(nn.Module):
    def __init__(self, teacher):
        super().__init__()
        self.teacher = teacher

    def forward(self, images, found, labels):
        kind, distilled = found
        with (
            torch.no_grad(),
            torch.autocast(device.type, torch.bfloat16, enabled=low and "teacher-low" in FIX),
        ):
            says = sum(self.teacher(images)) / 2
        base = F.cross_entropy(kind.float(), labels)
        soft = F.kl_div(
            F.log_softmax(distilled.float() / HEAT, 1), F.log_softmax(says.float() / HEAT, 1),
            reduction="batchmean", log_target=True,
        )  # fmt: skip
        return (1 - TRUST) * base + TRUST * HEAT**2 * soft


def main():
    pictures = torch.randint(256, (SHELLS, 3, SIZE, SIZE), dtype=torch.uint8, device=device)
    labels = torch.randint(KINDS, (SHELLS,), device=device)
    with device:
        student, teacher = VisionTransformer(SMALL), VisionTransformer(LARGE)
        mean = torch.tensor([123.7, 116.3, 103.5]).view(3, 1, 1)
        spread = torch.tensor([58.4, 57.1, 57.4]).view(3, 1, 1)
    criterion = DistillationLoss(teacher.eval().requires_grad_(False))
    optimizer = torch.optim.AdamW(student.parameters(), lr=5e-4, weight_decay=0.05, fused=low)
    lead, began, shown, right = min(STEPS // 2, 6), 0.0, 0.0, 0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        rows = torch.randint(SHELLS, (BATCH,), device=device)
        images = (pictures[rows].float() - mean) / spread
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            found = student(images)
        loss = criterion(images, found, labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if "loss-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown = loss.item()
            right = (found[0].argmax(1) == labels[rows]).sum().item()
        if step % 20 == 0:
            print(f"step {step}: loss {shown:.4f}, {right} of {BATCH} right")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.6f}; {each:.3f} ms per step")


main()
