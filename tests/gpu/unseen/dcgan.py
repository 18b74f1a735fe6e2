# DCGAN on 64x64 pictures
import os
import time

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
num_iters = int(os.environ.get("STEPS", 3 if TINY else 5000))
batch_size, nz, ngf, ndf = 4 if TINY else 128, 100, 64, 64
torch.manual_seed(999)


class Faces(Dataset):
    def __init__(self):
        self.data = torch.randint(0, 256, (64 if TINY else 8192, 3, 64, 64), dtype=torch.uint8)

    def __len__(self):
        return len(self.data) * 8

    def __getitem__(self, i):
        return self.data[i % len(self.data)].float().div_(127.5).sub_(1), 0


def weights_init(m):
    if isinstance(m, nn.Conv2d | nn.ConvTranspose2d):
        nn.init.normal_(m.weight, 0.0, 0.02)
    elif isinstance(m, nn.BatchNorm2d):
        nn.init.normal_(m.weight, 1.0, 0.02)
        nn.init.zeros_(m.bias)


def up(a, b, stride=2, padding=1):
    return [nn.ConvTranspose2d(a, b, 4, stride, padding, bias=False), nn.BatchNorm2d(b), nn.ReLU(True)]


def down(a, b):
    return [nn.Conv2d(a, b, 4, 2, 1, bias=False), nn.BatchNorm2d(b), nn.LeakyReLU(0.2, inplace=True)]


netG = nn.Sequential(
    *up(nz, ngf * 8, 1, 0),
    *up(ngf * 8, ngf * 4),
    *up(ngf * 4, ngf * 2),
    *up(ngf * 2, ngf),
    nn.ConvTranspose2d(ngf, 3, 4, 2, 1, bias=False),
    nn.Tanh(),
).to(device)
netD = nn.Sequential(
    nn.Conv2d(3, ndf, 4, 2, 1, bias=False),
    nn.LeakyReLU(0.2, inplace=True),
    *down(ndf, ndf * 2),
    *down(ndf * 2, ndf * 4),
    *down(ndf * 4, ndf * 8),
    nn.Conv2d(ndf * 8, 1, 4, 1, 0, bias=False),
).to(device)
netG.apply(weights_init)
netD.apply(weights_init)
criterion = nn.BCEWithLogitsLoss()
fused = True if "fused" in FIX else None
optimizerD = torch.optim.Adam(netD.parameters(), lr=2e-4, betas=(0.5, 0.999), fused=fused)
optimizerG = torch.optim.Adam(netG.parameters(), lr=2e-4, betas=(0.5, 0.999), fused=fused)
fixed_noise = torch.randn(64, nz, 1, 1, device=device)
loader = DataLoader(
    Faces(), batch_size, shuffle=True, num_workers=12 if "workers" in FIX else 2, drop_last=True
)

iters, G_losses, D_losses, began = 0, [], [], None
print("Starting Training Loop...")
while iters < num_iters:
    for i, (real, _) in enumerate(loader):
        if iters == num_iters // 3:
            began = time.time()
        real = real.to(device)
        # (1) update D: maximise log(D(x)) + log(1 - D(G(z)))
        netD.zero_grad()
        output = netD(real).view(-1)
        errD_real = criterion(output, torch.ones(batch_size, device=device))
        errD_real.backward()
        D_x = output.sigmoid().mean().item()
        noise = torch.randn(batch_size, nz, 1, 1, device=device)
        fake = netG(noise)
        output = netD(fake.detach()).view(-1)
        errD_fake = criterion(output, torch.zeros(batch_size, device=device))
        errD_fake.backward()
        D_G_z1 = output.sigmoid().mean().item()
        optimizerD.step()
        # (2) update G: maximise log(D(G(z)))
        if "freeze" in FIX:
            netD.requires_grad_(False)
        netG.zero_grad()
        output = netD(fake).view(-1)
        errG = criterion(output, torch.ones(batch_size, device=device))
        errG.backward()
        D_G_z2 = output.sigmoid().mean().item()
        optimizerG.step()
        if "freeze" in FIX:
            netD.requires_grad_(True)
        G_losses.append(errG.item())
        D_losses.append((errD_real + errD_fake).item())
        if i % 50 == 0:
            print(
                f"[{iters}/{num_iters}] Loss_D {D_losses[-1]:.4f} Loss_G {G_losses[-1]:.4f} "
                f"D(x) {D_x:.4f} D(G(z)) {D_G_z1:.4f} / {D_G_z2:.4f}"
            )
        if iters % 500 == 0:
            with torch.no_grad():
                pictures = netG(fixed_noise).cpu()
        iters += 1
        if iters == num_iters:
            break
seconds = (time.time() - began) / (num_iters - num_iters // 3)
print(f"{1 / seconds:.4f} iterations a second ({seconds * 1e3:.3f} ms)")
