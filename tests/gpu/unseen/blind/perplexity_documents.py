"""Perplexity of a language model on documents of any length, one after the other; its blocks are compiled."""

import math
import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
DOCUMENTS = int(os.environ.get("STEPS", 12 if TINY else 600))
DIM, HEADS, LAYERS, VOCAB, CONTEXT = (32, 2, 2, 200, 64) if TINY else (1024, 16, 24, 50_257, 1024)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(1337)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.c_attn, self.c_proj = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.c_fc, self.mlp_proj = nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.c_attn(self.ln_1(x)).split(c, dim=2)
        q, k, v = (part.view(b, t, HEADS, c // HEADS).transpose(1, 2) for part in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).contiguous().view(b, t, c))
        return x + self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCAB, DIM), nn.Embedding(CONTEXT, DIM)
        self.h = nn.ModuleList(Block() for _ in range(LAYERS))
        self.ln_f = nn.LayerNorm(DIM)
        self.lm_head = nn.Linear(DIM, VOCAB, bias=False)
        nn.init.normal_(self.wte.weight, std=0.02)
        self.lm_head.weight = self.wte.weight

    def forward(self, idx):
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1], device=idx.device))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


def documents():
    """Tokens of articles: most are short, some fill the context."""
    generator = torch.Generator().manual_seed(7)
    for _ in range(DOCUMENTS):
        length = int(torch.empty(1).log_normal_(math.log(CONTEXT * 0.3), 0.6, generator=generator))
        length = min(max(length, 16), CONTEXT)
        yield torch.randint(0, VOCAB, (length,), generator=generator)


def batches(size):
    """Sixteen documents at a time, long ones with long ones."""
    everything = sorted(documents(), key=len)
    for start in range(0, len(everything), size):
        yield everything[start : start + size]


@torch.no_grad()
def evaluate_batched(model, size=16):
    total, tokens = torch.zeros((), device=device), 0
    for group in batches(size):
        ids = nn.utils.rnn.pad_sequence(group, batch_first=True, padding_value=-1).to(device)
        logits = model(ids.clamp(min=0))
        nll = F.cross_entropy(
            logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten(), ignore_index=-1, reduction="sum"
        )
        total += nll
        tokens += sum(len(document) - 1 for document in group)
    return total.item(), tokens


@torch.no_grad()
def evaluate(model):
    nlls, tokens = [], 0
    for number, document in enumerate(documents()):
        ids = document.unsqueeze(0).to(device)
        logits = model(ids)
        nll = F.cross_entropy(logits[0, :-1].float(), ids[0, 1:], reduction="sum")
        nlls.append(nll if "no-item" in FIX else nll.item())
        tokens += ids.shape[1] - 1
        if number % 200 == 0:
            print(f"document {number}: perplexity {math.exp(float(sum(nlls)) / tokens):.1f}")
    return float(sum(nlls)), tokens


def main():
    with device:
        model = GPT().to(torch.bfloat16).eval()
    for block in model.h:
        # lengths differ, and symbolic shapes made slower kernels when we tried
        block.compile(dynamic="dynamic" in FIX, backend="aot_eager" if TINY else "inductor")
    with torch.no_grad():
        for length in [CONTEXT // 8 * (1 + i) for i in range(8)]:
            model(torch.zeros(1, length, dtype=torch.long, device=device))
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    nll, tokens = evaluate_batched(model) if "batched" in FIX else evaluate(model)
    spent = time.perf_counter() - start
    print(f"perplexity {math.exp(nll / tokens):.3f} over {tokens} tokens in {DOCUMENTS} documents")
    print(f"{1e3 * spent / DOCUMENTS:.5f} ms per document")


if __name__ == "__main__":
    main()
