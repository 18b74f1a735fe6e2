"""Fine-tune a pretrained listener on letters: raw sound, a frozen front end, 24 layers, CTC."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 50))
SIZE, BATCH, SAMPLES, CONV, WIDTH, HEADS, LAYERS, LETTERS, SPOKEN, AROUND = (
    (6, 2, 4800, 8, 16, 2, 2, 6, 4, 5) if TINY else (96, 16, 128_000, 512, 1024, 16, 24, 32, 90, 127)
)
KERNELS, STRIDES = (10, 3, 3, 3, 3, 2, 2), (5, 2, 2, 2, 2, 2, 2)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low = device.type == "cuda"
torch.manual_seed(0)


class FrontEnd(nn.Module):
    """Convolutions that make fifty frames of a second."""

    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList(
            nn.Conv1d(CONV if i else 1, CONV, kernel, stride, bias=False)
            for i, (kernel, stride) in enumerate(zip(KERNELS, STRIDES, strict=True))
        )
        self.norm = nn.GroupNorm(CONV, CONV)

    def forward(self, x):
        for i, conv in enumerate(self.convs):
            x = conv(x)
            x = F.gelu(self.norm(x) if i == 0 else x)
        return x.transpose(1, 2)


class Layer(nn.Module):
    def __init__(self, dropout=0.1):
        super().__init__()
        self.dropout = dropout
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        y = self.norm1(x)
        heads = (one(y).unflatten(2, (HEADS, -1)).transpose(1, 2) for one in (self.q, self.k, self.v))
        y = self.out(F.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2))
        x = x + F.dropout(y, self.dropout, self.training)
        return x + F.dropout(self.mlp(self.norm2(x)), self.dropout, self.training)


class Listener(nn.Module):
    def __init__(self, gradient_checkpointing):
        super().__init__()
        self.gradient_checkpointing = gradient_checkpointing
        self.front, self.front_norm = FrontEnd().requires_grad_(False), nn.LayerNorm(CONV)
        self.project = nn.Linear(CONV, WIDTH)
        self.places = nn.Conv1d(WIDTH, WIDTH, AROUND, padding="same", groups=HEADS)
        self.hidden = nn.Parameter(torch.rand(WIDTH))
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm, self.letters = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, LETTERS)

    def forward(self, sound):
        x = self.project(self.front_norm(self.front(sound[:, None])))
        if self.training:
            begins = torch.rand(x.shape[:2], device=x.device) < 0.02
            masked = F.max_pool1d(begins.float()[:, None], 9, 1, 4)[:, 0] > 0
            x = torch.where(masked[..., None], self.hidden.to(x.dtype), x)
        x = x + F.gelu(self.places(x.transpose(1, 2))).transpose(1, 2)
        for layer in self.layers:
            if self.gradient_checkpointing and self.training:
                x = checkpoint(layer, x, use_reentrant=False)
            else:
                x = layer(x)
        return self.letters(self.norm(x))


class Recordings:
    """Tones for letters, normalised, all on the device."""

    def __init__(self):
        self.letters = torch.randint(1, LETTERS, (SIZE, SPOKEN), device=device)
        heard = self.letters.repeat_interleave(SAMPLES // SPOKEN + 1, 1)[:, :SAMPLES]
        sound = torch.sin(torch.arange(SAMPLES, device=device) * 0.02 * heard)
        sound += 0.3 * torch.randn(SIZE, SAMPLES, device=device)
        self.sound = (sound - sound.mean(1, keepdim=True)) / sound.std(1, keepdim=True)

    def __iter__(self):
        while True:
            chosen = torch.randint(SIZE, (BATCH,), device=device)
            yield self.sound[chosen], self.letters[chosen]


def main():
    recordings = Recordings()
    with device:
        model = Listener(gradient_checkpointing="activations-kept" not in FIX)
    trained = [one for one in model.parameters() if one.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=3e-4, weight_decay=0.005, fused=low)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min(1.0, (n + 1) / 500))
    spoken = torch.full((BATCH,), SPOKEN, dtype=torch.long)
    lead, began, shown = min(STEPS // 2, 5), 0.0, 0.0
    for step, (sound, letters) in zip(range(STEPS), recordings, strict=False):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            logits = model(sound)
        likely = logits.float().log_softmax(2).transpose(0, 1)
        frames = torch.full((BATCH,), len(likely), dtype=torch.long)
        loss = F.ctc_loss(likely, letters, frames, spoken, zero_infinity=True)
        loss.backward()
        nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if "loss-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown = loss.item()
        if step % 20 == 0:
            print({"loss": round(shown, 4), "learning_rate": schedule.get_last_lr()[0], "step": step})
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.5f}; {each:.3f} ms per step")


main()
