"""A voice learns to read: which letter is heard when is searched for in each step."""

import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 40))
TEXTS, BATCH, LETTERS, FRAMES, MELS, ALPHABET, WIDE, LAYERS, BLOCKS = (
    (6, 2, 8, 24, 8, 20, 16, 1, 1) if TINY else (256, 32, 144, 640, 80, 160, 256, 6, 8)
)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low = device.type == "cuda"
torch.manual_seed(0)
torch.set_float32_matmul_precision("high")


class LetterLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDE), nn.LayerNorm(WIDE)
        self.qkv, self.out = nn.Linear(WIDE, 3 * WIDE), nn.Linear(WIDE, WIDE)
        self.up, self.down = nn.Conv1d(WIDE, 4 * WIDE, 3, padding=1), nn.Conv1d(4 * WIDE, WIDE, 3, padding=1)

    def forward(self, x, there):
        q, k, v = self.qkv(self.norm1(x)).unflatten(2, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=there[:, None, None])
        x = x + self.out(y.transpose(1, 2).flatten(2))
        y = self.norm2(x).transpose(1, 2)
        return x + self.down(F.relu(self.up(y))).transpose(1, 2)


class SoundBlock(nn.Module):
    """A convolution with holes, that knows the time and what is said."""

    def __init__(self, hole):
        super().__init__()
        self.norm, self.conv = (
            nn.GroupNorm(8, WIDE),
            nn.Conv1d(WIDE, WIDE, 5, padding=2 * hole, dilation=hole),
        )
        self.time, self.out = nn.Linear(WIDE, WIDE), nn.Conv1d(WIDE, WIDE, 1)

    def forward(self, x, when):
        return x + self.out(F.silu(self.conv(F.silu(self.norm(x))) + self.time(when)[:, :, None]))


class Voice(nn.Module):
    def __init__(self):
        super().__init__()
        self.letters, self.places = nn.Embedding(ALPHABET, WIDE), nn.Embedding(LETTERS, WIDE)
        self.layers = nn.ModuleList(LetterLayer() for _ in range(LAYERS))
        self.mean, self.length = nn.Linear(WIDE, MELS), nn.Linear(WIDE, 1)
        self.enter, self.when = nn.Conv1d(2 * MELS, WIDE, 1), nn.Linear(1, WIDE)
        self.blocks = nn.ModuleList(SoundBlock(1 + i % 4) for i in range(BLOCKS))
        self.last = nn.Conv1d(WIDE, MELS, 1)

    def read(self, letters, there):
        x = self.letters(letters) + self.places.weight
        for layer in self.layers:
            x = layer(x, there)
        return self.mean(x), self.length(x)[:, :, 0]

    def flow(self, noisy, said, t):
        x, when = self.enter(torch.cat([noisy, said], 2).transpose(1, 2)), F.silu(self.when(t))
        for block in self.blocks:
            x = block(x, when)
        return self.last(x).transpose(1, 2)


def maximum_path(value, mask):
    """The likeliest way through letters (rows) and frames (columns), neither of which goes back."""
    value, mask = value * mask, mask.astype(bool)
    count, rows, columns = value.shape
    moved = np.zeros(value.shape, np.int64)
    best = np.zeros((count, rows), np.float32)
    at = np.arange(rows)[None]
    for j in range(columns):
        before = np.pad(best, ((0, 0), (1, 0)), constant_values=-np.inf)[:, :-1]
        stays = best >= before
        moved[:, :, j] = stays
        best = np.where(at <= j, np.where(stays, best, before) + value[:, :, j], -np.inf)
    moved = np.where(mask, moved, 1)
    path, who = np.zeros(value.shape, np.float32), np.arange(count)
    row = mask[:, :, 0].sum(1) - 1
    for j in reversed(range(columns)):
        path[who, row, j] = 1
        row = row + moved[who, row, j] - 1
    return path * mask


def maximum_path_on_device(value, mask):
    """The same without a copy: two operations for a frame, there and back."""
    value = (value * mask).permute(2, 0, 1).contiguous()
    columns, count, rows = value.shape
    best = torch.full((columns + 1, count, rows + 1), -torch.inf, device=value.device)
    best[0, :, 1:] = 0
    late = torch.arange(rows, device=value.device) > torch.arange(columns, device=value.device)[:, None]
    value = value.masked_fill(late[:, None], -torch.inf)
    for j in range(columns):
        torch.maximum(best[j, :, 1:], best[j, :, :-1], out=best[j + 1, :, 1:])
        best[j + 1, :, 1:].add_(value[j])
    back = (best[:-1, :, 1:] < best[:-1, :, :-1]) & (mask.permute(2, 0, 1) > 0)
    back, ways = back.long(), torch.empty(columns, count, 1, dtype=torch.long, device=value.device)
    row = mask[:, :, :1].sum(1).long() - 1
    for j in reversed(range(columns)):
        ways[j] = row
        row = row - back[j].gather(1, row)
    path = torch.zeros_like(mask).scatter_(1, ways[:, :, 0].T[:, None], 1.0)
    return path * mask


def align(mean, sound, mask):
    """Which letter is the likeliest to be heard in which frame."""
    with torch.no_grad():
        score = mean @ sound.transpose(1, 2) - 0.5 * mean.square().sum(2)[:, :, None]
        score = score - 0.5 * sound.square().sum(2)[:, None]
        if "search-on-device" in FIX:
            return maximum_path_on_device(score, mask)
        path = maximum_path(score.cpu().numpy(), mask.cpu().numpy())
        return torch.from_numpy(path).to(mean.device)


def recordings():
    """Letters, each of which is heard for some frames, and how many there are."""
    rng = torch.Generator().manual_seed(0)
    letters = torch.randint(1, ALPHABET, (TEXTS, LETTERS), generator=rng)
    counts = torch.randint(LETTERS // 2, LETTERS + 1, (TEXTS,), generator=rng)
    frames = (counts * FRAMES // LETTERS).clamp(max=FRAMES)
    sounds = torch.zeros(TEXTS, FRAMES, MELS)
    voices = torch.randn(ALPHABET, MELS, generator=rng)
    for sound, text, count, long in zip(sounds, letters, counts.tolist(), frames.tolist(), strict=True):
        at = (torch.arange(long) * count // long).clamp(max=count - 1)
        sound[:long] = voices[text[at]] + 0.3 * torch.randn(long, MELS, generator=rng)
    return [one.to(device) for one in (letters, counts, sounds, frames)]


def main():
    letters, counts, sounds, frames = recordings()
    with device:
        model = Voice()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=low)
    lead, began, shown = min(STEPS // 2, 4), 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        chosen = torch.randint(TEXTS, (BATCH,), device=device)
        text, sound = letters[chosen], sounds[chosen]
        there = torch.arange(LETTERS, device=device) < counts[chosen][:, None]
        heard = torch.arange(FRAMES, device=device) < frames[chosen][:, None]
        t, noise = torch.rand(BATCH, 1, device=device), torch.randn_like(sound)
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            mean, length = model.read(text, there)
        mean, length = mean.float(), length.float()
        path = align(mean, sound, (there[:, :, None] & heard[:, None]).float())
        said = path.transpose(1, 2) @ mean
        noisy = (1 - t[:, :, None]) * noise + t[:, :, None] * sound
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            flow = model.flow(noisy, said, t).float()
        voiced, known = heard[:, :, None], there.float()
        loss = ((flow - (sound - noise)).square() * voiced).sum() / voiced.sum() / MELS
        loss = loss + 0.5 * ((said - sound).square() * voiced).sum() / voiced.sum() / MELS
        loss = loss + ((length - path.sum(2).clamp(min=1).log()).square() * known).sum() / known.sum()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if "loss-rarely" not in FIX or step % 10 == 0 or step == STEPS - 1:
            shown = loss.item()
        if step % 10 == 0:
            print(f"step {step}: loss {shown:.4f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.5f}; {each:.3f} ms per step")


main()
