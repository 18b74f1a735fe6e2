"""Speech without words: frames are hidden, and codes that a random projection gives them are foreseen."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 100))
SIZE, BATCH, FRAMES, MELS, SPAN, SPANS, CODES, WIDE, HEAD, LAYERS = (
    (6, 2, 16, 20, 2, 3, 10, 32, 16, 1) if TINY else (192, 48, 768, 320, 8, 32, 8192, 768, 64, 12)
)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
backend, dtype = ("inductor", torch.bfloat16) if device.type == "cuda" else ("eager", torch.float32)
torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDE), nn.LayerNorm(WIDE)
        self.qkv, self.out = nn.Linear(WIDE, 3 * WIDE), nn.Linear(WIDE, WIDE)
        self.up, self.down = nn.Linear(WIDE, 4 * WIDE), nn.Linear(4 * WIDE, WIDE)

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(2, (3, -1, HEAD)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Listener(nn.Module):
    """Four frames of ten milliseconds are one place of the encoder."""

    def __init__(self):
        super().__init__()
        self.enter, self.hidden = nn.Linear(MELS, WIDE), nn.Parameter(torch.zeros(MELS))
        self.places = nn.Parameter(0.02 * torch.randn(FRAMES, WIDE))
        self.blocks, self.norm = nn.ModuleList(Block() for _ in range(LAYERS)), nn.LayerNorm(WIDE)
        self.head = nn.Linear(WIDE, CODES)

    def start(self, sounds, rows):
        """Noise in place of frames that are hidden."""
        noise = self.hidden + 0.1 * torch.randn_like(sounds)
        cover = torch.zeros(sounds.shape[:2], device=sounds.device, dtype=torch.bool)
        cover = cover.scatter(1, rows, torch.ones_like(rows, dtype=torch.bool))
        return self.enter(torch.where(cover[..., None], noise, sounds)) + self.places

    def explain(self, x, rows, codes):
        """The loss of hidden frames, of which alone there are logits."""
        x = x.gather(1, rows[..., None].expand(-1, -1, WIDE))
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1).float(), codes.gather(1, rows).flatten())

    def forward(self, sounds, rows, codes):
        x = self.start(sounds, rows)
        for block in self.blocks:
            x = block(x)
        return self.explain(x, rows, codes)


@torch.no_grad()
def data():
    """Energies of bands, with codes of all frames, which do not change."""
    sounds = torch.randn(SIZE, FRAMES, MELS, device=device)
    sounds = sounds + torch.randn(SIZE, FRAMES // 4, MELS, device=device).repeat_interleave(4, 1)
    sounds = F.layer_norm(sounds, (MELS,))
    projection = torch.randn(MELS, 16, device=device)
    book = F.normalize(torch.randn(CODES, 16, device=device), dim=1)
    codes = [(F.normalize(one @ projection, dim=1) @ book.T).argmax(1) for one in sounds]
    return sounds.to(dtype), torch.stack(codes)


def spans():
    """Where frames are hidden: spans at multiples of their length, as many of each sound."""
    starts = torch.rand(BATCH, FRAMES // SPAN, device=device).topk(SPANS, 1).indices * SPAN
    return (starts[..., None] + torch.arange(SPAN, device=device)).flatten(1)


def main():
    sounds, codes = data()
    with device:
        model = Listener().to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.98), fused=device.type == "cuda")
    for block in model.blocks:
        block.compile(backend=backend, dynamic=False)
    model.explain = torch.compile(model.explain, backend=backend, dynamic=False)
    lead, began, shown = min(STEPS // 2, 6), 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        chosen = torch.randint(SIZE, (BATCH,), device=device)
        loss = model(sounds[chosen], spans(), codes[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if "loss-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown = loss.item()
        if step % 20 == 0:
            print(f"step {step}: loss {shown:.4f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.5f}; {each:.3f} ms per step")


main()
