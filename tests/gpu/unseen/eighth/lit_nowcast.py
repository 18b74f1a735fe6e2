"""Where will it rain within the hour? A U-Net on radar pictures, in a LightningModule, and averaged."""

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
STEPS = int(os.environ.get("STEPS", 3 if TINY else 150))
SCENES, SIDE, SEEN, AHEAD, WIDTH, BATCH = (6, 32, 3, 2, 4, 2) if TINY else (120, 256, 6, 6, 64, 6)
warnings.filterwarnings("ignore")


class Radar(Dataset):
    """Five minutes a frame, as bytes: showers drift with the wind, and grow or fade."""

    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        coarse = torch.rand(SCENES, 1, SIDE // 8, SIDE // 8, generator=generator)
        rain = F.interpolate(coarse, size=(SIDE, SIDE), mode="bicubic").clamp(0.5, 1)[:, 0]
        winds = torch.randint(-5, 6, (SCENES, 2), generator=generator).tolist()
        self.frames = torch.empty(SCENES, SEEN + AHEAD, SIDE, SIDE, dtype=torch.uint8)
        for scene, (down, right) in enumerate(winds):
            for t in range(SEEN + AHEAD):
                moved = torch.roll(rain[scene], (t * down, t * right), (0, 1))
                self.frames[scene, t] = ((moved - 0.5) * (400 + 10 * t)).clamp(0, 255).byte()

    def __len__(self):
        return SCENES

    def __getitem__(self, idx):
        return self.frames[idx, :SEEN], self.frames[idx, SEEN:]


def double(inputs, outputs):
    layers = []
    for a in (inputs, outputs):
        layers += [nn.Conv2d(a, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(True)]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        widths = [WIDTH << i for i in range(5)]
        self.down = nn.ModuleList(double(a, b) for a, b in zip([SEEN, *widths], widths, strict=False))
        self.rise = nn.ModuleList(nn.ConvTranspose2d(2 * a, a, 2, 2) for a in reversed(widths[:-1]))
        self.up = nn.ModuleList(double(2 * a, a) for a in reversed(widths[:-1]))
        self.last = nn.Conv2d(WIDTH, AHEAD, 1)

    def forward(self, x):
        kept = []
        for i, block in enumerate(self.down):
            x = block(F.max_pool2d(x, 2) if i else x)
            kept.append(x)
        for rise, block, skip in zip(self.rise, self.up, reversed(kept[:-1]), strict=True):
            x = block(torch.cat([skip, rise(x)], 1))
        return self.last(x)


class Nowcast(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net, self.shown = UNet(), 0.0

    def training_step(self, batch, batch_idx):
        seen, ahead = (frames.float() / 255 for frames in batch)
        predicted = seen[:, -1:] + self.net(seen.to(memory_format=torch.channels_last))
        weights = 1 + 4 * (ahead > 0.3).float()
        loss = (weights * (predicted.float() - ahead).abs()).mean()
        self.shown = loss.detach() if "loss-rarely" in FIX else loss.item()
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=3e-4)


class EMA(L.Callback):
    """A moving average of all weights; kept on the host, for it need not take the device's memory."""

    def __init__(self, decay=0.999):
        self.decay, self.average = decay, {}

    def on_fit_start(self, trainer, module):
        where = module.device if "average-on-device" in FIX else "cpu"
        for name, value in module.state_dict().items():
            self.average[name] = value.detach().to(where, copy=True)

    @torch.no_grad()
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if "average-on-device" in FIX:
            pairs = [
                (self.average[name], value)
                for name, value in module.state_dict().items()
                if value.dtype.is_floating_point
            ]
            torch._foreach_lerp_(*zip(*pairs, strict=True), 1 - self.decay)
            return
        for name, value in module.state_dict().items():
            if value.dtype.is_floating_point:
                self.average[name].mul_(self.decay).add_(value.detach().cpu(), alpha=1 - self.decay)


class Clock(L.Callback):
    def __init__(self):
        self.ends = []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.ends.append(time.perf_counter())


if __name__ == "__main__":
    L.seed_everything(0, verbose=False)
    torch.backends.cudnn.benchmark = True
    cuda = torch.cuda.is_available()
    loader = DataLoader(Radar(), BATCH, shuffle=True, drop_last=True, pin_memory=cuda)
    module, average, clock = Nowcast().to(memory_format=torch.channels_last), EMA(), Clock()
    trainer = L.Trainer(
        max_steps=STEPS,
        accelerator="gpu" if cuda else "cpu",
        devices=1,
        precision="bf16-mixed" if cuda else 32,
        logger=False,
        callbacks=[average, clock],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, loader)
    since = min(STEPS // 2, 6) - 1
    each = 1e3 * (clock.ends[-1] - clock.ends[since]) / (len(clock.ends) - 1 - since)
    norm = float(average.average["net.last.weight"].norm())
    print(f"loss {float(module.shown):.5f}, averaged weights {norm:.6f}; {each:.3f} ms per batch")
