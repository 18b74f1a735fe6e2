"""Dense retrieval: a query tower and a passage tower, the other passages of a batch as negatives."""

import os
import random
import time
import zlib

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 300))
BATCH, DIM, LAYERS = (8, 32, 1) if TINY else (384, 384, 6)
VOCAB, QUERY, PASSAGE = 30_000, 24, 128
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
random.seed(1)
torch.manual_seed(1)
words = ["".join(random.choices("abcdefghijklmnopqrstuvwxyz", k=random.randint(2, 9))) for _ in range(5000)]


def text(count):
    return " ".join(random.choices(words, k=count))


pairs = [(text(random.randint(4, 14)), text(random.randint(60, 110))) for _ in range(BATCH * 20)]


def tokenize(sentence, longest):
    ids = [1]
    for word in sentence.lower().split():
        for piece in (word[i : i + 5] for i in range(0, len(word), 5)):
            ids.append(2 + zlib.crc32(piece.encode()) % (VOCAB - 2))
    ids = ids[:longest]
    return ids + [0] * (longest - len(ids))


def collate(batch):
    queries = torch.tensor([tokenize(q, QUERY) for q, _ in batch])
    passages = torch.tensor([tokenize(p, PASSAGE) for _, p in batch])
    return queries, passages


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(VOCAB, DIM, padding_idx=0), nn.Embedding(PASSAGE, DIM)
        layer = nn.TransformerEncoderLayer(
            DIM, DIM // 32, 4 * DIM, 0.1, "gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, LAYERS, nn.LayerNorm(DIM), enable_nested_tensor=False)

    def forward(self, ids):
        x = self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        x = self.encoder(x, src_key_padding_mask=ids == 0)
        kept = (ids != 0).unsqueeze(-1)
        return F.normalize((x * kept).sum(1) / kept.sum(1), dim=-1)


query_tower, passage_tower = Tower().to(device), Tower().to(device)
parameters = [*query_tower.parameters(), *passage_tower.parameters()]
optimizer = torch.optim.AdamW(parameters, 2e-5, fused=True if "fused" in FIX else None)
workers = {"num_workers": 8, "persistent_workers": True} if "workers" in FIX else {}
loader = DataLoader(pairs, BATCH, shuffle=True, collate_fn=collate, drop_last=True, **workers)


def train_step(queries, passages):
    with torch.autocast(device.type, torch.bfloat16, enabled="bf16" in FIX):
        q, p = query_tower(queries.to(device)), passage_tower(passages.to(device))
    scores = q.float() @ p.float().T / 0.05
    labels = torch.arange(len(q)).to(device)
    loss = F.cross_entropy(scores, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    recall = (scores.topk(5, 1).indices == labels[:, None]).any(1).float().mean()
    return loss.item(), recall.item()


step, elapsed, last = 0, [], time.time()
while step < STEPS:
    for queries, passages in loader:
        loss, recall = train_step(queries, passages)
        now = time.time()
        elapsed.append(now - last)
        last = now
        step += 1
        if step % 20 == 0:
            print(f"[{step}/{STEPS}] loss={loss:.4f} recall@5={recall:.3f} {elapsed[-1]:.3f}s/it")
        if step == STEPS:
            break
tail = elapsed[STEPS // 4 :]
print(f"mean over last {len(tail)} iterations: {sum(tail) / len(tail):.6f}s/it")
