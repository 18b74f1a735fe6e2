"""How busy are roads in the next four days? Each sensor is a token that looks at all others."""

import os
import time
from math import sqrt
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 60))
ARGUMENTS = SimpleNamespace(
    seq_len=8 if TINY else 96,
    pred_len=4 if TINY else 96,
    sensors=6 if TINY else 862,
    hours=80 if TINY else 17_500,
    d_model=16 if TINY else 512,
    d_ff=16 if TINY else 512,
    n_heads=2 if TINY else 8,
    e_layers=1 if TINY else 4,
    batch_size=3 if TINY else 32,
    learning_rate=1e-3,
    use_amp="bfloat16" in FIX,
)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
if "tensor-cores" in FIX:
    torch.set_float32_matmul_precision("high")


class FullAttention(nn.Module):
    def forward(self, queries, keys, values):
        scores = torch.einsum("blhe,bshe->bhls", queries, keys)
        chances = torch.softmax(scores / sqrt(queries.shape[3]), -1)
        return torch.einsum("bhls,bshd->blhd", chances, values).contiguous()


class AttentionLayer(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.inner, self.heads = FullAttention(), args.n_heads
        self.query, self.key, self.value, self.out = (nn.Linear(args.d_model, args.d_model) for _ in range(4))

    def forward(self, x):
        q, k, v = (one(x).unflatten(2, (self.heads, -1)) for one in (self.query, self.key, self.value))
        return self.out(self.inner(q, k, v).flatten(2))


class EncoderLayer(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.attention = AttentionLayer(args)
        self.conv1 = nn.Conv1d(args.d_model, args.d_ff, 1)
        self.conv2 = nn.Conv1d(args.d_ff, args.d_model, 1)
        self.norm1, self.norm2 = nn.LayerNorm(args.d_model), nn.LayerNorm(args.d_model)

    def forward(self, x):
        x = self.norm1(x + self.attention(x))
        y = self.conv2(F.gelu(self.conv1(x.transpose(1, 2)))).transpose(1, 2)
        return self.norm2(x + y)


class Model(nn.Module):
    """A series at a time is a token, with what hour and day it is as four tokens more."""

    def __init__(self, args):
        super().__init__()
        self.embed = nn.Linear(args.seq_len, args.d_model)
        self.layers = nn.ModuleList(EncoderLayer(args) for _ in range(args.e_layers))
        self.norm, self.project = nn.LayerNorm(args.d_model), nn.Linear(args.d_model, args.pred_len)

    def forward(self, x, marks):
        mean = x.mean(1, keepdim=True)
        std = (x.var(1, keepdim=True, unbiased=False) + 1e-5).sqrt()
        tokens = self.embed(torch.cat([(x - mean) / std, marks], 2).transpose(1, 2))
        for layer in self.layers:
            tokens = layer(tokens)
        found = self.project(self.norm(tokens)).transpose(1, 2)[:, :, : x.shape[2]]
        return found * std + mean


class Exp:
    """An experiment: data, model, training."""

    def __init__(self, args):
        self.args = args
        with device:
            self.model = Model(args)
        self.series, self.marks = self.data()

    def data(self):
        """Days and weeks, more or less shifted, on the device."""
        hours = torch.arange(self.args.hours, device=device, dtype=torch.float32)[:, None]
        phases = torch.rand(1, self.args.sensors, device=device) * 4
        day, week = torch.sin((hours + phases) * 0.2618), torch.sin((hours + phases) * 0.0374)
        series = day + 0.5 * week + 0.2 * torch.randn_like(day)
        marks = torch.cat([torch.sin(hours * rate) for rate in (0.2618, 0.0374, 0.0086, 0.0007)], 1)
        return series, marks

    def batch(self):
        length = self.args.seq_len + self.args.pred_len
        starts = torch.randint(self.args.hours - length, (self.args.batch_size, 1), device=device)
        at = starts + torch.arange(length, device=device)
        known = at[:, : self.args.seq_len]
        return self.series[known], self.marks[known], self.series[at[:, self.args.seq_len :]]

    def train(self):
        optimizer = torch.optim.Adam(
            self.model.parameters(), self.args.learning_rate, fused=device.type == "cuda"
        )
        criterion, losses = nn.MSELoss(), []
        lead, began = min(STEPS // 2, 5), 0.0
        for step in range(STEPS):
            if step == lead:
                if device.type == "cuda":
                    torch.cuda.synchronize()
                began = time.perf_counter()
            x, marks, target = self.batch()
            optimizer.zero_grad()
            with torch.autocast(device.type, torch.bfloat16, enabled=self.args.use_amp):
                found = self.model(x, marks)
            loss = criterion(found.float(), target)
            losses.append(loss.detach() if "loss-at-end" in FIX else loss.item())
            loss.backward()
            optimizer.step()
            if step % 20 == 0:
                print(f"iters {step}: loss {float(losses[-1]):.5f}")
        if device.type == "cuda":
            torch.cuda.synchronize()
        each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
        mean = sum(float(one) for one in losses) / len(losses)
        print(f"loss {float(losses[-1]):.5f}, mean {mean:.5f}; {each:.3f} ms per step")


Exp(ARGUMENTS).train()
