"""PatchTST on 321 power meters: 96 hours ahead from 336, by a light trainer of modules."""

import os
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
MAX_STEPS = int(os.environ.get("STEPS", 3 if TINY else 60))


class LightModule(nn.Module):
    trainer = None

    def log(self, name, value, prog_bar=False):
        self.trainer.logged[name] = value.detach()
        if prog_bar:
            self.trainer.bar[name] = value.item()


class Trainer:
    def __init__(self, max_steps, gradient_clip_val=None):
        self.max_steps, self.clip, self.logged, self.bar = max_steps, gradient_clip_val, {}, {}
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.global_step, self.times = 0, []

    def fit(self, module, datamodule):
        module.trainer = self
        module.to(self.device).train()
        self.optimizer = module.configure_optimizers()
        datamodule.setup("fit")
        while self.global_step < self.max_steps:
            self.fit_epoch(module, datamodule.train_dataloader())

    def fit_epoch(self, module, loader):
        last = time.perf_counter()
        for index, batch in enumerate(loader):
            batch = tuple(part.to(self.device, non_blocking=True) for part in batch)
            loss = module.training_step(batch, index)
            self.optimizer.zero_grad()
            loss.backward()
            if self.clip:
                nn.utils.clip_grad_norm_(module.parameters(), self.clip)
            self.optimizer.step()
            self.global_step += 1
            self.times.append(time.perf_counter() - last)
            last = time.perf_counter()
            if self.global_step % 10 == 1:
                print(f"step {self.global_step}: " + ", ".join(f"{k} {v:.4f}" for k, v in self.bar.items()))
            if self.global_step == self.max_steps:
                return


class Electricity(Dataset):
    def __init__(self, meters, history, horizon):
        rng = np.random.default_rng(0)
        hours = np.arange(3000)[:, None]
        data = np.sin(hours * np.pi / 12 + rng.uniform(0, 6, meters)) + rng.normal(0, 0.3, (3000, meters))
        self.data, self.history, self.horizon = data.astype(np.float32), history, horizon

    def __len__(self):
        return len(self.data) - self.history - self.horizon

    def __getitem__(self, i):
        middle = i + self.history
        return self.data[i:middle].T.copy(), self.data[middle : middle + self.horizon].T.copy()


class ElectricityData:
    def __init__(self, meters, batch_size):
        self.meters, self.batch_size = meters, batch_size

    def setup(self, stage):
        self.train = Electricity(self.meters, 336, 96)

    def train_dataloader(self):
        return DataLoader(
            self.train,
            self.batch_size,
            shuffle=True,
            drop_last=True,
            num_workers=0 if TINY else 4,
            pin_memory=not TINY,
        )


class Attention(nn.Module):
    def __init__(self, dim, heads, dropout):
        super().__init__()
        self.heads, self.scale, self.dropout = heads, (dim // heads) ** -0.5, dropout
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if "sdpa" in FIX:
            p = self.dropout if self.training else 0.0
            y = nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=p)
        else:
            scores = torch.matmul(q, k.transpose(-1, -2)) * self.scale
            weights = nn.functional.dropout(scores.softmax(-1), self.dropout, self.training)
            y = torch.matmul(weights, v)
        return self.out(y.transpose(1, 2).flatten(2))


class EncoderLayer(nn.Module):
    def __init__(self, dim, heads, hidden, dropout):
        super().__init__()
        self.attention, self.dropout = Attention(dim, heads, dropout), nn.Dropout(dropout)
        self.feed = nn.Sequential(
            nn.Linear(dim, hidden), nn.GELU(), nn.Dropout(dropout), nn.Linear(hidden, dim)
        )
        self.norm1, self.norm2 = nn.BatchNorm1d(dim), nn.BatchNorm1d(dim)

    def forward(self, x):
        x = self.norm1((x + self.dropout(self.attention(x))).transpose(1, 2)).transpose(1, 2)
        return self.norm2((x + self.dropout(self.feed(x))).transpose(1, 2)).transpose(1, 2)


class PatchTST(LightModule):
    def __init__(self, meters=321, history=336, horizon=96, dim=128, heads=16, layers=3, patch=16, stride=8):
        super().__init__()
        self.patch, self.stride, self.meters = patch, stride, meters
        count = (history - patch) // stride + 2
        self.pad, self.embed = nn.ReplicationPad1d((0, stride)), nn.Linear(patch, dim)
        self.places = nn.Parameter(torch.randn(count, dim) * 0.02)
        self.layers = nn.Sequential(*(EncoderLayer(dim, heads, 2 * dim, 0.2) for _ in range(layers)))
        self.heads = nn.ModuleList(
            nn.Linear(count * dim, horizon) for _ in range(meters)
        )  # each meter its own
        self.loss = nn.MSELoss()

    def forward(self, x):
        mean, deviation = x.mean(-1, keepdim=True), x.std(-1, keepdim=True) + 1e-5
        patches = self.pad((x - mean) / deviation).unfold(-1, self.patch, self.stride)
        z = self.layers((self.embed(patches) + self.places).flatten(0, 1))
        z = z.view(x.shape[0], self.meters, *z.shape[1:])
        if "unbind" in FIX:
            outputs = [head(one.flatten(1)) for head, one in zip(self.heads, z.unbind(1), strict=True)]
        else:
            outputs = []
            for i in range(self.meters):
                outputs.append(self.heads[i](z[:, i].flatten(1)))
        return torch.stack(outputs, 1) * deviation + mean

    def training_step(self, batch, _):
        x, y = batch
        loss = self.loss(self(x), y)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 1e-4, fused=True)


torch.manual_seed(2021)
sizes = {"meters": 5, "dim": 16, "heads": 4, "layers": 1} if TINY else {}
trainer = Trainer(MAX_STEPS, gradient_clip_val=1.0)
with trainer.device:
    module = PatchTST(**sizes)
trainer.fit(module, ElectricityData(sizes.get("meters", 321), 2 if TINY else 16))
warm = trainer.times[MAX_STEPS // 4 :]
print(f"train_loss {trainer.bar['train_loss']:.4f}, {sum(warm) / len(warm):.6f} s/step")
