"""Pretrain a deep belief net: a restricted Boltzmann machine on pictures, by contrastive divergence."""

import os
import time

import torch

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 5 if TINY else 600))
WARM = min(STEPS // 2, 10)
PICTURES, SIDE, HIDDEN, BATCH = (40, 8, 32, 8) if TINY else (65_536, 64, 4096, 16_384)
VISIBLE, RATE, MOMENTUM, DECAY = SIDE * SIDE, 0.05, 0.5, 2e-4
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)


def clock():
    """Seconds, once the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


class RBM:
    """Weights and their momenta in float32; products in bfloat16."""

    def __init__(self):
        self.weight = 0.01 * torch.randn(VISIBLE, HIDDEN, device=device)
        self.visible, self.hidden = torch.zeros(VISIBLE, device=device), torch.zeros(HIDDEN, device=device)
        self.momenta = [torch.zeros_like(one) for one in (self.weight, self.visible, self.hidden)]
        self.refresh()

    def refresh(self):
        self.low = self.weight.bfloat16()
        self.low_visible, self.low_hidden = self.visible.bfloat16(), self.hidden.bfloat16()

    def up(self, visible):
        return torch.addmm(self.low_hidden, visible, self.low).sigmoid_()

    def down(self, hidden):
        return torch.addmm(self.low_visible, hidden, self.low.T).sigmoid_()

    def learn(self, data):
        """A step of contrastive divergence; returns how far the pictures are from what is made of them."""
        likely = self.up(data)
        made = self.down(torch.bernoulli(likely))
        again = self.up(made)
        change = torch.addmm(data.T @ likely, made.T, again, alpha=-1)
        gradients = (
            change.div_(len(data)),
            (data.mean(0, dtype=torch.float32) - made.mean(0, dtype=torch.float32)),
            (likely.mean(0, dtype=torch.float32) - again.mean(0, dtype=torch.float32)),
        )
        for value, momentum, gradient in zip(
            (self.weight, self.visible, self.hidden), self.momenta, gradients, strict=True
        ):
            momentum.mul_(MOMENTUM).add_(gradient, alpha=RATE)
            if value.dim() == 2:
                momentum.add_(value, alpha=-DECAY * RATE)
            value.add_(momentum)
        self.refresh()
        return (data[: BATCH // 8] - made[: BATCH // 8]).float().pow(2).mean()


def pictures():
    """Strokes: a few blurred lines in each picture."""
    places = torch.linspace(0, 1, SIDE, device=device)
    found = torch.empty(PICTURES, VISIBLE, dtype=torch.bfloat16, device=device)
    for part in found.split(4096):
        angle, shift = 3.1416 * torch.rand(len(part), 1, 1, device=device), torch.rand(2, len(part), 1, 1)
        first, second = (shift - 0.5).to(device)
        line = (places[:, None] - 0.5) * angle.sin() + (places - 0.5) * angle.cos()
        ink = torch.exp(-200 * (line - first).pow(2)) + torch.exp(-200 * (line - second).pow(2))
        part.copy_(ink.clamp(max=1).flatten(1))
    return found


data, machine = pictures(), RBM()
order, shown = torch.Generator().manual_seed(1), 0.0
orders = [torch.randint(0, PICTURES, (BATCH,), generator=order) for _ in range(STEPS)]
if "order-kept" in FIX:
    orders = torch.stack(orders).to(device)
with torch.inference_mode():
    for step in range(STEPS):
        if step == WARM:
            began = clock()
        chosen = orders[step].to(device)
        error = machine.learn(data[chosen])
        if "error-rarely" not in FIX or step % 50 == 0 or step == STEPS - 1:
            shown = error.item()
each = 1e3 * (clock() - began) / (STEPS - WARM)
print(f"error {shown:.5f}; {each:.3f} ms per step")
