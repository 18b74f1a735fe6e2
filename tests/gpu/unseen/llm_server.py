"""A little text server: requests wait in a queue, eight at a time are prefilled and decoded together."""

import os
import queue
import random
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
DIM, LAYERS, HEADS, VOCAB = (64, 2, 4, 300) if TINY else (1024, 16, 16, 32_000)
BATCH, NEW_TOKENS, LONGEST_PROMPT, EOS = (2, 6, 12, 0) if TINY else (8, 96, 160, 0)
REQUESTS = int(os.environ.get("STEPS", 2 if TINY else 60)) * BATCH
device = "cuda" if torch.cuda.is_available() else "cpu"
random.seed(5)
torch.manual_seed(5)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(DIM, 3 * DIM, bias=False), nn.Linear(DIM, DIM, bias=False)

    def forward(self, x, cache, mask, position=None):
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        if position is not None:  # a cache of fixed size, written in place
            cache[0].index_copy_(2, position, k)
            cache[1].index_copy_(2, position, v)
            k, v = cache
        elif cache is not None:
            k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out(y.transpose(1, 2).flatten(2)), (k, v)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.attention, self.norm2 = nn.RMSNorm(DIM), Attention(), nn.RMSNorm(DIM)
        self.gate, self.up, self.down = (
            nn.Linear(DIM, 3 * DIM),
            nn.Linear(DIM, 3 * DIM),
            nn.Linear(3 * DIM, DIM),
        )

    def forward(self, x, cache, mask, position=None):
        y, cache = self.attention(self.norm1(x), cache, mask, position)
        x = x + y
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y)), cache


class LanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(VOCAB, DIM), nn.Embedding(512, DIM)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.RMSNorm(DIM), nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, ids, places, caches, mask, position=None):
        x = self.words(ids) + self.places(places)
        kept = []
        for block, cache in zip(self.blocks, caches or [None] * LAYERS, strict=True):
            x, cache = block(x, cache, mask, position)
            kept.append(cache)
        return self.head(self.norm(x[:, -1])), kept


def pick(logits, temperature=0.8, top_p=0.95):
    probabilities, order = (logits.float() / temperature).softmax(-1).sort(-1, descending=True)
    probabilities[probabilities.cumsum(-1) - probabilities > top_p] = 0.0
    return order.gather(-1, torch.multinomial(probabilities, 1))


class Graph:
    """The decoding of one token, captured once and replayed."""

    def __init__(self):
        total = LONGEST_PROMPT + NEW_TOKENS
        shape, dtype = (BATCH, HEADS, total, DIM // HEADS), model.head.weight.dtype
        self.caches = [
            tuple(torch.zeros(shape, device=device, dtype=dtype) for _ in "kv") for _ in range(LAYERS)
        ]
        self.mask = torch.zeros(BATCH, 1, 1, total, dtype=torch.bool, device=device)
        self.ids = torch.zeros(BATCH, 1, dtype=torch.long, device=device)
        self.places, self.position = self.ids.clone(), torch.zeros(1, dtype=torch.long, device=device)
        self.mask[..., 0] = True
        if device == "cuda":
            self.step()
            torch.cuda.synchronize()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.step()

    @torch.inference_mode()
    def step(self):
        self.logits, _ = model(self.ids, self.places, self.caches, self.mask, self.position)

    def start(self, caches, mask, length):
        for mine, given in zip(self.caches, caches, strict=True):
            for a, b in zip(mine, given, strict=True):
                a[:, :, :length] = b
        self.mask.zero_()
        self.mask[..., :length] = mask[:, None, None, :]

    def __call__(self, ids, places, at):
        self.ids.copy_(ids)
        self.places.copy_(places)
        self.position.fill_(at)
        self.mask[..., at] = True
        self.graph.replay() if device == "cuda" else self.step()
        return self.logits


@torch.inference_mode()
def serve(prompts):
    length = max(map(len, prompts))
    padded = torch.tensor([[1] * (length - len(p)) + p for p in prompts], device=device)
    mask = torch.tensor([[0] * (length - len(p)) + [1] * len(p) for p in prompts], device=device).bool()
    places = (mask.cumsum(1) - 1).clamp(min=0)
    causal = torch.ones(length, length, dtype=torch.bool, device=device).tril() & mask[:, None, None, :]
    causal |= torch.eye(length, dtype=torch.bool, device=device)
    logits, caches = model(padded, places, None, causal)
    if graph:
        graph.start(caches, mask, length)
    last, answers, done = places[:, -1:], [[] for _ in prompts], [False] * len(prompts)
    for count in range(NEW_TOKENS):
        token = pick(logits)
        if "tokens-at-once" in FIX:
            drawn = token.flatten().tolist()
        else:
            drawn = [token[i].item() for i in range(len(prompts))]
        for i, word in enumerate(drawn):
            done[i] = done[i] or word == EOS
            if not done[i]:
                answers[i].append(word)
        if all(done) or count == NEW_TOKENS - 1:
            break
        last = last + 1
        if graph:
            logits = graph(token, last, length + count)
        else:
            mask = torch.cat([mask, torch.ones(len(prompts), 1, dtype=torch.bool, device=device)], 1)
            logits, caches = model(token, last, caches, mask[:, None, None, :])
    return answers


model = LanguageModel().to(device, torch.bfloat16 if "bf16" in FIX else torch.float32).eval()
graph = Graph() if "graph" in FIX else None
waiting = queue.Queue()
for _ in range(REQUESTS):
    waiting.put(
        [random.randrange(2, VOCAB) for _ in range(random.randint(LONGEST_PROMPT // 4, LONGEST_PROMPT))]
    )
tokens, latencies, rates = 0, [], []
while not waiting.empty():
    prompts = [waiting.get() for _ in range(BATCH)]
    start = time.perf_counter()
    answers = serve(prompts)
    latencies.append(time.perf_counter() - start)
    tokens = max(map(len, answers))
    rates.append(latencies[-1] / max(1, tokens))
    print(f"{BATCH} requests, {sum(map(len, answers))} tokens in {latencies[-1]:.3f} s")
rates = sorted(rates[1:])
latency = sum(latencies[1:]) / len(rates)
print(f"median {rates[len(rates) // 2] * 1e3:.3f} ms per token, mean latency {latency:.4f} s")
