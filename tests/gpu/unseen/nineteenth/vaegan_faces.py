"""Faces by three networks: one describes them, one draws them, and one judges what was drawn."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 100))
SIZE, BATCH, SIDE, WIDE, CODE = (16, 4, 16, 8, 8) if TINY else (8192, 256, 64, 64, 128)
MATCHED, DRAWN = 1e-2, 0.5  # what alikeness counts for the describer, and for the drawer
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low = device.type == "cuda"
torch.manual_seed(0)
torch.backends.cudnn.benchmark = True


def down(enter, leave):
    return nn.Sequential(nn.Conv2d(enter, leave, 5, 2, 2, bias=False), nn.BatchNorm2d(leave), nn.ReLU())


def up(enter, leave):
    return nn.Sequential(
        nn.ConvTranspose2d(enter, leave, 5, 2, 2, 1, bias=False), nn.BatchNorm2d(leave), nn.ReLU()
    )


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(down(3, WIDE), down(WIDE, 2 * WIDE), down(2 * WIDE, 4 * WIDE))
        flat = 4 * WIDE * (SIDE // 8) ** 2
        self.full = nn.Sequential(nn.Linear(flat, 16 * WIDE), nn.ReLU())
        self.mean, self.logvar = nn.Linear(16 * WIDE, CODE), nn.Linear(16 * WIDE, CODE)

    def forward(self, images):
        x = self.full(self.body(images).flatten(1))
        return self.mean(x).float(), self.logvar(x).float()


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.full = nn.Linear(CODE, 4 * WIDE * (SIDE // 8) ** 2)
        self.body = nn.Sequential(up(4 * WIDE, 4 * WIDE), up(4 * WIDE, 2 * WIDE), up(2 * WIDE, WIDE // 2))
        self.last = nn.Conv2d(WIDE // 2, 3, 5, 1, 2)

    def forward(self, code):
        x = F.relu(self.full(code)).unflatten(1, (-1, SIDE // 8, SIDE // 8))
        return torch.tanh(self.last(self.body(x.contiguous(memory_format=torch.channels_last))))


class Discriminator(nn.Module):
    """Real or not, and what it saw in its last layer of pictures."""

    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, WIDE // 2, 5, 1, 2), nn.ReLU())
        self.body = nn.Sequential(down(WIDE // 2, 2 * WIDE), down(2 * WIDE, 4 * WIDE))
        self.seen = nn.Conv2d(4 * WIDE, 4 * WIDE, 5, 2, 2)
        self.full = nn.Sequential(
            nn.ReLU(), nn.Flatten(), nn.Linear(4 * WIDE * (SIDE // 8) ** 2, 8 * WIDE), nn.ReLU(),
            nn.Linear(8 * WIDE, 1),
        )  # fmt: skip

    def forward(self, images):
        seen = self.seen(self.body(self.first(images)))
        return self.full(seen)[:, 0].float(), seen.flatten(1).float()


class VAEGAN(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder, self.discriminator = Encoder(), Decoder(), Discriminator()

    def forward(self, images):
        mean, logvar = self.encoder(images)
        code = mean + torch.randn_like(mean) * (0.5 * logvar).exp()
        again, drawn = self.decoder(code), self.decoder(torch.randn_like(code))
        judged, seen = self.discriminator(torch.cat([images.to(again.dtype), again, drawn]))
        return mean, logvar, judged.chunk(3), seen.chunk(3)


def losses_of(model, images):
    with torch.autocast(device.type, torch.bfloat16, enabled=low):
        mean, logvar, judged, seen = model(images)
    divergence = -0.5 * (1 + logvar - mean.square() - logvar.exp()).sum(1).mean()
    matched = 0.5 * (seen[0] - seen[1]).square().sum(1).mean()
    real, again, drawn = (
        F.binary_cross_entropy_with_logits(one, torch.full_like(one, float(i == 0)))
        for i, one in enumerate(judged)
    )
    told = real + again + drawn
    return divergence + MATCHED * matched, MATCHED * DRAWN * matched - (1 - DRAWN) * told, told


def gradients(model, loss, network, last):
    """Those of one network; the graph is needed for the next loss."""
    if "own-gradients" in FIX:
        return torch.autograd.grad(loss, list(network.parameters()), retain_graph=not last)
    model.zero_grad()
    loss.backward(retain_graph=not last)
    return [weight.grad for weight in network.parameters()]


def faces():
    """Smooth noise, on the device."""
    images = F.interpolate(torch.rand(SIZE, 3, 6, 6, device=device), size=(SIDE, SIDE), mode="bilinear")
    return (images * 2 - 1).to(memory_format=torch.channels_last)


def main():
    images = faces()
    with device:
        model = VAEGAN().to(memory_format=torch.channels_last)
    networks = model.encoder, model.decoder, model.discriminator
    optimizers = [torch.optim.RMSprop(one.parameters(), lr=1e-4, foreach=True) for one in networks]
    lead, began, shown = min(STEPS // 2, 6), 0.0, [0.0] * 3
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        losses = losses_of(model, images[torch.randint(SIZE, (BATCH,), device=device)])
        found = [
            gradients(model, loss, network, last=i == 2)
            for i, (loss, network) in enumerate(zip(losses, networks, strict=True))
        ]
        for network, of_network, optimizer in zip(networks, found, optimizers, strict=True):
            for weight, gradient in zip(network.parameters(), of_network, strict=True):
                weight.grad = gradient
            optimizer.step()
        if "losses-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown = [loss.item() for loss in losses]
        if step % 20 == 0:
            print(f"step {step}: described {shown[0]:.4f}, drawn {shown[1]:.4f}, judged {shown[2]:.4f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown[0]:.5f}, {shown[1]:.5f}, {shown[2]:.5f}; {each:.3f} ms per step")


main()
