"""Gestures as a camera of events sees them: neurons that spike learn to tell them apart, moment by moment."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 500))
CLIPS, MOMENTS, BATCH, SIZE, CHANNELS, HIDDEN, KINDS = (
    (12, 4, 4, 16, 4, 16, 3) if TINY else (512, 16, 16, 64, 32, 512, 11)
)
TAU, STEEP, FULL = 2.0, 4.0, 0.1
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low, backend = (True, "inductor") if device.type == "cuda" else (False, "eager")
torch.manual_seed(0)
torch.backends.cudnn.benchmark = True


def fire(current, charge):
    """A neuron leaks, is charged, spikes when full and is then empty; its slope is that of a sigmoid."""
    charge = charge + (current - charge) / TAU
    soft = torch.sigmoid(STEEP * (charge - FULL))
    spikes = (charge >= FULL).to(soft.dtype)
    spikes = soft + (spikes - soft).detach()
    return spikes, charge * (1 - spikes.detach())


def fire_throughout(currents):
    """The same for all moments of a layer, one after the other."""
    currents = currents.unflatten(0, (MOMENTS, -1))
    charge, spikes = torch.zeros_like(currents[0], dtype=torch.float32), []
    for current in currents.unbind(0):
        spike, charge = fire(current, charge)
        spikes.append(spike)
    return torch.cat(spikes)


class Spiking(nn.Module):
    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList(
            nn.Conv2d(2 if i == 0 else CHANNELS, CHANNELS, 3, padding=1) for i in range(3)
        )
        self.hidden = nn.Linear(CHANNELS * (SIZE // 8) ** 2, HIDDEN)
        self.out = nn.Linear(HIDDEN, KINDS)

    def moment(self, frame, charges):
        """All layers see one moment."""
        x, after = frame, []
        for conv, charge in zip(self.convs, charges, strict=False):
            spikes, charge = fire(conv(x), charge)
            after.append(charge)
            x = F.max_pool2d(spikes, 2)
        for linear, charge in zip((self.hidden, self.out), charges[3:], strict=True):
            x, charge = fire(linear(x.flatten(1)), charge)
            after.append(charge)
        return x, after

    def forward(self, frames):
        if "layers-at-once" in FIX:
            return self.layer_by_layer(frames)
        charges = [
            torch.zeros(BATCH, CHANNELS, SIZE // 2**i, SIZE // 2**i, device=frames.device) for i in range(3)
        ]
        charges += [torch.zeros(BATCH, wide, device=frames.device) for wide in (HIDDEN, KINDS)]
        total = torch.zeros(BATCH, KINDS, device=frames.device)
        for frame in frames:
            spikes, charges = moment(self, frame, charges)
            total = total + spikes
        return total / MOMENTS

    def layer_by_layer(self, frames):
        """Each layer sees all moments."""
        x = frames.flatten(0, 1)
        for conv in self.convs:
            x = F.max_pool2d(throughout(conv(x)), 2)
        for linear in (self.hidden, self.out):
            x = throughout(linear(x.flatten(1)))
        return x.view(MOMENTS, BATCH, KINDS).mean(0)


moment = torch.compile(Spiking.moment, backend=backend)
throughout = torch.compile(fire_throughout, backend=backend, dynamic=True)


def gestures():
    """Where it got lighter or darker: a spot that moves its own way for each kind of gesture."""
    kinds = torch.arange(CLIPS, device=device) % KINDS
    turn = 6.28 * kinds[:, None] / KINDS + 0.3 * torch.arange(MOMENTS, device=device)
    y, x = torch.meshgrid(*2 * [torch.linspace(-1, 1, SIZE, device=device)], indexing="ij")
    off_x, off_y = ((x - 0.5 * turn.cos()[..., None, None]), (y - 0.5 * turn.sin()[..., None, None]))
    near = torch.exp(-10 * (off_x**2 + off_y**2))
    chances = torch.stack([near * (off_x > 0), near * (off_x <= 0)], 2) + 0.02
    return (torch.rand_like(chances) < chances).to(torch.uint8), kinds


def main():
    clips, kinds = gestures()
    with device:
        model = Spiking()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=low)
    lead, began, shown = min(STEPS // 2, 20), 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        chosen = torch.randint(CLIPS, (BATCH,), device=device)
        frames = clips[chosen].transpose(0, 1).float()
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            rates = model(frames)
        loss = F.mse_loss(rates.float(), F.one_hot(kinds[chosen], KINDS).float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if "loss-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown = loss.item()
        if step % 20 == 0:
            print(f"step {step}: loss {shown:.4f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.6f}; {each:.3f} ms per step")


main()
