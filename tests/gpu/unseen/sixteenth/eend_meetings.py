"""Who speaks when? Diarization of meetings end to end, in whichever order the speakers come out."""

import itertools
import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 120))
BATCH, FRAMES, BANDS, WIDE, LAYERS, HEADS, SPEAKERS = (
    (3, 20, 12, 16, 1, 2, 3) if TINY else (64, 500, 345, 256, 4, 4, 3)
)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
torch.set_float32_matmul_precision("high")


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDE), nn.LayerNorm(WIDE)
        self.qkv, self.out = nn.Linear(WIDE, 3 * WIDE), nn.Linear(WIDE, WIDE)
        self.mlp = nn.Sequential(nn.Linear(WIDE, 4 * WIDE), nn.ReLU(), nn.Linear(4 * WIDE, WIDE))

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(2, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class Diarizer(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.layers = nn.Linear(BANDS, WIDE), nn.Sequential(*(Layer() for _ in range(LAYERS)))
        self.last = nn.Sequential(nn.LayerNorm(WIDE), nn.Linear(WIDE, SPEAKERS))

    def forward(self, x):
        return self.last(self.layers(self.enter(x)))


def pit_loss(guess, label):
    """The loss of one meeting in the best order of its speakers, and labels in that order."""
    orders = [list(order) for order in itertools.permutations(range(SPEAKERS))]
    losses = torch.stack([F.binary_cross_entropy_with_logits(guess, label[:, order]) for order in orders])
    best = losses.argmin()
    return losses[best], label[:, torch.tensor(orders, device=device)[best]]


def batch_pit_loss(guesses, labels):
    found = [pit_loss(guess, label) for guess, label in zip(guesses, labels, strict=True)]
    return torch.stack([loss for loss, _ in found]).mean(), torch.stack([label for _, label in found])


def pairwise_pit_loss(guesses, labels, orders):
    """All orders of all meetings from the losses of each guess against each speaker."""
    pairs = F.softplus(guesses).mean(1)[:, :, None] - torch.bmm(guesses.transpose(1, 2), labels) / FRAMES
    losses = pairs[:, torch.arange(SPEAKERS, device=device), orders].mean(2)
    least, best = losses.min(1)
    return least.mean(), labels.gather(2, orders[best][:, None].expand_as(labels))


def meetings():
    """Turns that last a while; each speaker has a voice of their own."""
    turns = torch.rand(BATCH, FRAMES // 20 + 1, SPEAKERS, device=device) < 0.4
    labels = turns.repeat_interleave(20, 1)[:, :FRAMES].float()
    voices = torch.randn(BATCH, SPEAKERS, BANDS, device=device)
    return labels @ voices + torch.randn(BATCH, FRAMES, BANDS, device=device), labels


def main():
    with device:
        model = Diarizer()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), fused=device.type == "cuda")
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min(1.0, (n + 1) / 100))
    orders = torch.tensor(list(itertools.permutations(range(SPEAKERS))), device=device)
    lead, began, shown, wrong = min(STEPS // 2, 5), 0.0, 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        sound, labels = meetings()
        guesses = model(sound)
        if "pairs-at-once" in FIX:
            loss, ordered = pairwise_pit_loss(guesses, labels, orders)
        else:
            loss, ordered = batch_pit_loss(guesses, labels)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        schedule.step()
        if "figures-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown = loss.item()
            wrong = ((guesses > 0) != (ordered > 0.5)).float().mean().item()
        if step % 40 == 0:
            print(f"step {step}: loss {shown:.4f}, wrong {wrong:.4f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.5f}, wrong {wrong:.4f}; {each:.3f} ms per step")


main()
