"""A small language model of the Llama kind from the beginning, by a trainer with arguments and callbacks."""

import os
import time
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 60))
TOKENS, BATCH, LENGTH, VOCAB, WIDE, LAYERS, HEAD, INNER = (
    (400, 2, 16, 64, 32, 2, 16, 48) if TINY else (4_000_000, 12, 1024, 32_000, 1024, 16, 64, 2816)
)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low, backend = (True, "inductor") if device.type == "cuda" else (False, "eager")
torch.manual_seed(0)
torch.set_float32_matmul_precision("high")


@dataclass
class TrainingArguments:
    max_steps: int
    batch: int = BATCH
    learning_rate: float = 3e-4
    warmup_steps: int = 100
    max_grad_norm: float = 1.0
    logging_steps: int = 20 if "loss-rarely" in FIX else 1
    gradient_checkpointing: bool = "no-checkpointing" not in FIX


class RMSNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDE))

    def forward(self, x):
        wide = x.float()
        return (wide * (wide.square().mean(-1, keepdim=True) + 1e-6).rsqrt()).to(x.dtype) * self.weight


def rotate(x, cos, sin):
    one, two = x.chunk(2, -1)
    return x * cos + torch.cat([-two, one], -1) * sin


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = RMSNorm(), RMSNorm()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDE, WIDE, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(WIDE, INNER, bias=False) for _ in range(2))
        self.down = nn.Linear(INNER, WIDE, bias=False)

    def forward(self, x, cos, sin):
        y = self.norm1(x)
        q, k, v = (one(y).unflatten(2, (-1, HEAD)).transpose(1, 2) for one in (self.q, self.k, self.v))
        q, k = rotate(q, cos, sin).to(v.dtype), rotate(k, cos, sin).to(v.dtype)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).flatten(2))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.layers = nn.Embedding(VOCAB, WIDE), nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm, self.head = RMSNorm(), nn.Linear(WIDE, VOCAB, bias=False)
        for weight in self.parameters():
            if weight.dim() == 2:
                nn.init.normal_(weight, std=0.02)
        angles = torch.arange(LENGTH)[:, None] * 10_000 ** (-torch.arange(0, HEAD, 2) / HEAD)
        self.register_buffer("cos", angles.cos().repeat(1, 2), persistent=False)
        self.register_buffer("sin", angles.sin().repeat(1, 2), persistent=False)
        self.gradient_checkpointing = False

    def gradient_checkpointing_enable(self):
        self.gradient_checkpointing = True

    def forward(self, input_ids, labels):
        x = self.words(input_ids)
        for layer in self.layers:
            if self.gradient_checkpointing and self.training:
                x = checkpoint(layer, x, self.cos, self.sin, use_reentrant=False)
            else:
                x = layer(x, self.cos, self.sin)
        logits = self.head(self.norm(x)).float()
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


class Callback:
    def on_log(self, step, logs):
        if step % 20 == 0:
            print(f"step {step}:", ", ".join(f"{name} {value:.5g}" for name, value in logs.items()))


class Trainer:
    def __init__(self, model, arguments, dataset, callbacks):
        self.model, self.arguments, self.dataset, self.callbacks = model, arguments, dataset, callbacks
        if arguments.gradient_checkpointing:
            model.gradient_checkpointing_enable()
        for layer in model.layers:
            layer.compile(backend=backend, dynamic=False)
        self.optimizer = torch.optim.AdamW(
            model.parameters(), arguments.learning_rate, betas=(0.9, 0.95), weight_decay=0.1, fused=low
        )
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda n: min(1.0, (n + 1) / arguments.warmup_steps)
        )
        self.loss = 0.0

    def inputs(self):
        starts = torch.randint(len(self.dataset) - LENGTH - 1, (self.arguments.batch, 1), device=device)
        part = self.dataset[starts + torch.arange(LENGTH + 1, device=device)]
        return {"input_ids": part[:, :-1], "labels": part[:, 1:]}

    def training_step(self):
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            loss = self.model(**self.inputs())
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.arguments.max_grad_norm)
        self.optimizer.step()
        self.schedule.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def train(self):
        self.model.train()
        steps = self.arguments.max_steps
        lead, began = min(steps // 2, 5), 0.0
        for step in range(steps):
            if step == lead:
                if device.type == "cuda":
                    torch.cuda.synchronize()
                began = time.perf_counter()
            loss = self.training_step()
            if step % self.arguments.logging_steps == 0 or step == steps - 1:
                self.loss = loss.item()
                for callback in self.callbacks:
                    callback.on_log(step, {"loss": self.loss, "rate": self.schedule.get_last_lr()[0]})
        if device.type == "cuda":
            torch.cuda.synchronize()
        print(f"loss {self.loss:.5f}; {1e3 * (time.perf_counter() - began) / (steps - lead):.3f} ms per step")


def corpus():
    """Words of which some are frequent, each followed by what likes to follow it."""
    drawn = (VOCAB ** torch.rand(TOKENS, device=device)).long().clamp(max=VOCAB - 1)
    follows = torch.rand(TOKENS - 1, device=device) < 0.5
    drawn[1:] = torch.where(follows, (drawn[:-1] * 11 + 5) % VOCAB, drawn[1:])
    return drawn


with device:
    llama = Llama()
Trainer(llama, TrainingArguments(STEPS), corpus(), [Callback()]).train()
