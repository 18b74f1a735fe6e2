"""Samples from a GPT-2 that starts with a prompt, one after the other, as many as are asked for."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 2 if TINY else 8))  # samples
LAYERS, HEADS, WIDTH, BLOCK, VOCAB, PROMPT, NEW = (
    (2, 2, 16, 32, 50, 5, 6) if TINY else (12, 12, 768, 1024, 50257, 180, 100)
)
TEMPERATURE, TOP_K = 0.8, 20 if TINY else 200
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(1337)
torch.backends.cuda.matmul.allow_tf32 = True
ctx = torch.autocast(device_type=device, dtype=torch.bfloat16)


class CausalSelfAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x, cache=None):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(WIDTH, dim=2)
        q, k, v = (t.view(B, T, HEADS, C // HEADS).transpose(1, 2) for t in (q, k, v))
        causal = T > 1
        if cache is not None:
            if cache:
                k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
            cache[:] = k, v
        y = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.attn, self.ln_2 = nn.LayerNorm(WIDTH), CausalSelfAttention(), nn.LayerNorm(WIDTH)
        self.c_fc, self.c_proj = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x, cache=None):
        x = x + self.attn(self.ln_1(x), cache)
        return x + self.c_proj(F.gelu(self.c_fc(self.ln_2(x))))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCAB, WIDTH), nn.Embedding(BLOCK, WIDTH)
        self.h, self.ln_f = nn.ModuleList(Block() for _ in range(LAYERS)), nn.LayerNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, VOCAB, bias=False)
        self.apply(self._init_weights)
        self.wte.weight = self.lm_head.weight

    def _init_weights(self, module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, idx, caches=None, start=0):
        pos = torch.arange(start, start + idx.size(1), dtype=torch.long, device=idx.device)
        x = self.wte(idx) + self.wpe(pos)
        for i, block in enumerate(self.h):
            x = block(x, None if caches is None else caches[i])
        return self.lm_head(self.ln_f(x)[:, [-1], :])

    @torch.no_grad()
    def generate(self, idx, max_new_tokens, temperature=1.0, top_k=None):
        caches = [[] for _ in self.h] if "kv-cache" in FIX else None
        for i in range(max_new_tokens):
            if caches is not None and i:
                logits = self(idx[:, -1:], caches, idx.size(1) - 1)
            else:
                idx_cond = idx if idx.size(1) <= BLOCK else idx[:, -BLOCK:]
                logits = self(idx_cond, caches)
            logits = logits[:, -1, :] / temperature
            if top_k is not None:
                v, _ = torch.topk(logits, min(top_k, logits.size(-1)))
                logits[logits < v[:, [-1]]] = -float("Inf")
            probs = F.softmax(logits, dim=-1)
            idx_next = torch.multinomial(probs, num_samples=1)
            idx = torch.cat((idx, idx_next), dim=1)
        return idx


def decode(tokens):
    return " ".join(str(one) for one in tokens)


with torch.device(device):
    model = GPT()
model.eval()
start_ids = torch.randint(0, VOCAB, (PROMPT,)).tolist()
x = torch.tensor(start_ids, dtype=torch.long, device=device)[None, ...]
words, spent, timed = 0, 0.0, 0
with torch.no_grad(), ctx:
    model.generate(x, 2, TEMPERATURE, TOP_K)
    if "samples-at-once" in FIX:
        for k in range(0, STEPS, 8):
            began = time.time()
            many = min(8, STEPS - k)
            y = model.generate(x.expand(many, -1), NEW, temperature=TEMPERATURE, top_k=TOP_K)
            texts = [decode(one) for one in y.tolist()]
            spent, timed = spent + time.time() - began, timed + many
    else:
        for _ in range(STEPS):
            began = time.time()
            y = model.generate(x, NEW, temperature=TEMPERATURE, top_k=TOP_K)
            texts = [decode(y[0].tolist())]
            spent, timed = spent + time.time() - began, timed + 1
print(texts[-1][-40:])
print("---------------")
print(f"{timed} samples of {len(texts[-1].split())} tokens, {1e3 * spent / timed:.3f} ms per sample")
