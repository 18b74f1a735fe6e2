"""Pictures from a few lines of k-space: a variational network for sixteen coils, in a LightningModule."""

import os
import time
import warnings

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 3 if TINY else 20))
SLICES, BATCH, COILS, SIDE, CASCADES, WIDTH, POOLS = (
    (4, 2, 2, 16, 2, 4, 1) if TINY else (16, 4, 16, 384, 6, 16, 3)
)
warnings.filterwarnings("ignore")


def roll(x, shift, dim):
    """What goes out at one end comes in at the other."""
    shift = shift % x.size(dim)
    return torch.cat([x.narrow(dim, x.size(dim) - shift, shift), x.narrow(dim, 0, x.size(dim) - shift)], dim)


def fftshift(x):
    return roll(roll(x, x.size(-2) // 2, -2), x.size(-1) // 2, -1)


def ifftshift(x):
    return roll(roll(x, (x.size(-2) + 1) // 2, -2), (x.size(-1) + 1) // 2, -1)


def to_kspace(image):
    if "shifted-once" in FIX:  # all data lie with their zero in the corner
        return torch.fft.fft2(image, norm="ortho")
    return fftshift(torch.fft.fft2(ifftshift(image), norm="ortho"))


def to_image(kspace):
    if "shifted-once" in FIX:
        return torch.fft.ifft2(kspace, norm="ortho")
    return fftshift(torch.fft.ifft2(ifftshift(kspace), norm="ortho"))


class Knees(Dataset):
    """Slices with the sensitivity of each coil, all on the device; k-space is masked when asked for."""

    def __init__(self, device):
        torch.manual_seed(0)
        grid = torch.linspace(-1, 1, SIDE, device=device)
        self.mask = torch.rand(SIDE, device=device) < 0.17
        self.mask[SIDE // 2 - SIDE // 24 : SIDE // 2 + SIDE // 24 + 1] = True
        angles = torch.arange(COILS, device=device) * 6.2832 / COILS
        far = (grid[:, None] - angles.cos()[:, None, None]) ** 2 + (grid - angles.sin()[:, None, None]) ** 2
        maps = torch.polar(torch.exp(-far), 2 * far)
        self.maps = maps / maps.abs().square().sum(0).sqrt()
        coarse = torch.rand(SLICES, 1, max(SIDE // 16, 2), max(SIDE // 16, 2), device=device)
        body = (grid[:, None] ** 2 + grid**2 < 0.8).float()
        self.images = F.interpolate(coarse, size=(SIDE, SIDE), mode="bilinear")[:, 0] * body

    def __len__(self):
        return SLICES

    def __getitem__(self, idx):
        image, maps, mask = self.images[idx], self.maps, self.mask
        if "shifted-once" in FIX:
            kspace, mask = to_kspace(ifftshift(maps * image)), roll(mask, (SIDE + 1) // 2, -1)
            maps = ifftshift(maps)
        else:
            kspace = to_kspace(maps * image)
        return kspace * mask, mask.expand(1, 1, SIDE), maps, image


class Unet(nn.Module):
    """Real and imaginary part in and out; normalised before."""

    def __init__(self):
        super().__init__()
        widths = [WIDTH << i for i in range(POOLS + 1)]
        self.down = nn.ModuleList(self.double(a, b) for a, b in zip([2, *widths], widths, strict=False))
        self.up = nn.ModuleList(self.double(3 * a, a) for a in reversed(widths[:-1]))
        self.last = nn.Conv2d(WIDTH, 2, 1)

    @staticmethod
    def double(inputs, outputs):
        layers = []
        for a in (inputs, outputs):
            layers += [nn.Conv2d(a, outputs, 3, padding=1, bias=False), nn.InstanceNorm2d(outputs)]
            layers.append(nn.LeakyReLU(0.2))
        return nn.Sequential(*layers)

    def forward(self, image):
        x = torch.view_as_real(image).permute(0, 3, 1, 2)
        std, mean = torch.std_mean(x, (2, 3), keepdim=True)
        x, kept = (x - mean) / std, []
        for i, block in enumerate(self.down):
            x = block(x if i == 0 else F.avg_pool2d(x, 2))
            kept.append(x)
        for block, skip in zip(self.up, reversed(kept[:-1]), strict=True):
            x = block(torch.cat([F.interpolate(x, scale_factor=2.0), skip], 1))
        x = self.last(x) * std + mean
        return torch.view_as_complex(x.permute(0, 2, 3, 1).contiguous())


class Cascade(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.weight = Unet(), nn.Parameter(torch.ones(1))

    def forward(self, current, measured, mask, maps):
        zero = torch.zeros_like(current)
        consistency = torch.where(mask, current - measured, zero) * self.weight
        image = (to_image(current) * maps.conj()).sum(1)
        image = ifftshift(self.net(fftshift(image))) if "shifted-once" in FIX else self.net(image)
        return current - consistency - to_kspace(image[:, None] * maps)


class VarNet(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.cascades, self.shown = nn.ModuleList(Cascade() for _ in range(CASCADES)), []

    def forward(self, measured, mask, maps):
        current = measured
        for cascade in self.cascades:
            current = cascade(current, measured, mask, maps)
        image = (to_image(current).abs().square().sum(1) + 1e-12).sqrt()
        return fftshift(image) if "shifted-once" in FIX else image

    def training_step(self, batch, batch_idx):
        measured, mask, maps, target = batch
        loss = F.l1_loss(self(measured, mask, maps), target)
        self.shown.append(loss.detach() if "loss-rarely" in FIX else loss.item())
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=3e-4)


class Clock(L.Callback):
    def __init__(self):
        self.ends = []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.ends.append(time.perf_counter())


if __name__ == "__main__":
    L.seed_everything(0, verbose=False)
    torch.set_float32_matmul_precision("high")
    cuda = torch.cuda.is_available()
    loader = DataLoader(Knees("cuda" if cuda else "cpu"), BATCH, shuffle=True, drop_last=True)
    module, clock = VarNet(), Clock()
    trainer = L.Trainer(
        max_steps=STEPS,
        accelerator="gpu" if cuda else "cpu",
        devices=1,
        logger=False,
        callbacks=[clock],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, loader)
    last = float(module.shown[-1])
    since = min(STEPS // 2, 6) - 1
    each = 1e3 * (clock.ends[-1] - clock.ends[since]) / (len(clock.ends) - 1 - since)
    print(f"loss {last:.5f}; {each:.3f} ms per batch")
