"""A transducer for speech: LSTM encoder, LSTM predictor, a joint network, and its loss in plain PyTorch."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 20))
BATCH, FRAMES, LABELS, MELS, HIDDEN, JOINT, VOCAB = (
    (3, 24, 4, 8, 16, 16, 20) if TINY else (16, 240, 14, 80, 512, 512, 512)
)
BLANK = 0
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
torch.set_float32_matmul_precision("high")


class Encoder(nn.Module):
    """Four frames become one, then three bidirectional layers."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(4 * MELS, HIDDEN, 3, batch_first=True, bidirectional=True, dropout=0.1)
        self.out = nn.Linear(2 * HIDDEN, JOINT)

    def forward(self, mels, lengths):
        b, t, _ = mels.shape
        stacked = mels.reshape(b, t // 4, 4 * MELS)
        packed = pack_padded_sequence(stacked, lengths // 4, batch_first=True, enforce_sorted=False)
        h, _ = pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
        return self.out(h)


class Predictor(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, HIDDEN)
        self.rnn = nn.LSTM(HIDDEN, HIDDEN, batch_first=True)
        self.out = nn.Linear(HIDDEN, JOINT)

    def forward(self, targets):
        h, _ = self.rnn(self.embed(F.pad(targets, (1, 0), value=BLANK)))
        return self.out(h)


class Transducer(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.predictor, self.joint = Encoder(), Predictor(), nn.Linear(JOINT, VOCAB)

    def forward(self, mels, lengths, targets):
        f, g = self.encoder(mels, lengths), self.predictor(targets)
        return self.joint(torch.tanh(f[:, :, None] + g[:, None])).log_softmax(-1)


def alphas_by_cell(blank, label):
    """Forward variables, a list of T lists of U + 1 tensors of the batch."""
    _, T, U = blank.shape
    alpha = [[None] * U for _ in range(T)]
    for t in range(T):
        for u in range(U):
            if t == 0 and u == 0:
                alpha[t][u] = torch.zeros_like(blank[:, 0, 0])
            elif u == 0:
                alpha[t][u] = alpha[t - 1][u] + blank[:, t - 1, u]
            elif t == 0:
                alpha[t][u] = alpha[t][u - 1] + label[:, t, u - 1]
            else:
                skip = alpha[t - 1][u] + blank[:, t - 1, u]
                emit = alpha[t][u - 1] + label[:, t, u - 1]
                alpha[t][u] = torch.logaddexp(skip, emit)
    return torch.stack([torch.stack(row, 1) for row in alpha], 1)


def alphas_by_row(blank, label):
    """The same, all labels of a frame at once: emissions within a frame are a cumulative sum."""
    emitted = F.pad(label.cumsum(2), (1, 0))
    frames = emitted.unbind(1)
    blanks = blank.unbind(1)
    alpha = [frames[0]]
    for t in range(1, len(frames)):
        alpha.append(torch.logcumsumexp(alpha[-1] + blanks[t - 1] - frames[t], 1) + frames[t])
    return torch.stack(alpha, 1)


def rnnt_loss(log_probs, targets, frame_lengths, label_lengths):
    blank = log_probs[..., BLANK]
    index = targets[:, None, :, None].expand(-1, log_probs.size(1), -1, 1)
    label = log_probs[:, :, :-1].gather(3, index).squeeze(3)
    alpha = (alphas_by_row if "rows" in FIX else alphas_by_cell)(blank, label)
    rows = torch.arange(len(targets), device=targets.device)
    last = rows, frame_lengths - 1, label_lengths
    return -(alpha[last] + blank[last]).mean()


def utterances(count):
    """Noise that follows its words a little."""
    made = []
    for _ in range(count):
        labels = int(torch.randint(LABELS // 2, LABELS + 1, ()))
        frames = 4 * int(torch.randint(FRAMES // 6, FRAMES // 4 + 1, ()))
        words = torch.randint(1, VOCAB, (labels,))
        mels = torch.randn(frames, MELS) + words.float().mean() / VOCAB
        made.append((mels, words))
    return made


def collate(batch):
    lengths = torch.tensor([len(mels) for mels, _ in batch])
    labels = torch.tensor([len(words) for _, words in batch])
    mels = nn.utils.rnn.pad_sequence([mels for mels, _ in batch], batch_first=True)
    words = nn.utils.rnn.pad_sequence([words for _, words in batch], batch_first=True)
    return mels, lengths, words, labels


corpus = utterances(8 * BATCH)
loader = torch.utils.data.DataLoader(corpus, BATCH, shuffle=True, collate_fn=collate, drop_last=True)
model = Transducer().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
step, times, shown = 0, [], 0.0
while step < STEPS:
    began = time.perf_counter()
    for mels, lengths, words, labels in loader:
        if step == STEPS:
            break
        mels, words = mels.to(device), words.to(device)
        log_probs = model(mels, lengths, words)
        loss = rnnt_loss(log_probs, words, (lengths // 4).to(device), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        if "loss-rarely" not in FIX or step % 10 == 0 or step == STEPS - 1:
            shown = loss.item()
        times.append(time.perf_counter() - began)
        began = time.perf_counter()
        if step % 10 == 0:
            print(f"step {step}: transducer loss {shown:.3f}")
        step += 1
kept = times[min(STEPS // 2, 4) :]
print(f"loss {shown:.4f}; {1e3 * sum(kept) / len(kept):.3f} ms per batch")
