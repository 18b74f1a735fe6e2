"""How much power will be needed? Autoformer: series compared with themselves some hours later."""

import math
import os
import time
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 120))
HOURS, SERIES, BATCH, SEEN, LABEL, AHEAD, WIDE, HEADS, ENCODER, DECODER = (
    (200, 3, 4, 16, 8, 8, 16, 2, 1, 1) if TINY else (20_000, 321, 32, 96, 48, 96, 512, 8, 2, 1)
)
FACTOR, AVERAGED = 3, 5 if TINY else 25
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
torch.set_float32_matmul_precision("high")


@dataclass
class Args:
    learning_rate: float = 1e-4
    train_steps: int = STEPS
    log_every: int = 20 if "loss-rarely" in FIX else 1


class AutoCorrelation(nn.Module):
    """The delays at which queries and keys are most alike, and values rolled by them."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDE, WIDE) for _ in range(4))

    def forward(self, queries, keys):
        length, given = queries.shape[1], keys.shape[1]
        q, k, v = self.query(queries), self.key(keys), self.value(keys)
        if length > given:
            k, v = (F.pad(one, (0, 0, 0, length - given)) for one in (k, v))
        else:
            k, v = k[:, :length], v[:, :length]
        q, k, v = (one.unflatten(2, (HEADS, -1)).permute(0, 2, 3, 1).contiguous() for one in (q, k, v))
        like = torch.fft.irfft(torch.fft.rfft(q) * torch.fft.rfft(k).conj(), n=length)
        x = self.aggregate(v, like.mean((1, 2)))
        return self.out(x.permute(0, 3, 1, 2).flatten(2))

    def aggregate(self, values, like):
        length, top_k = values.shape[3], int(FACTOR * math.log(values.shape[3]))
        index = torch.topk(like.mean(0), top_k).indices
        if "delays-together" in FIX:
            weights = torch.softmax(like[:, index], 1)
            lags = torch.zeros_like(like).scatter(1, index.expand_as(weights), weights)
            places = torch.arange(length, device=values.device)
            rolled = lags[:, (places[:, None] - places) % length]  # from where, to where
            return (values.flatten(1, 2) @ rolled).view_as(values)
        if "delays-read-once" in FIX:
            index = index.tolist()
        weights = torch.softmax(torch.stack([like[:, index[i]] for i in range(top_k)], 1), 1)
        total = torch.zeros_like(values)
        for i in range(top_k):
            pattern = torch.roll(values, -int(index[i]), -1)
            total = total + pattern * weights[:, i, None, None, None]
        return total


class Decomposition(nn.Module):
    """A moving average, and what is left without it."""

    def forward(self, x):
        ends = x[:, :1].repeat(1, AVERAGED // 2, 1), x[:, -1:].repeat(1, AVERAGED // 2, 1)
        padded = torch.cat([ends[0], x, ends[1]], 1)
        trend = F.avg_pool1d(padded.transpose(1, 2), AVERAGED, 1).transpose(1, 2)
        return x - trend, trend


class Layer(nn.Module):
    """Of the encoder, or of the decoder with what was encoded."""

    def __init__(self, crossed):
        super().__init__()
        self.own, self.cross = AutoCorrelation(), AutoCorrelation() if crossed else None
        self.up, self.down = nn.Linear(WIDE, 4 * WIDE, bias=False), nn.Linear(4 * WIDE, WIDE, bias=False)
        self.parts = Decomposition()
        self.project = nn.Conv1d(WIDE, SERIES, 3, padding=1, padding_mode="circular", bias=False)

    def forward(self, x, memory=None):
        x, trend = self.parts(x + F.dropout(self.own(x, x), 0.05))
        if self.cross is not None:
            x, more = self.parts(x + F.dropout(self.cross(x, memory), 0.05))
            trend = trend + more
        x, more = self.parts(x + F.dropout(self.down(F.gelu(self.up(x))), 0.05))
        if self.cross is None:
            return x
        return x, self.project((trend + more).transpose(1, 2)).transpose(1, 2)


class Embedding(nn.Module):
    def __init__(self):
        super().__init__()
        self.values = nn.Conv1d(SERIES, WIDE, 3, padding=1, padding_mode="circular", bias=False)
        self.hour, self.day = nn.Embedding(24, WIDE), nn.Embedding(7, WIDE)

    def forward(self, x, hours):
        when = self.hour(hours % 24) + self.day(hours // 24 % 7)
        return F.dropout(self.values(x.transpose(1, 2)).transpose(1, 2) + when, 0.05)


class Autoformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.seen, self.ahead, self.parts = Embedding(), Embedding(), Decomposition()
        self.encoder = nn.Sequential(*(Layer(False) for _ in range(ENCODER)))
        self.decoder = nn.ModuleList(Layer(True) for _ in range(DECODER))
        self.norms, self.out = (
            nn.ModuleList([nn.LayerNorm(WIDE), nn.LayerNorm(WIDE)]),
            nn.Linear(WIDE, SERIES),
        )

    @staticmethod
    def seasonal(norm, x):
        x = norm(x)
        return x - x.mean(1, keepdim=True)

    def forward(self, x, hours):
        season, trend = self.parts(x)
        mean = x.mean(1, keepdim=True).repeat(1, AHEAD, 1)
        trend = torch.cat([trend[:, -LABEL:], mean], 1)
        season = torch.cat([season[:, -LABEL:], torch.zeros_like(mean)], 1)
        memory = self.seasonal(self.norms[0], self.encoder(self.seen(x, hours[:, :SEEN])))
        y = self.ahead(season, hours[:, SEEN - LABEL :])
        for layer in self.decoder:
            y, more = layer(y, memory)
            trend = trend + more
        return (self.out(self.seasonal(self.norms[1], y)) + trend)[:, -AHEAD:]


class Experiment:
    def __init__(self, args):
        self.args = args
        with device:
            self.model = Autoformer()
            hours = torch.arange(HOURS)[:, None]
            turn = torch.rand(2, SERIES) * 6.28
            self.table = torch.sin(hours * 6.28 / 24 + turn[0]) + 0.5 * torch.sin(
                hours * 6.28 / 168 + turn[1]
            )
            self.table += 0.2 * torch.randn(HOURS, SERIES)
        self.optimizer = torch.optim.Adam(
            self.model.parameters(), lr=args.learning_rate, fused=device.type == "cuda"
        )

    def batches(self):
        span = torch.arange(SEEN + AHEAD, device=device)
        while True:
            hours = torch.randint(HOURS - len(span), (BATCH, 1), device=device) + span
            window = self.table[hours]
            yield window[:, :SEEN], window[:, SEEN:], hours

    def train(self):
        self.model.train()
        lead, began, batches, shown = min(self.args.train_steps // 2, 6), 0.0, self.batches(), 0.0
        for step in range(self.args.train_steps):
            if step == lead:
                if device.type == "cuda":
                    torch.cuda.synchronize()
                began = time.perf_counter()
            seen, then, hours = next(batches)
            loss = F.mse_loss(self.model(seen, hours), then)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            if step % self.args.log_every == 0 or step == self.args.train_steps - 1:
                shown = loss.item()
            if step % 40 == 0:
                print(f"\titers: {step} | loss: {shown:.5f}")
        if device.type == "cuda":
            torch.cuda.synchronize()
        each = 1e3 * (time.perf_counter() - began) / (self.args.train_steps - lead)
        print(f"loss {shown:.5f}; {each:.3f} ms per step")


Experiment(Args()).train()
