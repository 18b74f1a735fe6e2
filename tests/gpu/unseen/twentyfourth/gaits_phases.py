"""How does somebody walk? Pretrained on hidden pieces of what a watch measures, then tuned, then tested."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 8 if TINY else 200))  # of both phases of training
WALKS, TESTED, BATCH, PIECES, SAMPLES, WIDE, LAYERS, HEAD, KINDS = (
    (16, 8, 4, 6, 4, 32, 2, 16, 3) if TINY else (4096, 512, 64, 256, 10, 768, 8, 64, 12)
)
MEASURES = 6
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low, backend = (True, "inductor") if device.type == "cuda" else (False, "eager")
torch.manual_seed(0)


class Enter(nn.Module):
    """Numbers of a watch as pieces, of which some are hidden."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(MEASURES * SAMPLES, WIDE)
        self.places = nn.Parameter(0.02 * torch.randn(PIECES, WIDE))
        self.hides = nn.Parameter(0.02 * torch.randn(WIDE))

    def forward(self, walks, hidden):
        x = self.linear(walks.float() / 4096)
        return torch.where(hidden[..., None], self.hides, x) + self.places


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


class Guess(nn.Module):
    """The loss of guessing what was hidden."""

    def __init__(self):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(WIDE), nn.Linear(WIDE, MEASURES * SAMPLES)

    def forward(self, x, walks, hidden):
        off = (self.linear(self.norm(x)).float() - walks.float() / 4096).square().mean(2)
        return (off * hidden).sum() / hidden.sum()


class Tell(nn.Module):
    """Chances of each way to walk."""

    def __init__(self):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(WIDE), nn.Linear(WIDE, KINDS)

    def forward(self, x):
        return self.linear(self.norm(x).mean(1)).float()


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.blocks = Enter(), nn.ModuleList(Block() for _ in range(LAYERS))

    def forward(self, walks, hidden):
        x = self.enter(walks, hidden)
        for block in self.blocks:
            x = block(x)
        return x


class Study:
    def __init__(self):
        self.walks, self.kinds = self.measure(WALKS)
        with device:
            self.encoder, self.guess, self.tell = Encoder(), Guess(), Tell()
        for part in (self.encoder.enter, *self.encoder.blocks, self.guess, self.tell):
            part.compile(backend=backend, dynamic=False)
        self.spent, self.counted, self.shown = 0.0, 0, 0.0
        self.none = torch.zeros(BATCH, PIECES, dtype=torch.bool, device=device)

    @staticmethod
    def measure(count):
        kinds = torch.randint(KINDS, (count,), device=device)
        moments = torch.arange(PIECES * SAMPLES, device=device).view(1, PIECES, SAMPLES, 1)
        turns = (1 + kinds.view(-1, 1, 1, 1)) * moments * 0.05 + torch.arange(MEASURES, device=device)
        noisy = 2000 * (turns.sin() + 0.3 * torch.randn(turns.shape, device=device))
        return noisy.to(torch.int16).flatten(2), kinds

    def guessed(self, chosen):
        walks = self.walks[chosen]
        hidden = torch.rand(BATCH, PIECES, device=device) < 0.4
        return self.guess(self.encoder(walks, hidden), walks, hidden)

    def told(self, chosen):
        logits = self.tell(self.encoder(self.walks[chosen], self.none))
        return F.cross_entropy(logits, self.kinds[chosen])

    def phase(self, name, loss_of, steps, rate, *parts):
        weights = [weight for part in parts for weight in part.parameters()]
        optimizer = torch.optim.AdamW(weights, lr=rate, weight_decay=0.05, fused=low)
        lead, began = min(steps // 2, 6), 0.0
        for step in range(steps):
            if step == lead:
                began = now()
            chosen = torch.randint(WALKS, (BATCH,), device=device)
            with torch.autocast(device.type, torch.bfloat16, enabled=low):
                loss = loss_of(chosen)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if "loss-rarely" not in FIX or step % 20 == 0 or step == steps - 1:
                self.shown = loss.item()
            if step % 20 == 0:
                print(f"{name}, step {step}: loss {self.shown:.4f}")
        self.spent, self.counted = self.spent + now() - began, self.counted + steps - lead

    @torch.no_grad()
    def test(self):
        """How often each kind is told from the others, of walks that were not learned from."""
        walks, kinds = self.measure(TESTED)
        table = torch.zeros(KINDS * KINDS, dtype=torch.long, device=device)
        for some, true in zip(walks.split(BATCH), kinds.split(BATCH), strict=True):
            with torch.autocast(device.type, torch.bfloat16, enabled=low):
                told = self.tell(self.encoder(some, self.none)).argmax(1)
            table += torch.bincount(true * KINDS + told, minlength=KINDS * KINDS)
        table = table.view(KINDS, KINDS)
        return (table.diag().sum() / table.sum()).item()


def now():
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def main():
    study = Study()
    study.phase("pretraining", study.guessed, STEPS // 2, 3e-4, study.encoder, study.guess)
    study.phase("tuning", study.told, STEPS - STEPS // 2, 1e-4, study.encoder, study.tell)
    right, each = study.test(), 1e3 * study.spent / study.counted
    print(f"loss {study.shown:.5f}, right {right:.4f}; {each:.3f} ms per step of both phases")


main()
