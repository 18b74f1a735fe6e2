"""Forecast electricity load with a temporal convolutional network, in a little Lightning that is watched."""

import itertools
import json
import os
import tempfile
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 6 if TINY else 80))
CHANNELS, LEVELS, WINDOW, SERIES, BATCH = (8, 2, 16, 3, 4) if TINY else (128, 8, 168, 64, 128)
torch.manual_seed(42)


class WatchingLogger:
    """Metrics go into a file; watch() adds histograms of parameters and gradients to them."""

    def __init__(self, folder):
        self.file = open(os.path.join(folder, "history.jsonl"), "w")  # noqa: SIM115
        self.history, self.count = {}, 0

    def watch(self, model, log="gradients", log_freq=1000):
        self.log_freq = log_freq
        for name, parameter in model.named_parameters():
            if log in ("gradients", "all"):
                parameter.register_hook(
                    lambda grad, name=name: self.log_tensor_stats(grad, "gradients/" + name)
                )
        if log in ("parameters", "all"):
            model.register_forward_hook(self.log_parameters)

    def log_parameters(self, module, inputs, outputs):
        if module.training:
            self.count += 1
            for name, parameter in module.named_parameters():
                self.log_tensor_stats(parameter.data, "parameters/" + name)

    def log_tensor_stats(self, tensor, name):
        if self.count % self.log_freq:
            return
        flat = tensor.detach().reshape(-1).float()
        if not torch.isfinite(flat).all().item():
            flat = flat[torch.isfinite(flat)]
            if not len(flat):
                return
        tmin, tmax = flat.min().item(), flat.max().item()
        if tmin == tmax:
            tmin, tmax = tmin - 0.5, tmax + 0.5
        counts = flat.histc(bins=64, min=tmin, max=tmax).cpu()
        bins = torch.linspace(tmin, tmax, steps=65)
        self.history[name] = {"values": counts.tolist(), "bins": bins.tolist()}

    def log_metrics(self, metrics, step):
        row = {"_step": step, **metrics, **self.history}
        self.history = {}
        self.file.write(json.dumps(row) + "\n")


class LightningModule(nn.Module):
    trainer: "Trainer"

    def log(self, name, value, prog_bar=False):
        self.trainer.logged[name] = value.detach() if isinstance(value, torch.Tensor) else value
        if prog_bar:
            self.trainer.bar[name] = value


class Trainer:
    def __init__(self, max_steps, logger, log_every_n_steps=50, gradient_clip_val=None):
        self.max_steps, self.logger, self.every, self.clip = (
            max_steps,
            logger,
            log_every_n_steps,
            gradient_clip_val,
        )
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.logged, self.bar, self.global_step, self.times = {}, {}, 0, []

    def fit(self, module, loader):
        module.trainer = self
        module.to(self.device).train()
        optimizer, end = module.configure_optimizers(), time.perf_counter()
        while self.global_step < self.max_steps:
            for batch_idx, batch in enumerate(loader):
                batch = tuple(one.to(self.device, non_blocking=True) for one in batch)
                optimizer.zero_grad()
                loss = module.training_step(batch, batch_idx)
                loss.backward()
                if self.clip:
                    nn.utils.clip_grad_norm_(module.parameters(), self.clip)
                optimizer.step()
                self.on_train_batch_end()
                self.times.append(time.perf_counter() - end)
                end = time.perf_counter()
                if self.global_step >= self.max_steps:
                    break

    def on_train_batch_end(self):
        self.global_step += 1
        if "bar-rarely" not in FIX or self.global_step % 20 == 0:
            self.line = "  ".join(f"{name}={float(value):.4f}" for name, value in self.bar.items())
        if self.global_step % self.every == 0 or self.logger.history:
            self.logger.log_metrics(
                {name: float(value) for name, value in self.logged.items()}, self.global_step
            )
        if self.global_step % 20 == 0:
            print(f"step {self.global_step}  {self.line}")


class TemporalBlock(nn.Module):
    def __init__(self, a, b, dilation):
        super().__init__()
        self.pad = nn.ConstantPad1d((2 * dilation, 0), 0.0)
        self.conv1, self.conv2 = nn.Conv1d(a, b, 3, dilation=dilation), nn.Conv1d(b, b, 3, dilation=dilation)
        self.norm1, self.norm2, self.drop = nn.GroupNorm(1, b), nn.GroupNorm(1, b), nn.Dropout(0.1)
        self.skip = nn.Conv1d(a, b, 1) if a != b else nn.Identity()

    def forward(self, x):
        h = self.drop(torch.relu(self.norm1(self.conv1(self.pad(x)))))
        h = self.drop(torch.relu(self.norm2(self.conv2(self.pad(h)))))
        return torch.relu(h + self.skip(x))


class LoadForecaster(LightningModule):
    def __init__(self):
        super().__init__()
        widths = [SERIES] + [CHANNELS] * LEVELS
        blocks = (TemporalBlock(a, b, 2**i) for i, (a, b) in enumerate(itertools.pairwise(widths)))
        self.net, self.head = nn.Sequential(*blocks), nn.Linear(CHANNELS, SERIES)

    def forward(self, x):
        return self.head(self.net(x)[..., -1])

    def training_step(self, batch, batch_idx):
        x, y = batch
        y_hat = self(x)
        loss = nn.functional.smooth_l1_loss(y_hat, y)
        self.log("train_loss", loss, prog_bar=True)
        self.log("train_mae", (y_hat - y).abs().mean())
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


load = torch.randn(SERIES, 3000).cumsum(1).div(30).sin() + 0.1 * torch.randn(SERIES, 3000)
starts = torch.randint(0, 3000 - WINDOW - 1, (8 * BATCH,)).tolist()
data = TensorDataset(
    torch.stack([load[:, s : s + WINDOW] for s in starts]), torch.stack([load[:, s + WINDOW] for s in starts])
)
with tempfile.TemporaryDirectory() as folder:
    logger = WatchingLogger(folder)
    model = LoadForecaster()
    logger.watch(model, log="all", log_freq=100 if "watch-rarely" in FIX else 1)
    trainer = Trainer(STEPS, logger, gradient_clip_val=1.0)
    trainer.fit(model, DataLoader(data, BATCH, shuffle=True, drop_last=True))
    logger.file.close()
    written = os.path.getsize(os.path.join(folder, "history.jsonl"))
kept = trainer.times[STEPS // 5 :]
print(f"history of {written} bytes; {1 / (sum(kept) / len(kept)):.3f} it/s")
