"""Things that look like each other: photographs in threes, by a module and a trainer with callbacks."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 100))
SIZE, THINGS, BATCH, SIDE, PATCH, WIDE, LAYERS, HEAD, CODE = (
    (16, 4, 4, 32, 16, 32, 1, 16, 8) if TINY else (1024, 128, 32, 224, 16, 384, 12, 64, 128)
)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low = device.type == "cuda"
torch.manual_seed(0)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDE), nn.LayerNorm(WIDE)
        self.qkv, self.out = nn.Linear(WIDE, 3 * WIDE), nn.Linear(WIDE, WIDE)
        self.mlp = nn.Sequential(nn.Linear(WIDE, 4 * WIDE), nn.GELU(), nn.Linear(4 * WIDE, WIDE))

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(2, (3, -1, HEAD)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, WIDE, PATCH, PATCH)
        self.first = nn.Parameter(torch.zeros(1, 1, WIDE))
        self.places = nn.Parameter(0.02 * torch.randn(1, 1 + (SIDE // PATCH) ** 2, WIDE))
        self.layers = nn.Sequential(*(Layer() for _ in range(LAYERS)))
        self.norm, self.code = nn.LayerNorm(WIDE), nn.Linear(WIDE, CODE)

    def forward(self, images):
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(len(x), -1, -1), x], 1) + self.places
        return F.normalize(self.code(self.norm(self.layers(x)[:, 0])).float(), dim=1)


class LitModule(nn.Module):
    """What a module of a framework has."""

    def __init__(self):
        super().__init__()
        self.logged = {}

    def log_dict(self, values):
        self.logged |= {name: value.detach() for name, value in values.items()}


class Triplets(LitModule):
    def __init__(self, margin=0.3):
        super().__init__()
        self.encoder, self.margin = Encoder(), margin

    def forward(self, images):
        return self.encoder(images)

    def training_step(self, batch):
        """The same thing is to be nearer than another one."""
        anchor, positive, negative = batch
        if "one-pass" in FIX:
            a, p, n = self(torch.cat([anchor, positive, negative])).chunk(3)
        else:
            a, p, n = self(anchor), self(positive), self(negative)
        near, far = (a - p).square().sum(1), (a - n).square().sum(1)
        loss = F.relu(near - far + self.margin).mean()
        self.log_dict(
            {"loss": loss, "near": near.mean(), "far": far.mean(), "right": (near < far).float().mean()}
        )
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-4, weight_decay=0.05, fused=low)


class ProgressBar:
    def __init__(self, every):
        self.every, self.shown = every, {}

    def on_train_batch_end(self, trainer, module, step):
        if step % self.every == 0 or step == trainer.max_steps - 1:
            self.shown = {name: value.item() for name, value in module.logged.items()}
        if step % 20 == 0:
            print(f"step {step}:", ", ".join(f"{name} {value:.4f}" for name, value in self.shown.items()))


class Clock:
    """Milliseconds of a step, without the first ones."""

    def __init__(self, lead):
        self.lead, self.began = lead, 0.0

    @staticmethod
    def now():
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def on_train_batch_end(self, trainer, module, step):
        if step == self.lead - 1:
            self.began = self.now()
        if step == trainer.max_steps - 1:
            self.each = 1e3 * (self.now() - self.began) / (trainer.max_steps - self.lead)


class Trainer:
    def __init__(self, max_steps, callbacks):
        self.max_steps, self.callbacks = max_steps, callbacks

    def fit(self, module, batches):
        optimizer = module.configure_optimizers()
        module.train()
        for step in range(self.max_steps):
            batch = next(batches)
            with torch.autocast(device.type, torch.bfloat16, enabled=low):
                loss = module.training_step(batch)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            optimizer.step()
            for callback in self.callbacks:
                callback.on_train_batch_end(self, module, step)


def photographs():
    """Noise with a colour for each thing, on the device, in threes."""
    things = torch.arange(SIZE, device=device) % THINGS
    images = torch.randn(SIZE, 3, SIDE, SIDE, device=device, dtype=torch.bfloat16 if low else torch.float32)
    images += 0.1 * torch.randn(THINGS, 3, 1, 1, device=device)[things].to(images.dtype)
    while True:
        anchor = torch.randint(SIZE, (BATCH,), device=device)
        positive = (anchor + THINGS * torch.randint(1, SIZE // THINGS, (BATCH,), device=device)) % SIZE
        negative = (anchor + torch.randint(1, THINGS, (BATCH,), device=device)) % SIZE
        yield images[anchor], images[positive], images[negative]


with device:
    module = Triplets()
bar, clock = ProgressBar(20 if "bar-rarely" in FIX else 1), Clock(min(STEPS // 2, 6))
Trainer(STEPS, [bar, clock]).fit(module, photographs())
print(f"loss {bar.shown['loss']:.5f}, right {bar.shown['right']:.4f}; {clock.each:.3f} ms per step")
