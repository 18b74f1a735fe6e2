"""Pictures explained in words: a language model goes on from features of pictures, which are known."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 100))
SIZE, BATCH, SEEN, FEATURES, WORDS, VOCAB, WIDE, INNER, HEAD, LAYERS = (
    (8, 2, 4, 16, 6, 50, 32, 48, 16, 1) if TINY else (256, 32, 256, 1024, 128, 32_000, 1536, 4096, 64, 12)
)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
backend, dtype = ("inductor", torch.bfloat16) if device.type == "cuda" else ("eager", torch.float32)
torch.manual_seed(0)
torch.set_float32_matmul_precision("high")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDE), nn.RMSNorm(WIDE)
        self.qkv, self.out = nn.Linear(WIDE, 3 * WIDE, bias=False), nn.Linear(WIDE, WIDE, bias=False)
        self.gate_up = nn.Linear(WIDE, 2 * INNER, bias=False)
        self.down = nn.Linear(INNER, WIDE, bias=False)

    def forward(self, x, cos, sin):
        q, k, v = self.qkv(self.norm1(x)).unflatten(2, (3, -1, HEAD)).permute(2, 0, 3, 1, 4)
        q, k = (
            torch.cat([-one[..., HEAD // 2 :], one[..., : HEAD // 2]], -1) * sin + one * cos for one in (q, k)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Explainer(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Sequential(nn.Linear(FEATURES, WIDE), nn.GELU(), nn.Linear(WIDE, WIDE))
        self.words, self.norm = nn.Embedding(VOCAB, WIDE), nn.RMSNorm(WIDE)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Linear(WIDE, VOCAB, bias=False)
        rates = 10_000 ** (-torch.arange(HEAD // 2) / (HEAD // 2))
        angles = torch.outer(torch.arange(SEEN + WORDS), rates).repeat(1, 2)
        self.register_buffer("cos", angles.cos().to(dtype))
        self.register_buffer("sin", angles.sin().to(dtype))

    def explain(self, x, words):
        """The loss of the words, of which only these places have logits."""
        logits = self.head(self.norm(x[:, SEEN - 1 : -1]))
        return F.cross_entropy(logits.float().flatten(0, 1), words.flatten())

    def forward(self, features, words):
        x = torch.cat([self.project(features), self.words(words)], 1)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return self.explain(x, words)


def data():
    """Features of patches, computed once for all epochs, and captions that follow from them."""
    kinds = torch.randint(1, VOCAB // 2, (SIZE, 1), device=device)
    features = torch.randn(SIZE, SEEN, FEATURES, device=device, dtype=dtype)
    features[:, :, 0] += (kinds / VOCAB).to(dtype)
    return features, (kinds + torch.arange(WORDS, device=device)) % VOCAB


def main():
    features, words = data()
    with device:
        model = Explainer().to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), fused=device.type == "cuda")
    for block in model.blocks:
        block.compile(backend=backend, dynamic=False)
    lead, began, shown, length = min(STEPS // 2, 6), 0.0, 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        chosen = torch.randint(SIZE, (BATCH,), device=device)
        loss = model(features[chosen], words[chosen])
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if "figures-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown, length = loss.item(), norm.item()
        if step % 20 == 0:
            print(f"step {step}: loss {shown:.4f}, norm {length:.3f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.5f}; {each:.3f} ms per step")


main()
