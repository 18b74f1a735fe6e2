"""A language model is tuned on instructions, its optimizer's state in the host's memory."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 40))
SIZE, BATCH, LENGTH, VOCAB, WIDE, LAYERS, HEAD = (
    (8, 2, 12, 48, 32, 2, 16) if TINY else (256, 8, 1024, 16_384, 768, 8, 64)
)
IGNORED = -100
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDE), nn.RMSNorm(WIDE)
        self.qkv, self.out = nn.Linear(WIDE, 3 * WIDE, bias=False), nn.Linear(WIDE, WIDE, bias=False)
        self.up, self.down = nn.Linear(WIDE, 4 * WIDE, bias=False), nn.Linear(4 * WIDE, WIDE, bias=False)

    def forward(self, x):
        qkv = self.qkv(self.norm1(x)).unflatten(2, (3, -1, HEAD)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(*qkv, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(VOCAB, WIDE), nn.Embedding(LENGTH, WIDE)
        for table in (self.words, self.places):
            nn.init.normal_(table.weight, std=0.02)
        self.blocks, self.norm = nn.ModuleList(Block() for _ in range(LAYERS)), nn.RMSNorm(WIDE)

    def forward(self, words, labels):
        x = self.words(words) + self.places.weight
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.words.weight)
        return F.cross_entropy(
            logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten(), ignore_index=IGNORED
        )


class MasterAdam:
    """AdamW on copies of all weights in float32, which lie elsewhere; the model has low precision."""

    def __init__(self, parameters, rate, where):
        self.parameters, self.where = list(parameters), where
        self.masters = [one.detach().to(where, torch.float32, copy=True) for one in self.parameters]
        self.adam = torch.optim.AdamW(self.masters, lr=rate, weight_decay=0.01, fused=True)
        self.staged = None
        if "pinned" in FIX and device.type == "cuda":
            self.staged = [torch.empty_like(one, device="cpu").pin_memory() for one in self.parameters]

    def step(self):
        if self.staged:
            for one, stage in zip(self.parameters, self.staged, strict=True):
                stage.copy_(one.grad, non_blocking=True)
            torch.cuda.synchronize()
            for master, stage in zip(self.masters, self.staged, strict=True):
                master.grad = stage.float()
        else:
            for one, master in zip(self.parameters, self.masters, strict=True):
                master.grad = one.grad.to(self.where).float()
        self.adam.step()
        for one, master, stage in zip(
            self.parameters, self.masters, self.staged or self.parameters, strict=True
        ):
            if self.staged:
                stage.copy_(master)
                one.data.copy_(stage, non_blocking=True)
            else:
                one.data.copy_(master.to(one.dtype))

    def zero_grad(self):
        for one in self.parameters:
            one.grad = None


class Engine:
    """As an engine is set up by a configuration that was copied from a larger model."""

    def __init__(self, model, configuration):
        self.model, self.every = model, configuration["steps_per_print"]
        offload = configuration["zero_optimization"]["offload_optimizer"]["device"]
        where = torch.device("cpu") if offload == "cpu" else device
        self.optimizer = MasterAdam(model.parameters(), configuration["lr"], where)
        self.steps, self.shown = 0, 0.0

    def train_batch(self, words, labels):
        loss = self.model(words, labels)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.steps % self.every == 0 or self.steps == STEPS - 1:
            self.shown = loss.item()
        self.steps += 1
        return self.shown


def instructions():
    """What is asked has no label; an answer repeats its words, one later."""
    words = torch.randint(3, VOCAB, (SIZE, LENGTH), device=device)
    asked = LENGTH // 3
    words[:, asked:] = (words[:, : LENGTH - asked] + 1) % VOCAB
    labels = words.clone()
    labels[:, :asked] = IGNORED
    return words, labels


def main():
    words, labels = instructions()
    with device:
        model = LM().to(dtype)
    engine = Engine(
        model,
        {
            "lr": 1e-4,
            "steps_per_print": 20 if "loss-rarely" in FIX else 1,
            "zero_optimization": {
                "stage": 2,
                "offload_optimizer": {"device": "none" if "on-device" in FIX else "cpu"},
            },
        },
    )
    lead, began, shown = min(STEPS // 2, 4), 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        chosen = torch.randint(SIZE, (BATCH,), device=device)
        shown = engine.train_batch(words[chosen], labels[chosen])
        if step % 20 == 0:
            print(f"step {step}: loss {shown:.4f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.5f}; {each:.3f} ms per step")


main()
