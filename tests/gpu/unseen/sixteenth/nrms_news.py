"""Which of five headlines will be opened? Words to titles to readers, each by attention (NRMS)."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 150))
NEWS, WORDS, BATCH, CLICKED, OFFERED, TITLE, WIDE, HEADS, QUERY = (
    (40, 60, 3, 4, 3, 6, 16, 2, 8) if TINY else (50_000, 40_000, 64, 50, 5, 20, 300, 15, 200)
)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
torch.set_float32_matmul_precision("high")


class SelfAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDE, WIDE) for _ in range(3))

    def forward(self, x):
        q, k, v = (part(x).unflatten(2, (HEADS, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


class Pooling(nn.Module):
    """A mean whose weights come from what is in it."""

    def __init__(self):
        super().__init__()
        self.hidden, self.query = nn.Linear(WIDE, QUERY), nn.Parameter(0.1 * torch.randn(QUERY))

    def forward(self, x):
        weights = F.softmax(torch.tanh(self.hidden(x)) @ self.query, dim=1)
        return torch.bmm(weights[:, None], x)[:, 0]


class NewsEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDE, padding_idx=0)
        self.attention, self.pooling = SelfAttention(), Pooling()

    def forward(self, title):
        return self.pooling(self.attention(self.words(title)))


class NRMS(nn.Module):
    def __init__(self):
        super().__init__()
        self.news, self.attention, self.pooling = NewsEncoder(), SelfAttention(), Pooling()

    def forward(self, offered, clicked):
        if "titles-together" in FIX:
            titles = torch.cat([offered, clicked], 1)
            vectors = self.news(titles.flatten(0, 1)).unflatten(0, titles.shape[:2])
            offered, clicked = vectors.split([OFFERED, CLICKED], 1)
        else:
            offered = torch.stack([self.news(offered[:, i]) for i in range(OFFERED)], 1)
            clicked = torch.stack([self.news(clicked[:, i]) for i in range(CLICKED)], 1)
        reader = self.pooling(self.attention(clicked))
        return torch.bmm(offered, reader[:, :, None])[:, :, 0]


def titles():
    """Headlines of fifty subjects, whose words are their own; the shorter ones end with zeros."""
    subject = torch.arange(NEWS, device=device) % 50
    words = 1 + (subject[:, None] + 50 * torch.randint(WORDS // 50, (NEWS, TITLE), device=device)) % (
        WORDS - 1
    )
    length = torch.randint(TITLE // 2, TITLE + 1, (NEWS, 1), device=device)
    return torch.where(torch.arange(TITLE, device=device) < length, words, 0)


def impressions():
    """Readers stay with a subject; the first headline that they are offered is of it."""
    subject = torch.randint(min(50, NEWS), (BATCH, 1), device=device)
    clicked = (subject + 50 * torch.randint(NEWS // 50 + 1, (BATCH, CLICKED), device=device)) % NEWS
    right = (subject + 50 * torch.randint(NEWS // 50 + 1, (BATCH, 1), device=device)) % NEWS
    return torch.cat([right, torch.randint(NEWS, (BATCH, OFFERED - 1), device=device)], 1), clicked


def main():
    news = titles()
    with device:
        model = NRMS()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=device.type == "cuda")
    right = torch.zeros(BATCH, dtype=torch.long, device=device)
    lead, began, shown = min(STEPS // 2, 6), 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        offered, clicked = impressions()
        loss = F.cross_entropy(model(news[offered], news[clicked]), right)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if "loss-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown = loss.item()
        if step % 50 == 0:
            print(f"step {step}: loss {shown:.4f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.5f}; {each:.3f} ms per step")


main()
