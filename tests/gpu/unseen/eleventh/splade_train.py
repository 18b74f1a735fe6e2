"""Sparse vectors of questions and passages, as an index of words has them, by a small trainer."""

import os
import time
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 100))
SIZE, BATCH, ASKED, LENGTH, VOCAB, WIDE, LAYERS, HEAD = (
    (16, 4, 6, 12, 60, 32, 1, 16) if TINY else (2048, 32, 32, 160, 30_522, 768, 6, 64)
)
PAD = 0
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
torch.manual_seed(0)


@dataclass
class Arguments:
    steps: int
    batch: int
    rate: float = 2e-5
    flops_questions: float = 3e-4
    flops_passages: float = 1e-4
    log_every: int = 20 if "log-rarely" in FIX else 1


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDE, 3 * WIDE), nn.Linear(WIDE, WIDE)
        self.norm1, self.norm2 = nn.LayerNorm(WIDE), nn.LayerNorm(WIDE)
        self.up, self.down = nn.Linear(WIDE, 4 * WIDE), nn.Linear(4 * WIDE, WIDE)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(2, (3, -1, HEAD)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = self.norm1(x + self.out(y))
        return self.norm2(x + self.down(F.gelu(self.up(x))))


class MaskedModel(nn.Module):
    """A text's words as a language model would fill them in: logits of all words at each place."""

    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(VOCAB, WIDE), nn.Embedding(LENGTH, WIDE)
        nn.init.normal_(self.words.weight, std=0.02)
        self.norm, self.layers = nn.LayerNorm(WIDE), nn.Sequential(*(Layer() for _ in range(LAYERS)))
        self.dense, self.last = nn.Linear(WIDE, WIDE), nn.LayerNorm(WIDE)
        self.bias = nn.Parameter(torch.zeros(VOCAB))

    def forward(self, words):
        x = self.words(words) + self.places.weight[: words.shape[1]]
        x = self.layers(self.norm(x))
        return F.linear(self.last(F.gelu(self.dense(x))), self.words.weight, self.bias)


class Splade(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = MaskedModel()

    def forward(self, words):
        logits, there = self.model(words), (words != PAD)[..., None]
        if "max-first" in FIX:
            return torch.log1p(torch.relu(logits.masked_fill(~there, 0).max(1).values))
        return torch.max(torch.log(1 + torch.relu(logits)) * there, 1).values


def flops(vectors):
    """How many products a search would take."""
    return vectors.abs().mean(0).square().sum()


class Trainer:
    def __init__(self, model, arguments, data):
        self.model, self.arguments, self.data = model.to(device), arguments, data
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.rate, fused=device.type == "cuda")
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda n: min(1, (n + 1) / 10))
        self.logged = {}

    def batches(self):
        questions, passages = self.data
        while True:
            order = torch.randperm(SIZE, device=device)
            for chosen in order.split(self.arguments.batch):
                yield questions[chosen], passages[chosen].flatten(0, 1)

    def loss(self, questions, passages):
        """The first of the two passages of a question is the right one; all others are wrong."""
        with torch.autocast(device.type, torch.bfloat16, enabled=dtype == torch.bfloat16):
            q, p = self.model(questions), self.model(passages)
        q, p = q.float(), p.float()
        right = 2 * torch.arange(len(q), device=device)
        rank = F.cross_entropy(q @ p.T, right)
        return rank + self.arguments.flops_questions * flops(q) + self.arguments.flops_passages * flops(p), q

    def log(self, step, loss, vectors):
        self.logged = {"loss": loss.item(), "words": (vectors > 0).sum(1).float().mean().item()}
        if step % 20 == 0:
            print(f"step {step}: loss {self.logged['loss']:.4f}, {self.logged['words']:.0f} words a question")

    def train(self):
        lead, began, batches = min(self.arguments.steps // 2, 5), 0.0, self.batches()
        for step in range(self.arguments.steps):
            if step == lead:
                if device.type == "cuda":
                    torch.cuda.synchronize()
                began = time.perf_counter()
            loss, vectors = self.loss(*next(batches))
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.schedule.step()
            self.optimizer.zero_grad()
            if step % self.arguments.log_every == 0 or step == self.arguments.steps - 1:
                self.log(step, loss.detach(), vectors.detach())
        if device.type == "cuda":
            torch.cuda.synchronize()
        each = 1e3 * (time.perf_counter() - began) / (self.arguments.steps - lead)
        print(f"loss {self.logged['loss']:.5f}; {each:.3f} ms per step")


def texts():
    """Questions, and for each a passage that has its words and one that has not; some are shorter."""
    questions = torch.randint(1, VOCAB, (SIZE, ASKED), device=device)
    passages = torch.randint(1, VOCAB, (SIZE, 2, LENGTH), device=device)
    passages[:, 0, :ASKED] = questions
    lengths = torch.randint(LENGTH * 3 // 4, LENGTH + 1, (SIZE, 2, 1), device=device)
    passages[torch.arange(LENGTH, device=device) >= lengths] = PAD
    return questions, passages


with device:
    splade = Splade()
Trainer(splade, Arguments(STEPS, BATCH), texts()).train()
