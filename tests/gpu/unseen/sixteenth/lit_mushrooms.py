"""Mushrooms by their photographs: a module, a trainer with callbacks, an average of the weights."""

import copy
import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 150))
SIZE, BATCH, SIDE, KINDS, FACTOR = (8, 2, 32, 4, 8) if TINY else (512, 32, 160, 200, 1)
STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 40, 2, 2),
    (6, 80, 3, 2),
    (6, 112, 3, 1),
    (6, 192, 4, 2),
    (6, 320, 1, 1),
)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low = device.type == "cuda"
torch.manual_seed(0)
torch.backends.cudnn.benchmark = True


def conv(wide, out, kernel=1, stride=1, groups=1):
    return nn.Sequential(
        nn.Conv2d(wide, out, kernel, stride, kernel // 2, groups=groups, bias=False), nn.BatchNorm2d(out)
    )


class Squeeze(nn.Module):
    def __init__(self, wide, inner):
        super().__init__()
        self.down, self.up = nn.Conv2d(wide, inner, 1), nn.Conv2d(inner, wide, 1)

    def forward(self, x):
        return x * torch.sigmoid(self.up(F.silu(self.down(x.mean((2, 3), keepdim=True)))))


class Inverted(nn.Module):
    def __init__(self, wide, out, times, stride):
        super().__init__()
        inner = wide * times
        self.expand = conv(wide, inner) if times > 1 else None
        self.depth, self.squeeze = conv(inner, inner, 3, stride, inner), Squeeze(inner, max(wide // 4, 1))
        self.project, self.same = conv(inner, out), wide == out and stride == 1

    def forward(self, x):
        y = x if self.expand is None else F.silu(self.expand(x))
        y = self.project(self.squeeze(F.silu(self.depth(y))))
        return x + y if self.same else y


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        wide, layers = 32 // FACTOR, [conv(3, 32 // FACTOR, 3, 2), nn.SiLU()]
        for times, out, count, stride in STAGES:
            for i in range(count):
                layers.append(Inverted(wide, out // FACTOR, times, stride if i == 0 else 1))
                wide = out // FACTOR
        self.layers = nn.Sequential(*layers, conv(wide, 4 * wide), nn.SiLU(), nn.AdaptiveAvgPool2d(1))
        self.head = nn.Linear(4 * wide, KINDS)

    def forward(self, x):
        return self.head(self.layers(x).flatten(1))


class Module(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.shown, self.log_every = Classifier(), 0.0, 20 if "loss-rarely" in FIX else 1

    def training_step(self, batch, number):
        images, kinds = batch
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            loss = F.cross_entropy(self.net(images).float(), kinds, label_smoothing=0.1)
        if number % self.log_every == 0 or number == STEPS - 1:
            self.shown = loss.item()
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(
            self.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-5, nesterov=True, fused=low
        )
        return optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000)


class AverageOfWeights:
    """A callback: what is tested in the end moves slowly after what is trained."""

    def __init__(self, module, decay=0.999):
        self.average, self.decay = copy.deepcopy(module.net).requires_grad_(False), decay
        if "average-at-once" in FIX:
            mine, theirs = self.average.state_dict().values(), module.net.state_dict().values()
            pairs = list(zip(mine, theirs, strict=True))
            self.floats = [pair for pair in pairs if pair[0].is_floating_point()]
            self.counts = [pair for pair in pairs if not pair[0].is_floating_point()]

    @torch.no_grad()
    def on_train_batch_end(self, module):
        if "average-at-once" in FIX:
            mine, theirs = zip(*self.floats, strict=True)
            torch._foreach_lerp_(mine, theirs, 1 - self.decay)
            torch._foreach_copy_(*zip(*self.counts, strict=True))
            return
        now = module.net.state_dict()
        for name, value in self.average.state_dict().items():
            if value.is_floating_point():
                value.copy_(self.decay * value + (1 - self.decay) * now[name])
            else:
                value.copy_(now[name])


class Trainer:
    def __init__(self, callbacks):
        self.callbacks = callbacks

    def fit(self, module, batches):
        optimizer, schedule = module.configure_optimizers()
        lead, began = min(STEPS // 2, 6), 0.0
        for number in range(STEPS):
            if number == lead:
                if device.type == "cuda":
                    torch.cuda.synchronize()
                began = time.perf_counter()
            loss = module.training_step(next(batches), number)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            for callback in self.callbacks:
                callback.on_train_batch_end(module)
        if device.type == "cuda":
            torch.cuda.synchronize()
        return 1e3 * (time.perf_counter() - began) / (STEPS - lead)


def photographs():
    """On the device, in batches without end."""
    kinds = torch.randint(KINDS, (SIZE,), device=device)
    images = torch.randn(SIZE, 3, SIDE, SIDE, device=device) + kinds.view(-1, 1, 1, 1) / KINDS
    images = images.to(memory_format=torch.channels_last)
    while True:
        chosen = torch.randint(SIZE, (BATCH,), device=device)
        yield images[chosen], kinds[chosen]


with device:
    module = Module().to(memory_format=torch.channels_last)
average = AverageOfWeights(module)
each = Trainer([average]).fit(module, photographs())
size = sum(weight.double().square().sum() for weight in average.average.parameters()).sqrt().item()
print(f"loss {module.shown:.5f}, average {size:.4f}; {each:.3f} ms per step")
