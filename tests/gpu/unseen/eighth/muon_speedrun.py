"""As fast as possible to a given loss: a small GPT, compiled, with Muon for its matrices."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 3 if TINY else 200))
VOCAB, WIDTH, LAYERS, HEADS, LENGTH, BATCH = (64, 32, 2, 2, 16, 2) if TINY else (50_304, 768, 12, 6, 1024, 8)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
backend = "inductor" if device.type == "cuda" else "aot_eager"
torch.manual_seed(0)
torch.set_float32_matmul_precision("high")


def rms(x):
    return F.rms_norm(x, (x.size(-1),))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.down.weight)

    def turned(self, x, cos, sin):
        a, b = rms(x).chunk(2, 3)
        return torch.cat([a * cos + b * sin, b * cos - a * sin], 3).to(x.dtype)

    def forward(self, x, cos, sin):
        y = rms(x)
        q, k, v = (f(y).unflatten(2, (HEADS, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        q, k = self.turned(q, cos, sin), self.turned(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(F.relu(self.up(rms(x))).square())


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(VOCAB, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)
        nn.init.zeros_(self.head.weight)
        size = WIDTH // HEADS // 2
        angles = torch.outer(torch.arange(LENGTH), (1 / 1024) ** torch.linspace(0, 1, size))
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def loss(self, x, targets):
        logits = self.head(rms(x)).float()
        return F.cross_entropy(15 * torch.tanh(logits / 15).flatten(0, 1), targets.flatten())

    def forward(self, ids, targets):
        x = rms(self.words(ids))
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return self.loss(x, targets)


def orthogonal(gradient, steps=5):
    """Newton-Schulz: nearly the nearest matrix whose singular values are all one; or a stack of them."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = gradient.bfloat16()
    if gradient.size(-2) > gradient.size(-1):
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        y = x @ x.mT
        x = a * x + (b * y + c * y @ y) @ x
    return x.mT if gradient.size(-2) > gradient.size(-1) else x


class Muon(torch.optim.Optimizer):
    def __init__(self, parameters, lr=0.02, momentum=0.95):
        super().__init__(parameters, {"lr": lr, "momentum": momentum})

    def buffer(self, p):
        if "buffer" not in self.state[p]:
            self.state[p]["buffer"] = torch.zeros_like(p)
        return self.state[p]["buffer"]

    def average(self, p, momentum):
        """Nesterov momentum."""
        buffer = self.buffer(p).lerp_(p.grad, 1 - momentum)
        return p.grad.lerp(buffer, momentum)

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            lr, momentum = group["lr"], group["momentum"]
            if "stacked" in FIX:
                shapes = {}
                for p in group["params"]:
                    shapes.setdefault(p.shape, []).append(p)
                for shape, alike in shapes.items():
                    grads, buffers = [p.grad for p in alike], [self.buffer(p) for p in alike]
                    torch._foreach_lerp_(buffers, grads, 1 - momentum)
                    updates = orthogonal(torch.stack(torch._foreach_lerp(grads, buffers, momentum)))
                    scale = max(1, shape[0] / shape[1]) ** 0.5
                    torch._foreach_add_(alike, list(updates.float().unbind(0)), alpha=-lr * scale)
                continue
            for p in group["params"]:
                update = orthogonal(self.average(p, momentum))
                p.add_(update.to(p.dtype), alpha=-lr * max(1, p.size(0) / p.size(1)) ** 0.5)


class Tokens:
    """Stands in for a file of tokens: words that often follow each other; on the device."""

    def __init__(self):
        count = (BATCH * 64 + 1) * LENGTH
        jumps = (torch.rand(count, device=device).pow(6) * 40).long()
        self.ids, self.place = jumps.cumsum(0) % VOCAB, 0

    def batch(self):
        if self.place + BATCH * LENGTH + 1 > len(self.ids):
            self.place = 0
        part = self.ids[self.place : self.place + BATCH * LENGTH + 1]
        self.place += BATCH * LENGTH
        return part[:-1].view(BATCH, LENGTH), part[1:].view(BATCH, LENGTH)


def main():
    cuda, tokens, model = device.type == "cuda", Tokens(), GPT().to(device)
    matrices = list(model.blocks.parameters())
    others = [*model.words.parameters(), *model.head.parameters()]
    optimizers = [
        Muon(matrices),
        torch.optim.AdamW(others, lr=3e-3, betas=(0.8, 0.95), weight_decay=0.0, fused=cuda),
    ]
    for block in model.blocks:
        block.compile(backend=backend)
    model.loss = torch.compile(model.loss, backend=backend)
    times, shown = [], 0.0
    for step in range(STEPS):
        began = time.perf_counter()
        ids, targets = tokens.batch()
        with torch.autocast(device.type, torch.bfloat16, enabled=cuda):
            loss = model(ids, targets)
        loss.backward()
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] *= 1 - 1 / (2 * max(STEPS, 1000))
            optimizer.step()
        model.zero_grad(set_to_none=True)
        if "loss-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown = loss.item()
        times.append(time.perf_counter() - began)
        if step % 20 == 0:
            print(f"step {step}: loss {shown:.4f}")
    kept = times[min(STEPS // 2, 8) :]
    print(f"loss {shown:.4f}; {1e3 * sum(kept) / len(kept):.3f} ms per step")


main()
