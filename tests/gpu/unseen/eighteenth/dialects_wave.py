"""Where does a speaker come from? An encoder of raw sound is tuned to tell dialects apart."""

import os
import time
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 40))
CLIPS, BATCH, SAMPLES, FIRST, WIDE, LAYERS, HEAD, KINDS = (
    (4, 2, 3200, 8, 32, 2, 16, 4) if TINY else (48, 16, 96_000, 512, 768, 12, 64, 22)
)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low = device.type == "cuda"
torch.manual_seed(0)
torch.backends.cudnn.benchmark = True
if "tensor-cores" in FIX:
    torch.set_float32_matmul_precision("high")


@dataclass
class Arguments:
    steps: int = STEPS
    rate: float = 3e-5
    log_every: int = 20 if "loss-rarely" in FIX else 1


class Ear(nn.Module):
    """Seven convolutions, from samples to fifty vectors a second; they stay as they are."""

    def __init__(self):
        super().__init__()
        plan = [(10, 5)] + [(3, 2)] * 4 + [(2, 2)] * 2
        self.convs = nn.ModuleList(
            nn.Conv1d(FIRST if i else 1, FIRST, kernel, stride, bias=False)
            for i, (kernel, stride) in enumerate(plan)
        )
        self.norm = nn.GroupNorm(FIRST, FIRST)

    def forward(self, x):
        x = x[:, None]
        for i, conv in enumerate(self.convs):
            x = conv(x)
            x = F.gelu(self.norm(x) if i == 0 else x)
        return x.transpose(1, 2)


class SpeechLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDE, WIDE) for _ in range(4))
        self.up, self.down = nn.Linear(WIDE, 4 * WIDE), nn.Linear(4 * WIDE, WIDE)
        self.norm1, self.norm2 = nn.LayerNorm(WIDE), nn.LayerNorm(WIDE)

    def forward(self, x):
        q, k, v = (one(x).unflatten(2, (-1, HEAD)).transpose(1, 2) for one in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = self.norm1(x + self.out(y))
        return self.norm2(x + self.down(F.gelu(self.up(x))))


class Dialects(nn.Module):
    def __init__(self):
        super().__init__()
        self.ear, self.enter = Ear(), nn.Linear(FIRST, WIDE)
        self.norm, self.norm2 = nn.LayerNorm(FIRST), nn.LayerNorm(WIDE)
        self.places = nn.Conv1d(WIDE, WIDE, 128, padding=64, groups=WIDE // (WIDE // 16))
        self.layers = nn.ModuleList(SpeechLayer() for _ in range(LAYERS))
        self.project, self.kinds = nn.Linear(WIDE, 256), nn.Linear(256, KINDS)

    def freeze(self):
        self.ear.requires_grad_(False)

    def forward(self, sound):
        with torch.no_grad():
            heard = self.ear(sound)
        x = self.enter(self.norm(heard))
        x = x + F.gelu(self.places(x.transpose(1, 2))[:, :, :-1]).transpose(1, 2)
        x = self.norm2(x)
        for layer in self.layers:
            x = layer(x)
        return self.kinds(self.project(x).mean(1))


class Trainer:
    def __init__(self, model, arguments, sounds, kinds):
        self.model, self.arguments, self.sounds, self.kinds = model, arguments, sounds, kinds
        tuned = [weight for weight in model.parameters() if weight.requires_grad]
        self.optimizer = torch.optim.AdamW(tuned, lr=arguments.rate, fused=low)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda n: min(1.0, (n + 1) / 50))
        self.shown = 0.0

    def batch(self):
        chosen = torch.randint(CLIPS, (BATCH,), device=device)
        sound = self.sounds[chosen]
        return (sound - sound.mean(1, keepdim=True)) / sound.std(1, keepdim=True), self.kinds[chosen]

    def train(self):
        steps, lead, began = self.arguments.steps, min(self.arguments.steps // 2, 4), 0.0
        for step in range(steps):
            if step == lead:
                if device.type == "cuda":
                    torch.cuda.synchronize()
                began = time.perf_counter()
            sound, kinds = self.batch()
            with torch.autocast(device.type, torch.bfloat16, enabled=low and "bfloat16" in FIX):
                loss = F.cross_entropy(self.model(sound), kinds)
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.schedule.step()
            self.optimizer.zero_grad()
            if step % self.arguments.log_every == 0 or step == steps - 1:
                self.shown = loss.item()
            if step % 20 == 0:
                print(f"step {step}: loss {self.shown:.4f}")
        if device.type == "cuda":
            torch.cuda.synchronize()
        each = 1e3 * (time.perf_counter() - began) / (steps - lead)
        print(f"loss {self.shown:.5f}; {each:.3f} ms per step")


def speakers():
    """Noise with a tone that the dialect gives."""
    kinds = torch.arange(CLIPS, device=device) % KINDS
    waves = torch.sin(torch.arange(SAMPLES, device=device) * (0.02 + 0.01 * kinds[:, None]))
    return waves + 0.5 * torch.randn(CLIPS, SAMPLES, device=device), kinds


with device:
    dialects = Dialects()
dialects.freeze()
Trainer(dialects, Arguments(), *speakers()).train()
