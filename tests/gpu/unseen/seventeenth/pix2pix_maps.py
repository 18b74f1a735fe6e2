"""Maps from pictures of the air: one network draws, another one says of each patch whether it was drawn."""

import os
import time

import torch
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 120))
PLACES, BATCH, SIDE, WIDE, DEPTH = (8, 2, 32, 4, 4) if TINY else (256, 32, 256, 64, 8)
LAMBDA = 100.0
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low = device.type == "cuda"
torch.manual_seed(0)
torch.backends.cudnn.benchmark = True


def wide(level):
    return WIDE * min(8, 1 << level)


class Down(nn.Sequential):
    def __init__(self, enter, leave, norm=True):
        layers = [nn.Conv2d(enter, leave, 4, 2, 1, bias=not norm)]
        super().__init__(*layers, *([nn.BatchNorm2d(leave)] if norm else []), nn.LeakyReLU(0.2, True))


class Up(nn.Sequential):
    def __init__(self, enter, leave):
        up = nn.ConvTranspose2d(enter, leave, 4, 2, 1, bias=False)
        super().__init__(up, nn.BatchNorm2d(leave), nn.ReLU(True))


class Generator(nn.Module):
    """Down to one number a channel and up again, with a way across at each size."""

    def __init__(self):
        super().__init__()
        self.downs = nn.ModuleList([Down(3, WIDE, False)])
        for i in range(1, DEPTH):
            self.downs.append(Down(wide(i - 1), wide(i), i < DEPTH - 1))
        self.ups = nn.ModuleList()
        for i in reversed(range(1, DEPTH)):
            self.ups.append(Up(wide(i) * (1 if i == DEPTH - 1 else 2), wide(i - 1)))
        self.last = nn.Sequential(nn.ConvTranspose2d(2 * WIDE, 3, 4, 2, 1), nn.Tanh())

    def forward(self, x):
        kept = []
        for down in self.downs:
            x = down(x)
            kept.append(x)
        kept.pop()
        for up in self.ups:
            x = torch.cat([up(x), kept.pop()], 1)
        return self.last(x)


def critic():
    """Patches of 70 by 70."""
    layers = [Down(6, WIDE, False), Down(WIDE, 2 * WIDE), Down(2 * WIDE, 4 * WIDE)]
    layers += [nn.Conv2d(4 * WIDE, 8 * WIDE, 4, 1, 1, bias=False), nn.BatchNorm2d(8 * WIDE)]
    return nn.Sequential(*layers, nn.LeakyReLU(0.2, True), nn.Conv2d(8 * WIDE, 1, 4, 1, 1))


def started(module):
    if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)):
        nn.init.normal_(module.weight, 0.0, 0.02)


class Pix2Pix:
    def __init__(self):
        with device:
            self.generator, self.critic = Generator().apply(started), critic().apply(started)
        for net in (self.generator, self.critic):
            net.to(memory_format=torch.channels_last)
        self.right, self.near = nn.BCEWithLogitsLoss(), nn.L1Loss()
        self.optimizer_g, self.optimizer_d = (
            torch.optim.Adam(net.parameters(), lr=2e-4, betas=(0.5, 0.999), fused=low)
            for net in (self.generator, self.critic)
        )

    def judged(self, seen, drawn, truth):
        """The loss of what the critic says, if that is the truth."""
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            said = self.critic(torch.cat([seen, drawn], 1)).float()
        return self.right(said, torch.full_like(said, truth))

    def step(self, seen, maps):
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            drawn = self.generator(seen)
        drawn = drawn.float()

        # The critic
        self.optimizer_d.zero_grad()
        shown = drawn.detach() if "detach" in FIX else drawn
        loss_d = 0.5 * (self.judged(seen, maps, 1.0) + self.judged(seen, shown, 0.0))
        loss_d.backward(retain_graph="detach" not in FIX)
        self.optimizer_d.step()

        # The generator
        if "frozen-critic" in FIX:
            self.critic.requires_grad_(False)
        self.optimizer_g.zero_grad()
        loss_g = self.judged(seen, drawn, 1.0) + LAMBDA * self.near(drawn, maps)
        loss_g.backward()
        self.optimizer_g.step()
        self.critic.requires_grad_(True)
        return loss_d.detach(), loss_g.detach()


def town(count):
    """Blocks of houses seen from the air, and the same as a map."""
    kinds = torch.randint(3, (count, 1, SIDE // 16, SIDE // 16), device=device)
    kinds = kinds.repeat_interleave(16, 2).repeat_interleave(16, 3)
    maps = torch.cat([(kinds == kind).float() for kind in range(3)], 1) * 2 - 1
    seen = 0.7 * maps.flip(1) + 0.3 * torch.randn(count, 3, SIDE, SIDE, device=device)
    return tuple(x.contiguous(memory_format=torch.channels_last) for x in (seen, maps))


def main():
    seen, maps = town(PLACES)
    model = Pix2Pix()
    lead, began, losses = min(STEPS // 2, 6), 0.0, (0.0, 0.0)
    for step in range(STEPS):
        if step == lead:
            if low:
                torch.cuda.synchronize()
            began = time.perf_counter()
        chosen = torch.randint(PLACES, (BATCH,), device=device)
        found = model.step(seen[chosen], maps[chosen])
        if "losses-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            losses = tuple(loss.item() for loss in found)
        if step % 40 == 0:
            print(f"step {step}: critic {losses[0]:.4f}, generator {losses[1]:.3f}")
    if low:
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"critic {losses[0]:.5f}, generator {losses[1]:.4f}; {each:.3f} ms per step")


main()
