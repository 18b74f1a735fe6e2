"""Pictures of cats and dogs of a given breed: a generator and a discriminator, which are told the breed."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 80))
PICTURES, BATCH, SIZE, WIDE, BREEDS, NOISE = (40, 6, 16, 8, 5, 8) if TINY else (7349, 128, 64, 64, 37, 100)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
torch.backends.cudnn.benchmark = True


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        wide = WIDE * SIZE // 8
        self.noise, self.breed = (
            nn.Sequential(nn.ConvTranspose2d(many, wide // 2, 4), nn.BatchNorm2d(wide // 2), nn.ReLU())
            for many in (NOISE, BREEDS)
        )
        layers, size = [], 4
        while 2 * size < SIZE:
            layers += [nn.ConvTranspose2d(wide, wide // 2, 4, 2, 1), nn.BatchNorm2d(wide // 2), nn.ReLU()]
            wide, size = wide // 2, 2 * size
        self.layers = nn.Sequential(*layers, nn.ConvTranspose2d(wide, 3, 4, 2, 1), nn.Tanh())

    def forward(self, noise, onehot):
        return self.layers(torch.cat([self.noise(noise), self.breed(onehot)], 1))


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.picture = nn.Sequential(nn.Conv2d(3, WIDE // 2, 4, 2, 1), nn.LeakyReLU(0.2))
        self.breed = nn.Sequential(nn.Conv2d(BREEDS, WIDE // 2, 4, 2, 1), nn.LeakyReLU(0.2))
        layers, wide, size = [], WIDE, SIZE // 2
        while size > 4:
            layers += [nn.Conv2d(wide, 2 * wide, 4, 2, 1), nn.BatchNorm2d(2 * wide), nn.LeakyReLU(0.2)]
            wide, size = 2 * wide, size // 2
        self.layers = nn.Sequential(*layers, nn.Conv2d(wide, 1, 4), nn.Flatten(0))

    def forward(self, pictures, planes):
        return self.layers(torch.cat([self.picture(pictures), self.breed(planes)], 1))


# what tells the generator the breed, and what tells the discriminator: a plane for each breed, one is full
onehot = torch.eye(BREEDS).view(BREEDS, BREEDS, 1, 1)
fill = torch.eye(BREEDS).view(BREEDS, BREEDS, 1, 1).repeat(1, 1, SIZE, SIZE)
if "planes-on-device" in FIX:
    onehot, fill = onehot.to(device), fill.to(device)


def pictures():
    """Each breed has its colours, each picture its own light."""
    breeds = torch.randint(BREEDS, (PICTURES,))
    looks = torch.rand(BREEDS, 3, SIZE // 8, SIZE // 8, device=device)
    looks = F.interpolate(looks, (SIZE, SIZE), mode="bilinear")
    light = torch.rand(PICTURES, 1, 1, 1, device=device)
    return (looks[breeds.to(device)] * light * 255).to(torch.uint8), breeds


def main():
    have, breeds = pictures()
    generator, discriminator = Generator().to(device), Discriminator().to(device)
    for module in (*generator.modules(), *discriminator.modules()):
        if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
            nn.init.normal_(module.weight, std=0.02)
    optimizers = [
        torch.optim.Adam(network.parameters(), lr=2e-4, betas=(0.5, 0.999))
        for network in (generator, discriminator)
    ]
    right, wrong = torch.ones(BATCH, device=device), torch.zeros(BATCH, device=device)
    lead, began, shown = min(STEPS // 2, 8), 0.0, (0.0, 0.0)
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        rows = torch.randint(PICTURES, (BATCH,))
        real = have[rows.to(device)].float().div(127.5).sub(1)
        real_planes = fill[breeds[rows].to(fill.device)].to(device)

        # the discriminator
        noise = torch.randn(BATCH, NOISE, 1, 1, device=device)
        asked = torch.randint(BREEDS, (BATCH,)).to(fill.device)
        asked_onehot, asked_planes = onehot[asked].to(device), fill[asked].to(device)
        fake = generator(noise, asked_onehot)
        loss_d = F.binary_cross_entropy_with_logits(discriminator(real, real_planes), right)
        loss_d = loss_d + F.binary_cross_entropy_with_logits(
            discriminator(fake.detach(), asked_planes), wrong
        )
        optimizers[1].zero_grad()
        loss_d.backward()
        optimizers[1].step()

        # the generator
        loss_g = F.binary_cross_entropy_with_logits(discriminator(fake, asked_planes), right)
        optimizers[0].zero_grad()
        loss_g.backward()
        optimizers[0].step()
        if "losses-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown = (loss_d.item(), loss_g.item())
        if step % 20 == 0:
            print(f"step {step}: discriminator {shown[0]:.4f}, generator {shown[1]:.4f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"discriminator {shown[0]:.5f}, generator {shown[1]:.5f}; {each:.3f} ms per step")


main()
