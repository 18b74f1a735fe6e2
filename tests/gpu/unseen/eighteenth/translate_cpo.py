"""A better translation and a worse one: a language model learns which, without a reference."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 60))
PAIRS, BATCH, PROMPT, ANSWER, VOCAB, WIDE, LAYERS, HEAD = (
    (6, 2, (6, 9), (3, 6), 60, 32, 2, 16) if TINY else (256, 8, (300, 380), (80, 132), 102_400, 1024, 12, 64)
)
LENGTH = PROMPT[1] + ANSWER[1]
BETA, IGNORED = 0.1, -100
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low = device.type == "cuda"
torch.manual_seed(0)
torch.set_float32_matmul_precision("high")


class CausalLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDE), nn.RMSNorm(WIDE)
        self.qkv, self.out = nn.Linear(WIDE, 3 * WIDE, bias=False), nn.Linear(WIDE, WIDE, bias=False)
        self.gate, self.up = (nn.Linear(WIDE, 5 * WIDE // 2, bias=False) for _ in range(2))
        self.down = nn.Linear(5 * WIDE // 2, WIDE, bias=False)

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(2, (3, -1, HEAD)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(VOCAB, WIDE), nn.Embedding(LENGTH, WIDE)
        for table in (self.words, self.places):
            nn.init.normal_(table.weight, std=0.02)
        self.layers, self.norm = nn.ModuleList(CausalLayer() for _ in range(LAYERS)), nn.RMSNorm(WIDE)
        self.head = nn.Linear(WIDE, VOCAB, bias=False)

    def hidden(self, words):
        x = self.words(words) + self.places.weight
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)

    def forward(self, words):
        return self.head(self.hidden(words))


def likelihoods(logits, labels):
    """Of each place that has a label; 0 elsewhere."""
    logits, labels = logits[:, :-1].float(), labels[:, 1:]
    there = labels != IGNORED
    chances = logits.log_softmax(-1)
    return chances.gather(2, labels.clamp(min=0)[:, :, None])[:, :, 0] * there, there


def likelihoods_of_answers(model, words, labels, places):
    """The same, with logits of the answers' places alone."""
    row, column = places
    found, there = torch.zeros(labels[:, 1:].shape, device=device), labels[:, 1:] != IGNORED
    logits = model.head(model.hidden(words)[row, column]).float()
    chances = -F.cross_entropy(logits, labels[row, column + 1], reduction="none")
    return found.index_put((row, column), chances), there


def cpo_loss(each, there):
    """What is better should be likelier, and likely."""
    total, count = each.sum(1), there.sum(1)
    better, worse = total.chunk(2)
    prefer = -F.logsigmoid(BETA * (better - worse)).mean()
    return prefer + -(better / count[: len(better)]).mean(), (better > worse).float().mean()


def examples():
    """A prompt, the better answer and the worse one, padded on the right; and where answers are."""
    rng = torch.Generator().manual_seed(0)
    words = torch.zeros(2, PAIRS, LENGTH, dtype=torch.long)
    labels = torch.full_like(words, IGNORED)
    for i in range(PAIRS):
        start = torch.randint(*PROMPT, (1,), generator=rng).item()
        prompt = torch.randint(3, VOCAB, (start,), generator=rng)
        for kind in range(2):
            count = torch.randint(*ANSWER, (1,), generator=rng).item()
            answer = torch.randint(3, VOCAB, (count,), generator=rng)
            if kind == 0:
                answer[: start // 2] = prompt[-count:][: start // 2]
            words[kind, i, :start], words[kind, i, start : start + count] = prompt, answer
            labels[kind, i, start : start + count] = answer
    return words, labels


class Batches:
    def __init__(self):
        self.words, self.labels = examples()
        self.there = self.words.to(device), self.labels.to(device)
        self.rng = torch.Generator().manual_seed(1)

    def __iter__(self):
        while True:
            chosen = torch.randperm(PAIRS, generator=self.rng)[:BATCH]
            labels = self.labels[:, chosen].flatten(0, 1)
            places = (labels[:, 1:] != IGNORED).nonzero().T.contiguous()
            if device.type == "cuda":
                chosen, places = chosen.pin_memory(), places.pin_memory()
            chosen, places = chosen.to(device, non_blocking=True), places.to(device, non_blocking=True)
            words, labels = (one[:, chosen].flatten(0, 1) for one in self.there)
            yield words, labels, places


def main():
    with device:
        model = Translator()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=low)
    lead, began, shown, better, batches = min(STEPS // 2, 5), 0.0, 0.0, 0.0, iter(Batches())
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        words, labels, places = next(batches)
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            if "logits-of-answers" in FIX:
                found = likelihoods_of_answers(model, words, labels, places)
            else:
                found = likelihoods(model(words), labels)
        loss, right = cpo_loss(*found)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if "figures-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown, better = loss.item(), right.item()
        if step % 20 == 0:
            print(f"step {step}: loss {shown:.4f}, better in {better:.2f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.5f}; {each:.3f} ms per step")


main()
