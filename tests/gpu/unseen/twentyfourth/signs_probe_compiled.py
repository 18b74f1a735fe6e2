"""Signs of a language of hands: on top of a network for video, compiled, a small head learns to tell them."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 5 if TINY else 150))
CLIPS, BATCH, FRAMES, SIZE, PATCH, WIDE, LAYERS, HEAD, SIGNS = (
    (8, 2, 4, 16, 8, 32, 2, 16, 4) if TINY else (512, 64, 16, 112, 16, 512, 10, 64, 226)
)
TUBE, PLACES = 2, (FRAMES // 2) * (SIZE // PATCH) ** 2
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low, backend = (True, "inductor") if device.type == "cuda" else (False, "eager")
torch.manual_seed(0)


class Tubes(nn.Module):
    """Bytes of clips, some of them brighter than others, as pieces of two frames."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3 * TUBE * PATCH * PATCH, WIDE)
        self.places = nn.Parameter(0.02 * torch.randn(PLACES, WIDE))

    def forward(self, clips, light):
        x = clips.float() / 127.5 * light[:, None, None, None, None] - 1
        x = x.unflatten(4, (-1, PATCH)).unflatten(3, (-1, PATCH)).unflatten(1, (-1, TUBE))
        x = x.permute(0, 1, 4, 6, 2, 3, 5, 7).flatten(4).flatten(1, 3)
        return self.linear(x) + self.places


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


class Head(nn.Module):
    """What is looked for in a clip, and which sign that is."""

    def __init__(self):
        super().__init__()
        self.norm, self.asks = nn.LayerNorm(WIDE), nn.Parameter(torch.randn(1, WIDE // HEAD, 1, HEAD))
        self.key_value, self.linear = nn.Linear(WIDE, 2 * WIDE), nn.Linear(WIDE, SIGNS)

    def forward(self, x):
        k, v = self.key_value(self.norm(x)).unflatten(2, (2, -1, HEAD)).permute(2, 0, 3, 1, 4)
        asks = self.asks.to(k.dtype).expand(len(x), -1, -1, -1)
        return self.linear(F.scaled_dot_product_attention(asks, k, v).flatten(1)).float()


class VideoNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.tubes, self.blocks = Tubes(), nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = Head()

    def forward(self, clips, light):
        x = self.tubes(clips, light)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def main():
    clips = torch.randint(256, (CLIPS, FRAMES, 3, SIZE, SIZE), device=device, dtype=torch.uint8)
    signs = torch.randint(SIGNS, (CLIPS,), device=device)
    clips //= 1 + (signs % 5).to(torch.uint8)[:, None, None, None, None]
    with device:
        model = VideoNet()
    if "frozen" in FIX:
        model.requires_grad_(False)
        model.head.requires_grad_(True)
    for part in (model.tubes, *model.blocks, model.head):
        part.compile(backend=backend, dynamic=False)
    optimizer = torch.optim.AdamW(model.head.parameters(), lr=1e-3, fused=low)
    lead, began, shown, right = min(STEPS // 2, 8), 0.0, 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        chosen = torch.randint(CLIPS, (BATCH,), device=device)
        light = 0.7 + 0.6 * torch.rand(BATCH, device=device)
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            logits = model(clips[chosen], light)
        loss = F.cross_entropy(logits, signs[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if "figures-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown = loss.item()
            right = (logits.argmax(1) == signs[chosen]).float().mean().item()
        if step % 20 == 0:
            print(f"step {step}: loss {shown:.4f}, right {right:.4f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.5f}, right {right:.4f}; {each:.3f} ms per step")


main()
