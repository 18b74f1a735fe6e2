"""A notebook turned script: test a small network for speech on short sentences, and count wrong letters."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 40))  # batches of the test
SENTENCES, BATCH, MELS, FRAMES, WIDE, LAYERS = (12, 2, 16, 24, 16, 1) if TINY else (240, 12, 128, 600, 512, 5)
LETTERS = "_ abcdefghijklmnopqrstuvwxyz'"  # the first is blank
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
torch.backends.cuda.matmul.allow_tf32 = True


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(MELS // 2) for _ in range(2))
        self.convs = nn.ModuleList(nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))

    def forward(self, x):
        y = x
        for norm, conv in zip(self.norms, self.convs, strict=True):
            y = conv(F.gelu(norm(y.transpose(2, 3)).transpose(2, 3).contiguous()))
        return x + y


class Speech(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Conv2d(1, 32, 3, stride=2, padding=1)
        self.residuals = nn.Sequential(*(Residual(32) for _ in range(3)))
        self.squeeze = nn.Linear(32 * MELS // 2, WIDE)
        self.recurrent = nn.GRU(WIDE, WIDE, LAYERS, batch_first=True, bidirectional=True)
        self.letters = nn.Sequential(nn.Linear(2 * WIDE, WIDE), nn.GELU(), nn.Linear(WIDE, len(LETTERS)))

    def forward(self, x):
        x = self.residuals(self.enter(x))
        x = self.squeeze(x.flatten(1, 2).transpose(1, 2))
        return self.letters(self.recurrent(x)[0])


def greedy(likely, labels, lengths):
    """The likeliest letters, each once where it comes several times in a row."""
    best = likely.argmax(2)
    if "read-once" in FIX:
        best = best.cpu()
    decodes, targets = [], []
    for i, indices in enumerate(best.tolist() if "read-once" in FIX else best):
        decode = []
        targets.append("".join(LETTERS[int(c)] for c in labels[i][: lengths[i]]))
        for j, index in enumerate(indices):
            if index != 0:
                if j != 0 and index == indices[j - 1]:
                    continue
                decode.append(index if "read-once" in FIX else index.item())
        decodes.append("".join(LETTERS[c] for c in decode))
    return decodes, targets


def distance(said, meant):
    """How many letters are put in, left out or changed."""
    row = list(range(len(said) + 1))
    for i, letter in enumerate(meant, 1):
        before, row[0] = row[0], i
        for j, other in enumerate(said, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (letter != other))
    return row[-1]


def sentences():
    """Letters, and a frame of noise with a tone for each of them."""
    most = max(4, FRAMES // 20)
    lengths = torch.randint(most // 2, most + 1, (SENTENCES,))
    labels = torch.randint(1, len(LETTERS), (SENTENCES, most))
    mels = torch.randn(SENTENCES, 1, MELS, FRAMES)
    return mels, labels, lengths


def main():
    mels, labels, lengths = sentences()
    with device:
        model = Speech().eval()
        model.letters[-1].weight.data.mul_(4)
    criterion = nn.CTCLoss(blank=0)
    lead, began, lost, wrong, seen = min(STEPS // 2, 4), 0.0, 0.0, [], []
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        rows = torch.arange(step * BATCH, (step + 1) * BATCH) % SENTENCES
        with torch.no_grad():
            likely = F.log_softmax(model(mels[rows].to(device)), dim=2)
            frames = torch.full((BATCH,), likely.shape[1])
            loss = criterion(likely.transpose(0, 1), labels[rows].to(device), frames, lengths[rows])
        if "loss-at-end" in FIX:
            seen.append(loss)
        else:
            lost += loss.item() / STEPS
        decodes, targets = greedy(likely, labels[rows], lengths[rows].tolist())
        for said, meant in zip(decodes, targets, strict=True):
            wrong.append(distance(said, meant) / len(meant))
        if step % 10 == 0:
            print(f"batch {step}: {sum(wrong) / len(wrong):.3f} of letters wrong")
    if seen:
        lost = torch.stack(seen).mean().item()
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {lost:.4f}, letters {sum(wrong) / len(wrong):.4f}; {each:.3f} ms per batch")


main()
