"""A convolutional VAE for 64x64 pictures, in a module for a little Lightning: hooks, self.log, callbacks."""

import os
import time
from collections import defaultdict

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 250))
BATCH, WIDTH, LATENT = (4, 8, 16) if TINY else (128, 32, 128)


# ---- the little Lightning: what we need of it, in our own repository since version 1.2


class LightModule(nn.Module):
    trainer = None

    def log(self, name, value, prog_bar=False):
        if torch.is_tensor(value):
            value = value.item()
        self.trainer.logged[name].append(value)
        if prog_bar:
            self.trainer.progress[name] = value


class Callback:
    def on_after_backward(self, trainer, module):
        pass

    def on_train_batch_end(self, trainer, module):
        pass


class GradientMonitor(Callback):
    """Note a histogram and the norm of each parameter's gradient: where do they vanish?"""

    def __init__(self, every_n_steps=1, bins=64):
        self.every_n_steps, self.bins = every_n_steps, bins
        self.history = []

    def on_after_backward(self, trainer, module):
        if trainer.global_step % self.every_n_steps:
            return
        entry = {}
        for name, parameter in module.named_parameters():
            if parameter.grad is not None:
                flat = parameter.grad.detach().reshape(-1)
                low, high = flat.min().item(), flat.max().item()
                counts = torch.histc(flat, self.bins, low, high).cpu().tolist()
                entry[name] = {"range": (low, high), "counts": counts, "norm": flat.norm().item()}
        self.history.append(entry)


class Timer(Callback):
    def __init__(self, warm):
        self.warm, self.start = warm, 0.0

    def on_train_batch_end(self, trainer, module):
        if trainer.global_step == self.warm:
            trainer.synchronize()
            self.start = time.perf_counter()


class LightTrainer:
    def __init__(self, max_steps, callbacks):
        self.max_steps, self.callbacks = max_steps, callbacks
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.logged, self.progress, self.global_step = defaultdict(list), {}, 0

    def synchronize(self):
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def fit(self, module, data):
        module.to(self.device).trainer = self
        optimizer = module.configure_optimizers()
        backend = "aot_eager" if TINY else "inductor"
        if "log-outside" in FIX:
            module.losses, training_step = torch.compile(module.losses, backend=backend), module.whole_step
        else:
            training_step = torch.compile(module.training_step, backend=backend)
        module.train()
        while self.global_step < self.max_steps:
            batch = data[self.global_step % len(data)].to(self.device, non_blocking=True)
            optimizer.zero_grad()
            loss = training_step(batch)
            loss.backward()
            for callback in self.callbacks:
                callback.on_after_backward(self, module)
            optimizer.step()
            self.global_step += 1
            for callback in self.callbacks:
                callback.on_train_batch_end(self, module)
        self.synchronize()


# ---- the model


def down(inputs, outputs):
    return nn.Sequential(nn.Conv2d(inputs, outputs, 4, 2, 1), nn.BatchNorm2d(outputs), nn.LeakyReLU(0.2))


def up(inputs, outputs):
    layers = [nn.ConvTranspose2d(inputs, outputs, 4, 2, 1), nn.BatchNorm2d(outputs), nn.LeakyReLU(0.2)]
    return nn.Sequential(*layers)


class VAE(LightModule):
    def __init__(self):
        super().__init__()
        w = WIDTH
        self.encoder = nn.Sequential(down(3, w), down(w, 2 * w), down(2 * w, 4 * w), down(4 * w, 8 * w))
        self.mean, self.log_var = nn.Linear(128 * w, LATENT), nn.Linear(128 * w, LATENT)
        self.widen = nn.Linear(LATENT, 128 * w)
        self.decoder = nn.Sequential(up(8 * w, 4 * w), up(4 * w, 2 * w), up(2 * w, w), up(w, w))
        self.last = nn.Conv2d(w, 3, 3, padding=1)

    def training_step(self, x):
        h = self.encoder(x).flatten(1)
        mean, log_var = self.mean(h), self.log_var(h).clamp(-10, 10)
        kl = -0.5 * (1 + log_var - mean.pow(2) - log_var.exp()).sum(1).mean()
        self.log("train/kl", kl)
        z = mean + torch.randn_like(mean) * (0.5 * log_var).exp()
        picture = self.last(self.decoder(self.widen(z).view(len(x), -1, 4, 4))).sigmoid()
        reconstruction = F.mse_loss(picture, x, reduction="sum") / len(x)
        self.log("train/reconstruction", reconstruction)
        loss = reconstruction + 0.1 * kl
        self.log("train/loss", loss, prog_bar=True)
        return loss

    def losses(self, x):
        h = self.encoder(x).flatten(1)
        mean, log_var = self.mean(h), self.log_var(h).clamp(-10, 10)
        kl = -0.5 * (1 + log_var - mean.pow(2) - log_var.exp()).sum(1).mean()
        z = mean + torch.randn_like(mean) * (0.5 * log_var).exp()
        picture = self.last(self.decoder(self.widen(z).view(len(x), -1, 4, 4))).sigmoid()
        reconstruction = F.mse_loss(picture, x, reduction="sum") / len(x)
        return kl, reconstruction, reconstruction + 0.1 * kl

    def whole_step(self, x):
        kl, reconstruction, loss = self.losses(x)
        for name, value in (("kl", kl), ("reconstruction", reconstruction), ("loss", loss)):
            self.log(f"train/{name}", value, prog_bar=name == "loss")
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def main():
    torch.manual_seed(42)
    cuda = torch.cuda.is_available()
    data = [torch.rand(BATCH, 3, 64, 64, pin_memory=cuda) for _ in range(8)]
    warm = min(40, STEPS // 2)
    timer, monitor = Timer(warm), GradientMonitor(50 if "monitor-rarely" in FIX else 1)
    trainer = LightTrainer(STEPS, [monitor, timer])
    trainer.fit(VAE(), data)
    spent = time.perf_counter() - timer.start
    print(f"{len(monitor.history)} entries; train/loss {float(trainer.logged['train/loss'][-1]):.3f}")
    print(f"{(STEPS - warm) / spent:.4f}it/s")


if __name__ == "__main__":
    main()
