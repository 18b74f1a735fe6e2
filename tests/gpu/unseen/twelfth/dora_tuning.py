"""A language model learns a trade: its weights stay, adapters turn them and stretch them (DoRA)."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 60))
SIZE, BATCH, WORDS, VOCAB, WIDE, INNER, HEAD, LAYERS, RANK = (
    (8, 2, 8, 50, 32, 48, 16, 1, 4) if TINY else (64, 4, 1024, 32_000, 2048, 5632, 64, 12, 16)
)
ALPHA = 2.0
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
torch.manual_seed(0)


class DoraLinear(nn.Module):
    """A layer that stays, with a product of two small matrices added and its rows given new lengths."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs, dtype=dtype) / inputs**0.5)
        self.weight.requires_grad_(False)
        self.lora_a, self.lora_b = nn.Linear(inputs, RANK, bias=False), nn.Linear(RANK, outputs, bias=False)
        nn.init.zeros_(self.lora_b.weight)
        self.magnitude = nn.Parameter(self.weight.float().norm(dim=1))
        self.squares = None

    @torch.no_grad()
    def lengths(self, x):
        """Lengths of the rows of the weight as it is with its adapter."""
        a, b = self.lora_a.weight, self.lora_b.weight
        if "lean" in FIX:
            if self.squares is None:
                self.squares = self.weight.float().square().sum(1)
            across = ((self.weight @ a.T.to(dtype)) * b).sum(1)
            return (self.squares + 2 * ALPHA * across + ALPHA**2 * ((b @ (a @ a.T)) * b).sum(1)).sqrt()
        eye = torch.eye(self.weight.shape[1], device=x.device, dtype=x.dtype)
        added = self.lora_b(self.lora_a(eye)).T
        return torch.linalg.norm(self.weight + ALPHA * added, dim=1)

    def forward(self, x):
        result = F.linear(x, self.weight)
        stretch = (self.magnitude / self.lengths(x)).to(x.dtype)
        added = ALPHA * self.lora_b(self.lora_a(x))
        if "lean" in FIX:
            return stretch * (result + added)
        return result + (stretch - 1) * F.linear(x, self.weight) + stretch * added


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDE, dtype=dtype), nn.RMSNorm(WIDE, dtype=dtype)
        self.q, self.k, self.v, self.o = (DoraLinear(WIDE, WIDE) for _ in range(4))
        self.gate, self.up = DoraLinear(WIDE, INNER), DoraLinear(WIDE, INNER)
        self.down = DoraLinear(INNER, WIDE)

    def forward(self, x):
        y = self.norm1(x)
        q, k, v = (one(y).unflatten(2, (-1, HEAD)).transpose(1, 2) for one in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).flatten(2))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(VOCAB, WIDE), nn.Embedding(WORDS, WIDE)
        self.blocks, self.norm = nn.ModuleList(Block() for _ in range(LAYERS)), nn.RMSNorm(WIDE, dtype=dtype)
        self.head = nn.Linear(WIDE, VOCAB, bias=False, dtype=dtype)
        for one in (self.words, self.places):
            one.to(dtype)

    def forward(self, words):
        x = self.words(words[:, :-1]) + self.places.weight
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x)).float()
        return F.cross_entropy(logits.flatten(0, 1), words[:, 1:].flatten())


def main():
    with device:
        model = Model()
    for name, weight in model.named_parameters():
        weight.requires_grad_("lora" in name or "magnitude" in name)
    learned = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(learned, lr=2e-4, fused=device.type == "cuda")
    kinds = torch.randint(VOCAB // 2, (SIZE, 1), device=device)
    texts = (kinds + torch.arange(WORDS + 1, device=device)) % VOCAB
    lead, began, shown, norm = min(STEPS // 2, 4), 0.0, 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        chosen = torch.randint(SIZE, (BATCH,), device=device)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = model(texts[chosen])
        loss.backward()
        length = nn.utils.clip_grad_norm_(learned, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if "figures-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown, norm = loss.item(), length.item()
        if step % 20 == 0:
            print(f"step {step}: loss {shown:.4f}, norm {norm:.3f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.5f}; {each:.3f} ms per step")


main()
