"""How old is a face? A light network, by a module and a trainer with hooks, which watches its gradients."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 100))
SIZE, BATCH, SIDE, AGES, WIDTHS, DEPTHS = (
    (8, 4, 32, 10, (8, 16), (1, 1))
    if TINY
    else (2048, 128, 128, 101, (24, 40, 80, 112, 192, 320), (2, 3, 4, 4, 5, 2))
)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low = device.type == "cuda"
torch.manual_seed(0)
torch.backends.cudnn.benchmark = True


class MBConv(nn.Module):
    """Wide inside, each channel by itself, with a gate over the channels."""

    def __init__(self, enter, leave, stride):
        super().__init__()
        wide = 4 * enter
        self.grow = nn.Sequential(nn.Conv2d(enter, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.SiLU())
        self.deep = nn.Sequential(
            nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False), nn.BatchNorm2d(wide), nn.SiLU()
        )
        self.gate = nn.Sequential(
            nn.Conv2d(wide, enter // 4, 1), nn.SiLU(), nn.Conv2d(enter // 4, wide, 1), nn.Sigmoid()
        )
        self.shrink = nn.Sequential(nn.Conv2d(wide, leave, 1, bias=False), nn.BatchNorm2d(leave))
        self.add = stride == 1 and enter == leave

    def forward(self, x):
        y = self.deep(self.grow(x))
        y = self.shrink(y * self.gate(y.mean((2, 3), keepdim=True)))
        return x + y if self.add else y


class LitModule(nn.Module):
    """What a module of a framework has: logging and hooks."""

    def __init__(self):
        super().__init__()
        self.logged = {}

    def log(self, name, value):
        self.logged[name] = value.detach() if isinstance(value, torch.Tensor) else value

    def on_before_optimizer_step(self, optimizer):
        pass


class Ages(LitModule):
    def __init__(self):
        super().__init__()
        enter, blocks = WIDTHS[0], []
        for i, (wide, depth) in enumerate(zip(WIDTHS, DEPTHS, strict=True)):
            for j in range(depth):
                blocks.append(MBConv(enter, wide, 2 if i in (1, 2, 4) and j == 0 else 1))
                enter = wide
        self.stem = nn.Sequential(nn.Conv2d(3, WIDTHS[0], 3, 2, 1), nn.BatchNorm2d(WIDTHS[0]), nn.SiLU())
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Sequential(nn.Linear(enter, 512), nn.SiLU(), nn.Linear(512, AGES))

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))

    def training_step(self, batch):
        """Ages as chances of years, and their mean as an age."""
        images, ages = batch
        chances = self(images).float().log_softmax(1)
        years = torch.arange(AGES, device=images.device)
        near = (-0.5 * ((years - ages[:, None].float()) / 2).square()).softmax(1)
        off = ((chances.exp() * years).sum(1) - ages).abs().mean()
        loss = F.kl_div(chances, near, reduction="batchmean") + 0.1 * off
        self.log("train/loss", loss)
        self.log("train/off", off)
        return loss

    def on_before_optimizer_step(self, optimizer):
        """Each gradient's length, and that of all."""
        named = [(name, one.grad) for name, one in self.named_parameters() if one.grad is not None]
        if "norms-at-once" in FIX:
            lengths = torch.stack(torch._foreach_norm([grad for _, grad in named])).tolist()
            norms = {f"grad/{name}": length for (name, _), length in zip(named, lengths, strict=True)}
        else:
            norms = {f"grad/{name}": grad.detach().norm(2).item() for name, grad in named}
        for name, length in norms.items():
            self.log(name, length)
        self.log("grad/total", sum(length**2 for length in norms.values()) ** 0.5)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, weight_decay=1e-2, fused=low)


class Trainer:
    def __init__(self, max_steps):
        self.max_steps = max_steps
        self.every = 20 if "bar-rarely" in FIX else 1  # the bar of progress

    def fit(self, module, batches):
        optimizer = module.configure_optimizers()
        lead, began, bar = min(self.max_steps // 2, 6), 0.0, {}
        for step in range(self.max_steps):
            if step == lead:
                if device.type == "cuda":
                    torch.cuda.synchronize()
                began = time.perf_counter()
            with torch.autocast(device.type, torch.bfloat16, enabled=low):
                loss = module.training_step(next(batches))
            optimizer.zero_grad()
            loss.backward()
            module.on_before_optimizer_step(optimizer)
            optimizer.step()
            if step % self.every == 0 or step == self.max_steps - 1:
                bar = {name: float(module.logged[name]) for name in ("train/loss", "train/off", "grad/total")}
            if step % 20 == 0:
                print(f"step {step}:", ", ".join(f"{name} {value:.4f}" for name, value in bar.items()))
        if device.type == "cuda":
            torch.cuda.synchronize()
        each = 1e3 * (time.perf_counter() - began) / (self.max_steps - lead)
        print(f"loss {bar['train/loss']:.5f}, gradients {bar['grad/total']:.4f}; {each:.3f} ms per step")


def faces():
    """Noise that is the brighter the older, on the device."""
    ages = torch.randint(AGES, (SIZE,), device=device)
    images = torch.randn(SIZE, 3, SIDE, SIDE, device=device, dtype=torch.bfloat16 if low else torch.float32)
    images += (ages / AGES)[:, None, None, None]
    images = images.to(memory_format=torch.channels_last)
    while True:
        chosen = torch.randint(SIZE, (BATCH,), device=device)
        yield images[chosen], ages[chosen]


with device:
    ages = Ages()
Trainer(STEPS).fit(ages.to(memory_format=torch.channels_last), faces())
