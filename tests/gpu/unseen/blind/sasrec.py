"""SASRec: the next item of each user, by self-attention over what was bought before; loss over all items."""

import argparse
import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=int(os.environ.get("STEPS", 4 if TINY else 200)))
parser.add_argument("--batch_size", type=int, default=8 if TINY else 128)
parser.add_argument("--maxlen", type=int, default=20 if TINY else 100)
parser.add_argument("--items", type=int, default=500 if TINY else 60_000)
parser.add_argument("--hidden", type=int, default=32 if TINY else 128)
parser.add_argument("--blocks", type=int, default=2)
parser.add_argument("--heads", type=int, default=2)
parser.add_argument("--dropout", type=float, default=0.2)
args = parser.parse_args()

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(42)
if "tf32" in FIX:
    torch.backends.cuda.matmul.allow_tf32 = True


class Purchases(Dataset):
    """Histories of very different length, as in any shop: most users bought little."""

    def __init__(self, users=4000):
        rng = np.random.default_rng(42)
        lengths = np.clip(rng.geometric(1 / (args.maxlen * 0.25), users) + 4, 5, 4 * args.maxlen)
        popularity = rng.zipf(1.3, lengths.sum()) % args.items + 1
        self.histories = np.split(popularity, np.cumsum(lengths)[:-1])

    def __len__(self):
        return args.steps * args.batch_size

    def __getitem__(self, i):
        history = self.histories[i % len(self.histories)][-(args.maxlen + 1) :]
        seq, pos = np.zeros(args.maxlen, np.int64), np.zeros(args.maxlen, np.int64)
        seq[-len(history) + 1 :], pos[-len(history) + 1 :] = history[:-1], history[1:]
        return seq, pos


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(args.hidden, eps=1e-8), nn.LayerNorm(args.hidden, eps=1e-8)
        self.qkv, self.out = nn.Linear(args.hidden, 3 * args.hidden), nn.Linear(args.hidden, args.hidden)
        self.conv1, self.conv2 = nn.Linear(args.hidden, args.hidden), nn.Linear(args.hidden, args.hidden)
        self.dropout = nn.Dropout(args.dropout)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, args.heads, d // args.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(self.out(y.transpose(1, 2).reshape(b, t, d)))
        return x + self.dropout(self.conv2(F.relu(self.conv1(self.norm2(x)))))


class SASRec(nn.Module):
    def __init__(self):
        super().__init__()
        self.item_emb = nn.Embedding(args.items + 1, args.hidden, padding_idx=0)
        self.pos_emb = nn.Embedding(args.maxlen, args.hidden)
        self.blocks = nn.ModuleList(Block() for _ in range(args.blocks))
        self.norm = nn.LayerNorm(args.hidden, eps=1e-8)
        self.dropout = nn.Dropout(args.dropout)
        nn.init.normal_(self.item_emb.weight, std=0.02)

    def features(self, seq):
        x = self.item_emb(seq) * args.hidden**0.5
        x = self.dropout(x + self.pos_emb(torch.arange(args.maxlen, device=seq.device)))
        x = x * (seq != 0).unsqueeze(-1)
        for block in self.blocks:
            x = block(x)
        return self.norm(x)

    def forward(self, seq):
        return self.features(seq) @ self.item_emb.weight.T

    @torch.no_grad()
    def hit_rate(self, seq, target, k=10):
        best = (self.features(seq)[:, -1] @ self.item_emb.weight.T).topk(k).indices
        return (best == target[:, None]).any(1).float().mean().item()


model = SASRec().to(device)
optimizer = torch.optim.Adam(
    model.parameters(), lr=1e-3, betas=(0.9, 0.98), fused=True if "fused" in FIX else None
)
loader = DataLoader(
    Purchases(), args.batch_size, num_workers=0 if TINY else 4, pin_memory=device.type == "cuda"
)

model.train()
for step, (seq, pos) in enumerate(loader):
    if step == args.steps // 4:
        if device.type == "cuda":
            torch.cuda.synchronize()
        t0 = time.time()
    seq, pos = seq.to(device, non_blocking=True), pos.to(device, non_blocking=True)
    mask = pos != 0
    if "kept-positions" in FIX:
        rows = mask.flatten().nonzero().flatten()
        chosen = model.features(seq).flatten(0, 1).index_select(0, rows)
        loss = F.cross_entropy(chosen @ model.item_emb.weight.T, pos.flatten()[rows])
    else:
        logits = model(seq)
        loss = F.cross_entropy(logits.view(-1, args.items + 1), pos.view(-1), reduction="none")
        loss = (loss * mask.view(-1)).sum() / mask.sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 50 == 0:
        print(f"step {step}: loss {loss.item():.4f}, HR@10 {model.hit_rate(seq, pos[:, -1]):.4f}")

final = loss.item()
spent = time.time() - t0
print(f"loss {final:.4f}; {1e3 * spent / (args.steps - args.steps // 4):.4f} ms/step")
