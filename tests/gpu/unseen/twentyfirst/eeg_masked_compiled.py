"""What a brain says, without labels: hidden pieces of EEG are guessed by a transformer of compiled blocks."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 150))
PEOPLE, SECONDS, RATE, CHANNELS, PIECES, BATCH, WIDE, LAYERS, HEAD = (
    (3, 20, 16, 4, 4, 4, 32, 2, 16) if TINY else (64, 600, 200, 16, 32, 64, 768, 12, 64)
)
HIDDEN = PIECES * CHANNELS // 2  # of the pieces of a recording
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low, backend = (True, "inductor") if device.type == "cuda" else (False, "eager")
torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDE), nn.LayerNorm(WIDE)
        self.qkv, self.out = nn.Linear(WIDE, 3 * WIDE), nn.Linear(WIDE, WIDE)
        self.up, self.down = nn.Linear(WIDE, 4 * WIDE), nn.Linear(4 * WIDE, WIDE)

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(2, (3, -1, HEAD)).permute(2, 0, 3, 1, 4).unbind(0)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.pieces, self.mask = nn.Linear(RATE, WIDE), nn.Parameter(torch.zeros(WIDE))
        self.channels = nn.Parameter(0.02 * torch.randn(CHANNELS, 1, WIDE))
        self.moments = nn.Parameter(0.02 * torch.randn(PIECES, WIDE))
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDE), nn.Linear(WIDE, RATE)

    def forward(self, pieces, hidden):
        """Pieces of all channels, of which those at hidden places are not shown."""
        x = self.pieces(pieces)
        shown = torch.ones(x.shape[:2], dtype=x.dtype, device=device).scatter_(1, hidden, 0)[..., None]
        x = x * shown + self.mask.to(x.dtype) * (1 - shown)
        x = x + (self.channels + self.moments).flatten(0, 1)
        for block in self.blocks:
            x = block(x)
        return self.said(x, pieces, hidden)

    def said(self, x, pieces, hidden):
        at = hidden[..., None]
        guessed = self.head(self.norm(x.gather(1, at.expand(-1, -1, WIDE))))
        return F.smooth_l1_loss(guessed.float(), pieces.gather(1, at.expand(-1, -1, RATE)))


def recorded():
    """Slow and fast waves of all channels of each person, as integers on the device."""
    t = torch.arange(SECONDS * RATE, device=device) / RATE
    eeg = torch.zeros(PEOPLE, CHANNELS, SECONDS * RATE, device=device)
    for fastest in (2, 6, 11, 22):
        pace, start, loud = torch.rand(3, PEOPLE, CHANNELS, 1, device=device)
        eeg += loud * torch.sin(6.283 * (fastest * (0.5 + pace) * t + start))
    return (2000 * (eeg + 0.3 * torch.randn_like(eeg))).clamp(-32768, 32767).to(torch.int16)


def main():
    eeg = recorded()
    with device:
        model = Masked()
    for block in model.blocks:
        block.compile(backend=backend, dynamic=False)
    model.said = torch.compile(model.said, backend=backend, dynamic=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.05, fused=low)
    inside = torch.arange(PIECES * RATE, device=device)
    lead, began, shown = min(STEPS // 2, 6), 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        who = torch.randint(PEOPLE, (BATCH,), device=device)
        begin = torch.randint((SECONDS - PIECES) * RATE, (BATCH, 1), device=device)
        batch = eeg[
            who[:, None, None], torch.arange(CHANNELS, device=device)[:, None], (begin + inside)[:, None]
        ]
        pieces = (batch.float() / 2000).unflatten(2, (PIECES, RATE)).flatten(1, 2)
        hidden = torch.rand(pieces.shape[:2], device=device).argsort(1)[:, :HIDDEN]
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            loss = model(pieces, hidden)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if "loss-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown = loss.item()
        if step % 50 == 0:
            print(f"step {step}: loss {shown:.5f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.6f}; {each:.3f} ms per step")


main()
