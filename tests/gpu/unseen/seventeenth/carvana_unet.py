"""Where is the car? U-Net cuts cars out of photographs, trained by a small trainer with callbacks."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 120))
PHOTOS, BATCH, HEIGHT, WIDTH, WIDE, DEPTH = (8, 2, 32, 48, 4, 2) if TINY else (48, 8, 320, 480, 64, 4)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
torch.backends.cudnn.benchmark = True


def double(enter, leave):
    """Twice a convolution with its norm."""
    return nn.Sequential(
        nn.Conv2d(enter, leave, 3, padding=1, bias=False),
        nn.BatchNorm2d(leave),
        nn.ReLU(inplace=True),
        nn.Conv2d(leave, leave, 3, padding=1, bias=False),
        nn.BatchNorm2d(leave),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = double(3, WIDE)
        self.downs = nn.ModuleList(double(WIDE << i, WIDE << (i + 1)) for i in range(DEPTH))
        self.ups = nn.ModuleList(
            nn.ConvTranspose2d(WIDE << (i + 1), WIDE << i, 2, 2) for i in reversed(range(DEPTH))
        )
        self.merges = nn.ModuleList(double(WIDE << (i + 1), WIDE << i) for i in reversed(range(DEPTH)))
        self.last = nn.Conv2d(WIDE, 1, 1)

    def forward(self, x):
        kept = [self.enter(x)]
        for down in self.downs:
            kept.append(down(F.max_pool2d(kept[-1], 2)))
        x = kept.pop()
        for up, merge in zip(self.ups, self.merges, strict=True):
            x = merge(torch.cat([kept.pop(), up(x)], 1))
        return self.last(x)


def dice(likely, truth):
    """One minus what both have in common."""
    common = 2 * (likely * truth).sum((1, 2, 3))
    return 1 - ((common + 1e-6) / (likely.sum((1, 2, 3)) + truth.sum((1, 2, 3)) + 1e-6)).mean()


class Cars(nn.Module):
    """What is trained: the network with its two losses."""

    def __init__(self):
        super().__init__()
        self.net, self.criterion = UNet(), nn.BCEWithLogitsLoss()

    def training_step(self, photos, masks):
        logits = self.net(photos).float()
        return self.criterion(logits, masks) + dice(logits.sigmoid(), masks)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 1e-4, weight_decay=1e-8, fused=device.type == "cuda")


class Progress:
    """A callback: the line that moves."""

    def __init__(self, every):
        self.every, self.loss, self.mean = every, 0.0, 0.0

    def on_step_end(self, trainer, loss):
        if trainer.step % self.every == 0 or trainer.step == trainer.steps - 1:
            self.loss = loss.item()
            self.mean += (self.loss - self.mean) / (trainer.step // self.every + 1)
        if trainer.step % 40 == 0:
            print(f"step {trainer.step}: loss {self.loss:.4f}, {self.mean:.4f} so far")


class Trainer:
    def __init__(self, steps, callbacks, mixed=False):
        self.steps, self.callbacks, self.mixed, self.step = steps, callbacks, mixed, 0

    def fit(self, module, photos, masks):
        module.to(device).train()
        if self.mixed or "channels-last" in FIX:
            module.to(memory_format=torch.channels_last)
            photos = photos.contiguous(memory_format=torch.channels_last)
        optimizer, lead, began = module.configure_optimizers(), min(self.steps // 2, 6), 0.0
        for step in range(self.steps):
            self.step = step
            if step == lead:
                if device.type == "cuda":
                    torch.cuda.synchronize()
                began = time.perf_counter()
            chosen = torch.randint(len(photos), (BATCH,), device=device)
            with torch.autocast(device.type, torch.bfloat16, enabled=self.mixed):
                loss = module.training_step(photos[chosen], masks[chosen])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            optimizer.step()
            for callback in self.callbacks:
                callback.on_step_end(self, loss)
        if device.type == "cuda":
            torch.cuda.synchronize()
        return 1e3 * (time.perf_counter() - began) / (self.steps - lead)


def photographs():
    """Bright ellipses before something dark."""
    y = torch.linspace(-1, 1, HEIGHT, device=device)[:, None]
    x = torch.linspace(-1, 1, WIDTH, device=device)
    middle = 0.6 * torch.rand(PHOTOS, 2, 1, 1, device=device) - 0.3
    masks = (((y - middle[:, 0]) / 0.4) ** 2 + ((x - middle[:, 1]) / 0.6) ** 2 < 1).float()[:, None]
    return 0.5 * masks + 0.3 * torch.randn(PHOTOS, 3, HEIGHT, WIDTH, device=device), masks


progress = Progress(20 if "loss-rarely" in FIX else 1)
each = Trainer(STEPS, [progress], "mixed-precision" in FIX).fit(Cars(), *photographs())
print(f"loss {progress.loss:.5f}; {each:.3f} ms per step")
