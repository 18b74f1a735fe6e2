"""Passages that answer questions: two encoders, each question against all passages of its batch."""

import logging
import os
import time
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 60))
SIZE, BATCH, ASKED, LENGTH, VOCAB, WIDE, LAYERS, HEAD = (
    (16, 4, 6, 12, 60, 32, 1, 16) if TINY else (4096, 32, 32, 160, 30_522, 768, 12, 64)
)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low = device.type == "cuda" and "bfloat16" in FIX
logging.basicConfig(level=logging.INFO, format="%(message)s")
logger = logging.getLogger("dpr")
torch.manual_seed(0)
if "tensor-cores" in FIX:
    torch.set_float32_matmul_precision("high")


@dataclass
class Config:
    batch: int = BATCH
    rate: float = 2e-5
    warmup: int = 100
    log_rolling: int = 20 if "loss-rarely" in FIX else 1


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


class Encoder(nn.Module):
    """The first token stands for the text."""

    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(VOCAB, WIDE), nn.Embedding(LENGTH, WIDE)
        self.norm, self.layers = nn.LayerNorm(WIDE), nn.Sequential(*(Layer() for _ in range(LAYERS)))

    def forward(self, words):
        x = self.norm(self.words(words) + self.places.weight[: words.shape[1]])
        return self.layers(x)[:, 0]


class BiEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.questions, self.passages = Encoder(), Encoder()

    def forward(self, questions, passages):
        return self.questions(questions), self.passages(passages)


def nll(questions, passages):
    """The first of the two passages of a question is the right one."""
    scores = questions @ passages.T
    right = 2 * torch.arange(len(questions), device=scores.device)
    return F.cross_entropy(scores, right), (scores.argmax(1) == right).sum()


class BiEncoderTrainer:
    def __init__(self, config, data):
        self.config, self.data = config, data
        with device:
            self.model = BiEncoder()
        for module in self.model.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=config.rate, fused=device.type == "cuda"
        )
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda n: min(1.0, (n + 1) / config.warmup)
        )
        self.rolling = 0.0

    def batches(self):
        questions, passages = self.data
        while True:
            for chosen in torch.randperm(SIZE, device=device).split(self.config.batch):
                yield questions[chosen], passages[chosen].flatten(0, 1)

    def step(self, questions, passages):
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            q, p = self.model(questions, passages)
        loss, right = nll(q.float(), p.float())
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 2.0)
        self.optimizer.step()
        self.schedule.step()
        self.optimizer.zero_grad()
        return loss.detach(), right

    def train(self, steps):
        lead, began, batches = min(steps // 2, 4), 0.0, self.batches()
        for step in range(steps):
            if step == lead:
                if device.type == "cuda":
                    torch.cuda.synchronize()
                began = time.perf_counter()
            loss, right = self.step(*next(batches))
            if step % self.config.log_rolling == 0 or step == steps - 1:
                self.rolling = loss.item()
                if step % 20 == 0:
                    logger.info("step %d: loss %.4f, right %d", step, self.rolling, right.item())
        if device.type == "cuda":
            torch.cuda.synchronize()
        each = 1e3 * (time.perf_counter() - began) / (steps - lead)
        print(f"loss {self.rolling:.5f}; {each:.3f} ms per step")


def texts():
    """Questions, and for each a passage that has its words and one that is hard to tell from it."""
    questions = torch.randint(1, VOCAB, (SIZE, ASKED), device=device)
    passages = torch.randint(1, VOCAB, (SIZE, 2, LENGTH), device=device)
    passages[:, 0, :ASKED] = questions
    passages[:, 1, : ASKED // 2] = questions[:, : ASKED // 2]
    return questions, passages


BiEncoderTrainer(Config(), texts()).train(STEPS)
