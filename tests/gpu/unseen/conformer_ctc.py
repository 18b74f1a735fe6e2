"""Train a small conformer with CTC on utterances of two to sixteen seconds."""

import os
import random
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 260))
DIM, LAYERS, BATCH, LONGEST = (32, 2, 4, 200) if TINY else (256, 12, 32, 1600)
VOCAB = 500
device = "cuda" if torch.cuda.is_available() else "cpu"
random.seed(7)
torch.manual_seed(7)


class Utterances(Dataset):
    def __init__(self, count):
        self.lengths = [int(LONGEST * min(1, max(0.12, random.gauss(0.45, 0.25)))) for _ in range(count)]

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, i):
        frames = self.lengths[i]
        return torch.randn(frames, 80), torch.randint(1, VOCAB, (max(1, frames // 14),))


def collate(items):
    features, labels = zip(*items, strict=True)
    return (
        pad_sequence(features, batch_first=True),
        torch.tensor([len(f) for f in features]),
        torch.cat(labels),
        torch.tensor([len(t) for t in labels]),
    )


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ff1, self.ff2 = self.feed_forward(), self.feed_forward()
        self.norm, self.attention = nn.LayerNorm(DIM), nn.MultiheadAttention(DIM, 4, 0.1, batch_first=True)
        self.conv_norm, self.glu = nn.LayerNorm(DIM), nn.Conv1d(DIM, 2 * DIM, 1)
        self.depthwise, self.batch_norm = nn.Conv1d(DIM, DIM, 31, padding=15, groups=DIM), nn.BatchNorm1d(DIM)
        self.pointwise, self.final = nn.Conv1d(DIM, DIM, 1), nn.LayerNorm(DIM)

    def feed_forward(self):
        return nn.Sequential(
            nn.LayerNorm(DIM), nn.Linear(DIM, 4 * DIM), nn.SiLU(), nn.Dropout(0.1), nn.Linear(4 * DIM, DIM)
        )

    def forward(self, x, padding):
        x = x + 0.5 * self.ff1(x)
        y = self.norm(x)
        x = x + self.attention(y, y, y, key_padding_mask=padding)[0]
        y = self.conv_norm(x).masked_fill(padding[..., None], 0).transpose(1, 2)
        y = self.pointwise(F.silu(self.batch_norm(self.depthwise(F.glu(self.glu(y), 1)))))
        x = x + y.transpose(1, 2)
        return self.final(x + 0.5 * self.ff2(x))


class Conformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.subsample = nn.Sequential(
            nn.Conv2d(1, DIM, 3, 2), nn.ReLU(), nn.Conv2d(DIM, DIM, 3, 2), nn.ReLU()
        )
        self.enter = nn.Linear(DIM * 19, DIM)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Linear(DIM, VOCAB)

    def forward(self, x, lengths):
        x = self.subsample(x.unsqueeze(1))
        x = self.enter(x.transpose(1, 2).flatten(2))
        lengths = ((lengths - 1) // 2 - 1) // 2
        padding = torch.arange(x.shape[1], device=x.device) >= lengths[:, None]
        for block in self.blocks:
            x = block(x, padding)
        return self.head(x), lengths


def edit_distance(a, b):
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        before, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (x != y))
    return row[-1]


def error_rate(log_probs, lengths, labels, label_lengths):
    errors = words = 0
    for path, length, truth in zip(
        log_probs.argmax(-1), lengths, labels.split(label_lengths.tolist()), strict=True
    ):
        guess = [int(t) for t in torch.unique_consecutive(path[:length]).cpu() if t]
        errors += edit_distance(guess, truth.tolist())
        words += len(truth)
    return errors / words


class ByLength:
    """Batches of neighbours in length, in random order."""

    def __init__(self, lengths):
        order = sorted(range(len(lengths)), key=lengths.__getitem__)
        self.batches = [order[i : i + BATCH] for i in range(0, len(order) - BATCH + 1, BATCH)]

    def __iter__(self):
        return iter(random.sample(self.batches, len(self.batches)))

    def __len__(self):
        return len(self.batches)


dataset = Utterances(BATCH * (STEPS + 1))
how = (
    {"batch_sampler": ByLength(dataset.lengths)}
    if "bucket" in FIX
    else {"batch_size": BATCH, "shuffle": True}
)
loader = DataLoader(dataset, collate_fn=collate, num_workers=4, pin_memory=device == "cuda", **how)
model = Conformer().to(device)
optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
for step, batch in enumerate(loader):
    if step == STEPS // 4:
        if device == "cuda":
            torch.cuda.synchronize()
        began = time.time()
    features, lengths, labels, label_lengths = (t.to(device, non_blocking=True) for t in batch)
    with torch.autocast(device, torch.bfloat16, enabled="bf16" in FIX):
        logits, lengths = model(features, lengths)
    log_probs = logits.float().log_softmax(-1)
    loss = F.ctc_loss(log_probs.transpose(0, 1), labels, lengths, label_lengths, zero_infinity=True)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    optimizer.step()
    if "score-rarely" not in FIX or step % 50 == 0:
        wer = error_rate(log_probs.detach(), lengths, labels, label_lengths)
    if step % 20 == 0:
        print(f"{step:5d} | loss {loss.item():8.3f} | train WER {wer:.3f}")
    if step == STEPS - 1:
        break
if device == "cuda":
    torch.cuda.synchronize()
print(f"training step: {(time.time() - began) / (STEPS - STEPS // 4):.5f} seconds on average")
